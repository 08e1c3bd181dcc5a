"""The server's side: an algorithm's rounds, exchange by exchange, with whoever answers in time.

A round counts as a whole or not at all. It is repeated from its beginning when too few sites answer, and after a few
repetitions the run is given up with all finished rounds in hand. Clients go along: every message says which of a
client's replies was the last to count (`letters.At`), so that a reply that got lost leaves no trace at the client
either, as in the simulator.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Message, RecordDict
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.engines.checks import check_start
from equipoise.engines.flower.events import GivenUp, Ledger, Outcome, Traffic
from equipoise.engines.flower.federation import Federation, Post, why_not
from equipoise.engines.flower.letters import NAME, START, At, address, mark
from equipoise.engines.flower.plan import Leg, Plan, fingerprint, plan
from equipoise.engines.flower.wire import Refusal, check_values, framing, pack, refuse_unless, unpack
from equipoise.engines.simulator import Progress, Result, Tally
from equipoise.errors import Stopped, require
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Data,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    exchange_keys,
    nbytes,
    slot_key,
)

STEPS = ("open", "send", "close")
BLANK: tuple = (None, 0, 0.0, ())
Summation = Callable[[list[PyTree], PyTree], PyTree]  # the present clients' totals by slot, and shapes -> their sum


class Demands(NamedTuple):
    """When a round counts."""

    least: int = 1  # sites that have to answer in every exchange (or all, where fewer are asked)
    tries: int = 3  # times that a round is tried
    heavy: float = 0.8  # the weight from which on a site is named in a warning


def add(totals: list[PyTree], like: PyTree) -> PyTree:
    """The plain sum. The only place where a reply's `total` is touched: a masked sum would take its place."""
    rows = totals or [jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)]
    return jax.tree.map(lambda *a: np.sum(np.stack(a), axis=0, dtype=a[0].dtype), *rows)


class Setup(NamedTuple):
    """What stays the same during a run."""

    federation: Federation
    legs: Plan
    compiled: Mapping[tuple[str, str], Callable]  # (exchange, "open" | "send" | "close")
    key: RandomKey
    part: str
    run: str
    digest: str
    demands: Demands
    timeouts: Mapping[str, float]
    summation: Summation


class State(NamedTuple):
    """What a round changes."""

    server: Server
    counted: tuple[str, ...]  # per client, the mark of its last reply that counted
    tally: Tally
    traffic: dict[str, Traffic]


class TooFew(Exception):
    """An exchange had too few replies; `state` holds what was counted meanwhile."""

    def __init__(self, sentence: str, state: State):
        super().__init__(sentence)
        self.state = state


def serve(
    algorithm: Algorithm,
    x: Vector,
    federation: Federation,
    key: RandomKey | int,
    *,
    shard: Data,
    rounds: int,
    part: str = "train",
    config: str = "",
    run: str | None = None,
    record: Callable[[Server], PyTree] | None = None,
    demands: Demands | None = None,
    timeouts: Mapping[str, float] | None = None,
    summation: Summation = add,
    progress: Progress | None = None,
    pause: Callable[[Outcome], None] | None = None,
    every: int = 1,
    resume: Outcome | None = None,
) -> Outcome:
    """Runs `algorithm` from x for `rounds` rounds over the sites of `federation`.

    Args:
        algorithm: built for as many clients as there are sites; client i is `federation.sites[i]`.
        x: the first model, a flat vector; its dtype is the precision of the run.
        federation: from `gather`.
        key: a jax.random key, or an integer seed.
        shard: shapes like those of a site's shard (jax.ShapeDtypeStruct), with any number of rows.
        rounds: how many rounds, those of `resume` included.
        part: which of the sites' jobs this is.
        config: what the sites' jobs must have the same, such as a digest of the settings.
        run: a name for the run, under which sites keep what they must not forget; made up if not given.
        record: what to keep of the server after every round; comes back as `result.history`.
        demands: when a round counts.
        timeouts: seconds for the replies of an exchange, by its name; `federation.patience.exchange` for others.
        summation: how totals become a sum.
        progress: called after every round with (rounds done, rounds in all, the last record).
        pause: called after every `every` rounds and after the last with the outcome so far: for checkpoints. A run
            can be resumed from the newest of them only, for sites remember no further back.
        every: see `pause`.
        resume: an outcome to continue.

    Raises GivenUp or, on Ctrl-C, Stopped; the outcome until then is in `outcome` or `result`.
    """
    key = key if isinstance(key, jax.Array) else jax.random.key(key)
    check(algorithm, x, federation, rounds, every, resume)
    run = resume.ledger.run if resume else run or f"{int(time.time())}-{secrets.token_hex(4)}"
    require(NAME.fullmatch(run) and NAME.fullmatch(part), f"run '{run}', part '{part}': give letters, digits, . _ -")
    legs = plan(algorithm, x, shard)
    steps = {(name, do): jax.jit(getattr(leg.exchange, do)) for name, leg in legs.items() for do in STEPS}
    digest = fingerprint(algorithm, legs, config)
    demands = demands or Demands()
    require(demands.tries >= 1, f"a round would be tried {demands.tries} times; give at least 1")
    setup = Setup(federation, legs, steps, key, part, run, digest, demands, timeouts or {}, summation)
    keep = jax.jit(record) if record else lambda server: ()

    past, done, before, old = (*resume.result[2:4], resume.result.seconds, resume.ledger.events) if resume else BLANK
    state, clock = begin(algorithm, x, resume), time.perf_counter()
    history: list[PyTree] = []

    def outcome(at: int, state: State, last: bool = True) -> Outcome:
        new = [jax.tree.map(lambda a: a[None], row) for row in history]
        rows = [*([] if past is None else [past]), *new]
        joined = jax.tree.map(lambda *a: np.concatenate(a), *rows) if rows else ()
        result = Result(state.server, None, joined, at, state.tally, before + time.perf_counter() - clock, 0.0)
        events = (*old, *federation.events[federation.reported :])
        federation.reported += last * len(federation.events[federation.reported :])
        return Outcome(result, Ledger(run, federation.sites, state.counted, events, tuple(state.traffic.values())))

    attempt, saved = 0, state.counted
    for r in range(done, rounds):
        began = state
        for t in range(demands.tries):
            attempt = max(attempt + 1, time.time_ns() // 1_000_000)
            marks = list(zip(began.counted, saved, strict=True))
            try:
                state = one_round(setup, r, attempt, began, marks)
                break
            except TooFew as few:
                tally = began.tally._replace(broken=few.state.tally.broken)  # what was asked in vain is in the events
                began = began._replace(tally=tally, traffic=few.state.traffic)
                last, where = t + 1 == demands.tries, f"round {r}, exchange '{federation.where[1]}'"
                federation.note("", "given up" if last else "repeated", str(few))
                if last:
                    raise GivenUp(
                        f"{where}: {few}, {demands.tries} times over; the {r} rounds before are in `outcome` and in "
                        "the last checkpoint: resume from there when the sites are back",
                        outcome(r, began),
                    ) from None
            except KeyboardInterrupt:
                raise Stopped(outcome(r, began)) from None
        history.append(jax.tree.map(np.asarray, keep(state.server)))
        name_the_heavy(federation, algorithm.weights(state.server), demands.heavy)
        if pause is None or (r + 1) % every == 0 or r + 1 == rounds:
            if pause is not None:
                pause(outcome(r + 1, state, last=False))
            saved = state.counted
        if progress is not None:
            progress(r + 1, rounds, history[-1])
    return outcome(rounds, state)


def check(
    algorithm: Algorithm, x: Vector, federation: Federation, rounds: int, every: int, resume: Outcome | None
) -> None:
    n = len(federation.sites)
    check_start(algorithm, x, rounds)
    require(every >= 1, f"every is {every}; give how many rounds lie between two pauses, at least 1")
    require(
        n == algorithm.n,
        f"there are {n} sites but {algorithm.name} was built for {algorithm.n}; build it for as many",
    )
    if resume is not None:
        done, sites = resume.rounds, resume.ledger.sites
        require(done <= rounds, f"the outcome to resume has {done} rounds already; ask for more than {done}")
        require(
            sites == federation.sites,
            f"the run to resume had the sites {', '.join(sites)}, not {', '.join(federation.sites)}; gather those",
        )


def begin(algorithm: Algorithm, x: Vector, resume: Outcome | None) -> State:
    fresh = {e.name: Traffic(e.name) for e in algorithm.round}
    if resume is None:
        return State(algorithm.init(x), (START,) * algorithm.n, Tally.nothing(algorithm), fresh)
    result, ledger = resume
    server = jax.tree.map(jnp.asarray, result.server)
    return State(server, ledger.counted, result.tally, fresh | {t.exchange: t for t in ledger.traffic})


def one_round(setup: Setup, r: int, attempt: int, state: State, marks: list[tuple[str, str]]) -> State:
    """All exchanges of a round; `marks` are, per client, the states that may be gone back to."""
    for leg in setup.legs.values():
        setup.federation.where = (r, leg.exchange.name)
        state = one_exchange(setup, leg, r, attempt, state, marks)
    return state


def one_exchange(setup: Setup, leg: Leg, r: int, attempt: int, state: State, marks: list[tuple[str, str]]) -> State:
    name, k, federation = leg.exchange.name, leg.at, setup.federation
    opening, working = exchange_keys(setup.key, r, k)
    server, cohort = setup.compiled[name, "open"](state.server, opening)
    ids = np.asarray(cohort.ids)
    clients = {int(s): int(ids[s]) for s in np.flatnonzero(cohort.present)}  # slot -> client
    federation.find([federation.sites[i] for i in clients.values()])

    timeout = setup.timeouts.get(name, federation.patience.exchange)
    send = setup.compiled[name, "send"]
    alike = pack(send(server, jnp.int32(0))) if leg.alike else None
    letters: dict[int, Message] = {}
    for s, i in clients.items():
        site, since = federation.sites[i], state.counted[i]
        if site not in federation.nodes:
            federation.note(site, "absent", f"'{site}' is not there")
            continue
        words = jax.random.key_data(slot_key(working, s)).tolist()
        at = At(setup.part, setup.run, attempt, r, name, s, words, since, [*{*marks[i]} - {since}], setup.digest)
        arrays = pack(send(server, jnp.int32(i))) if alike is None else alike
        letters[s] = federation.letter(RecordDict({"at": address(at), "message": arrays}), site, round=r, ttl=timeout)
    posts = federation.deliver(letters, timeout)

    tally, replies = jax.tree.map(np.copy, state.tally), {}
    for s, post in posts.items():
        try:
            replies[s] = accepted(post, leg.reply)
        except Refusal as refusal:
            what, why = (
                why_not(post) if post.content is None or "reply" not in post.content else ("broken", str(refusal))
            )
            federation.note(federation.sites[clients[s]], what, why)
            tally.broken[clients[s]] += what == "broken"
    traffic = state.traffic | {name: weighed(state.traffic[name], leg, letters, {s: posts[s] for s in replies})}
    state = State(server, state.counted, tally, traffic)
    asked, heard = len({*clients.values()}), len({clients[s] for s in replies})
    needed = min(setup.demands.least, asked)
    if heard < needed:
        raise TooFew(f"{heard} of {asked} sites answered and {needed} are needed", state)

    tally.asked[k] += len(clients)
    tally.answered[k] += len(replies)
    server = setup.compiled[name, "close"](server, folded(replies, leg.reply, cohort, setup.summation))
    counted = list(state.counted)
    if leg.exchange.writes:
        for s in replies:
            counted[clients[s]] = mark(attempt, r, k)
    return state._replace(server=server, counted=tuple(counted))


def accepted(post: Post, like: Reply) -> Reply:
    """The reply in a post, if it is what was agreed and its numbers can be reckoned with; else a Refusal."""
    refuse_unless(post.content is not None and "reply" in post.content, "there is no reply")
    assert post.content is not None
    reply = unpack(post.content["reply"], like)
    check_values(reply)
    return reply


def folded(replies: dict[int, Reply], like: Reply, cohort: Cohort, summation: Summation) -> Replies:
    """What the algorithm may see: the sum of `total`, the rows of `each`, who answered."""
    slots = range(len(cohort.ids))
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like.each)
    rows = [replies[s].each if s in replies else nothing for s in slots]
    each = jax.tree.map(lambda *a: np.stack(a), *rows)
    total = summation([replies[s].total for s in slots if s in replies], like.total)
    return Replies(total, each, Cohort(np.asarray(cohort.ids), np.array([s in replies for s in slots])))


def weighed(before: Traffic, leg: Leg, letters: dict[int, Message], posts: dict[int, Post]) -> Traffic:
    """The traffic with one more exchange; framing is taken of the first message and reply, as others have the same."""
    down, up = nbytes(leg.message), nbytes(leg.reply)
    sent, received = list(letters.values()), [p.message for p in posts.values() if p.message is not None]
    return Traffic(
        before.exchange,
        before.sent + len(sent),
        before.received + len(received),
        before.down + len(sent) * down,
        before.up + len(received) * up,
        before.down_framing or (framing(sent[0]) if sent else 0),
        before.up_framing or (framing(received[0]) if received else 0),
    )


def name_the_heavy(federation: Federation, lam: ArrayLike | None, most: float) -> None:
    """A warning, once for each site, when one site's loss is nearly all that counts."""
    if lam is None or len(federation.sites) == 1:
        return
    share = np.asarray(lam) / np.sum(np.asarray(lam))
    site, known = federation.sites[int(np.argmax(share))], {e.site for e in federation.events if e.what == "heavy"}
    if share.max() > most and site not in known:
        why = (
            f"'{site}' has {share.max():.0%} of the weight: the model is fitted to it nearly alone. If its losses are "
            "right, that is what the objective asks for; if not, cap weights or clip losses (docs/flower.md)"
        )
        federation.warn(site, "heavy", why)
