"""The server's side: an algorithm's rounds, exchange by exchange, with whoever answers in time.

A round counts as a whole or not at all. It is repeated from its beginning when too few sites answer, and after a few
repetitions the run is given up with all finished rounds in hand. Clients go along: every message says which of a
client's replies was the last to count (`messages.Address`), so that a reply that got lost leaves no trace at the client
either, as in the simulator.
"""

import copy
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, PyTree

from equipoise.deploy.server.events import GivenUp, Ledger, Outcome, Traffic, What
from equipoise.deploy.server.lengths import Bounded, Heard, given_weight, weighs_otherwise
from equipoise.deploy.server.sites import ConnectedSites, Delivery, Limit
from equipoise.deploy.wire import messages as wire
from equipoise.deploy.wire.secure import MaskedExchange, Masking, SecureSums
from equipoise.deploy.wire.transport import INLINE
from equipoise.engines.checks import check_every, check_start
from equipoise.engines.fold import Collected
from equipoise.engines.simulator import Progress, Result, Tally
from equipoise.errors import Stopped, not_none, require
from equipoise.privacy.site_masks import FEWEST
from equipoise.protocol import (
    Algorithm,
    Cohort,
    Data,
    RandomKey,
    Replies,
    Reply,
    Server,
    Vector,
    as_key,
    exchange_keys,
    nbytes,
    slot_key,
)

STEPS = ("open", "send", "close")
ENOUGH = 10  # replies of an exchange before a deadline is made of their times
SHORTEST = 1.0  # seconds: no deadline is shorter
SPOILT = "the model of the last checkpoint may be spoilt: start over, with shorter steps"
REMEMBERED = 1000  # times of past replies


class Demands(NamedTuple):
    """When an exchange ends, and when a round counts.

    An exchange ends when all have answered, and at its time-out. With a `quantile` it also ends, once a `quorum` has
    answered, after `slack` times that quantile of the seconds that replies to it took so far.
    """

    least: int = 1  # sites that have to answer in every exchange (or all, where fewer are asked)
    tries: int = 3  # times that a round is tried
    heavy: float = 0.8  # the weight from which on a site is named in a warning
    quantile: float | None = None
    slack: float = 3.0
    quorum: float = 0.5  # share of those asked
    bound: float | None = 100.0  # how far a reply may be from what is usual (`lengths.py`); None: as far as it likes


def deadline(demands: Demands, timeout: float, past: Collection[float], asked: int) -> Limit:
    """How long to wait in an exchange, by how many have answered; `past` are the seconds of earlier replies to it."""
    early = timeout
    if demands.quantile is not None and len(past) >= ENOUGH:
        early = min(timeout, max(SHORTEST, demands.slack * float(np.quantile([*past], demands.quantile))))
    quorum = math.ceil(demands.quorum * asked)
    return lambda answered: early if answered >= quorum else timeout


class Prepared(NamedTuple):
    """An algorithm that is ready to be served, more than once without compiling again."""

    algorithm: Algorithm
    specs: wire.Specs
    compiled: Mapping[tuple[str, str], Callable]  # (exchange, "open" | "send" | "close")
    digest: str


def prepare(algorithm: Algorithm, x: Vector, shard: Data, config: str = "") -> Prepared:
    """See `serve` for the arguments."""
    specs = wire.exchange_specs(algorithm, x, shard)
    steps = {(name, do): wire.program(getattr(spec.exchange, do)) for name, spec in specs.items() for do in STEPS}
    return Prepared(algorithm, specs, steps, wire.fingerprint(algorithm, specs, config))


class ServedRun(NamedTuple):
    """What stays the same during a run."""

    federation: ConnectedSites
    prepared: Prepared
    key: RandomKey
    part: str
    run: str
    demands: Demands
    timeouts: Mapping[str, float]
    masking: Masking | None
    bounded: Bounded
    note_under: int | None = None  # the round of training beside which it runs; None: it is the training

    @property
    def beside(self) -> bool:
        """Whether it is something beside training, such as an evaluation."""
        return self.note_under is not None


class State(NamedTuple):
    """What a round changes."""

    server: Any
    counted: tuple[str, ...]  # per client, the mark of its last reply that counted
    tally: Tally
    traffic: dict[str, Traffic]


class TooFew(Exception):
    """An exchange had too few replies; `state` holds what was counted meanwhile."""

    def __init__(self, sentence: str, state: State, left_out: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.state = state
        self.left_out = left_out or {}  # sites whose replies did not count, and why


def serve(
    algorithm: Algorithm,
    x: Vector,
    federation: ConnectedSites,
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
    secure: SecureSums | None = None,
    progress: Progress | None = None,
    callback: Callable[[Outcome], None] | None = None,
    until: Callable[[Outcome], bool] | None = None,
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
        timeouts: seconds for the replies of an exchange, by its name; `federation.timeouts.exchange` for others.
        secure: totals are masked, and the server learns their sums only; sites have to have the same.
        progress: called after every round with (rounds done, rounds in all, the last record).
        callback: called after every `every` rounds and after the last with the outcome so far: for checkpoints. A run
            can be resumed from the newest of them only, for sites remember no further back.
        until: asked at the same times, with the same outcome; once it says True, the run ends there.
        every: how many rounds lie between two calls of `callback` and `until`.
        resume: an outcome to continue.

    Raises GivenUp or, on Ctrl-C, Stopped; the outcome until then is in `outcome` or `result`.
    """
    check(algorithm, x, federation, rounds, every, resume)
    run = resume.ledger.run if resume else run or f"{int(time.time())}-{secrets.token_hex(4)}"
    require(
        wire.NAME.fullmatch(run) and wire.NAME.fullmatch(part),
        f"run '{run}', part '{part}': give letters, digits, . _ -",
    )
    demands = demands or Demands()
    require(demands.tries >= 1, f"a round would be tried {demands.tries} times; give at least 1")
    prepared = prepare(algorithm, x, shard, config)
    masking = None if secure is None else Masking(federation, run, secure)
    bounded = Bounded(demands.bound, resume.ledger.lengths if resume else None)
    setup = ServedRun(federation, prepared, as_key(key), part, run, demands, timeouts or {}, masking, bounded)
    keep = jax.jit(record) if record else lambda server: ()
    done, before, old = (resume.rounds, resume.result.seconds, resume.ledger.events) if resume else (0, 0.0, ())
    rows = [resume.result.history] if resume and resume.result.history is not None else []
    clock = time.perf_counter()
    state = begin(algorithm, resume, algorithm.init(x) if resume is None else None)

    def outcome(rounds_done: int, state: State, last: bool = True) -> Outcome:
        joined = jax.tree.map(lambda *a: np.concatenate(a), *rows) if rows else ()
        seconds = before + time.perf_counter() - clock
        result: Result = Result(state.server, None, joined, rounds_done, state.tally, seconds, 0.0)
        new_events = federation.events[federation.reported :]
        federation.reported += last * len(new_events)
        events, crossed = (*old, *new_events), tuple(state.traffic.values())
        return Outcome(
            result, Ledger(run, federation.sites, state.counted, events, crossed, copy.deepcopy(bounded.past))
        )

    attempt, saved = 0, state.counted
    for r in range(done, rounds):
        state, attempt = counted_round(setup, r, attempt, state, saved, partial(outcome, r))
        row = jax.tree.map(np.asarray, keep(state.server))
        rows.append(jax.tree.map(lambda a: a[None], row))
        name_the_heavy(federation, algorithm.weights(state.server), demands.heavy)
        ended, due = False, (r + 1) % every == 0 or r + 1 == rounds
        if callback is not None and due:
            callback(outcome(r + 1, state, last=False))
        if until is not None and due:
            ended = until(outcome(r + 1, state, last=False))
        if callback is None or due:
            saved = state.counted
        if progress is not None:
            progress(r + 1, rounds, row)
        if ended:
            return outcome(r + 1, state)
    return outcome(rounds, state)


def ask_once(
    prepared: Prepared,
    server: Server,
    federation: ConnectedSites,
    key: RandomKey | int,
    *,
    part: str,
    run: str,
    demands: Demands,
    secure: SecureSums | None = None,
    note_under: int = 0,
    rounds: int = 1,
) -> Server:
    """The server's state after one round of something beside training, such as an evaluation.

    Args:
        prepared: from `prepare`.
        server: the state to start from.
        note_under: the round of training under which its events are noted; the training's outcome reports them.
        rounds: or after so many.

    The others are as for `serve`. Raises GivenUp where too few sites answer.
    """
    masking, bounded = None if secure is None else Masking(federation, run, secure), Bounded(demands.bound)
    setup = ServedRun(federation, prepared, as_key(key), part, run, demands, {}, masking, bounded, note_under)
    state, attempt = begin(prepared.algorithm, None, server), 0
    for r in range(rounds):
        state, attempt = counted_round(setup, r, attempt, state, state.counted, lambda _: None)
    name_the_heavy(federation, prepared.algorithm.weights(state.server), demands.heavy)
    return state.server


def server_app(main: Callable[[Grid, Context], Any]) -> ServerApp:
    """A ServerApp that runs `main(grid, context)`, which gathers the sites and serves."""
    app = ServerApp()
    app.main()(main)
    return app


def check(
    algorithm: Algorithm, x: Vector, federation: ConnectedSites, rounds: int, every: int, resume: Outcome | None
) -> None:
    n = len(federation.sites)
    check_start(algorithm, x, rounds)
    check_every(every)
    require(
        n == algorithm.n, f"there are {n} sites but {algorithm.name} was built for {algorithm.n}; build it for as many"
    )
    if resume is not None:
        done, sites = resume.rounds, resume.ledger.sites
        require(done <= rounds, f"the outcome to resume has {done} rounds already; ask for more than {done}")
        require(
            sites == federation.sites,
            f"the run to resume had the sites {', '.join(sites)}, not {', '.join(federation.sites)}; gather those",
        )


def begin(algorithm: Algorithm, resume: Outcome | None, server: Server | None) -> State:
    """The state to start from: where a run is resumed its outcome's, otherwise `server`."""
    fresh = {e.name: Traffic(e.name) for e in algorithm.round}
    if resume is None:
        return State(server, (wire.START,) * algorithm.n, Tally.nothing(algorithm), fresh)
    result, ledger = resume
    server = jax.tree.map(jnp.asarray, result.server)
    return State(server, ledger.counted, result.tally, fresh | {t.exchange: t for t in ledger.traffic})


def counted_round(
    setup: ServedRun,
    r: int,
    attempt: int,  # the last one before
    state: State,
    saved: Sequence[str],
    outcome: Callable[[State], Outcome | None],
) -> tuple[State, int]:
    """The state after a round that counts, tried as often as `demands` say, and which attempt of the run it was.

    `saved` are the clients' marks in the last checkpoint, to which a server may go back too. GivenUp and Stopped carry
    the outcome of the state before the round.
    """
    federation, tries, n = setup.federation, setup.demands.tries, setup.prepared.algorithm.n
    marks = list(zip(state.counted, saved, strict=True))
    for left in reversed(range(tries)):
        attempt = max(attempt + 1, time.time_ns() // 1_000_000)
        try:
            after = state
            for spec in setup.prepared.specs.values():
                federation.where = (r if setup.note_under is None else setup.note_under, spec.exchange.name)
                after = one_exchange(setup, spec, r, attempt, after, marks)
            if not np.isfinite(np.asarray(setup.prepared.algorithm.model(after.server))).all():
                # Such a model is in no checkpoint: resuming from it would fail as well.
                raise TooFew("the model is not finite any longer, and steps may be too long", after)
            return after, attempt
        except TooFew as few:
            tally = state.tally._replace(broken=few.state.tally.broken)  # what was asked in vain is in the events
            state = state._replace(tally=tally, traffic=few.state.traffic)
            federation.note("", "repeated" if left else "given up", str(few))
            if not left:
                why = f"exchange '{federation.where[1]}': {few}, {tries} times over"
                how = how_to_resume(few.left_out, n)
                if setup.beside:
                    raise GivenUp(f"{why}; start or resume the run {how}") from None
                raise GivenUp(
                    f"round {r}, {why}; the {r} rounds before are in `outcome` and in the last checkpoint: resume from "
                    f"there {how}",
                    outcome(state),
                ) from None
        except KeyboardInterrupt:
            if setup.beside:
                raise
            raise Stopped(outcome(state)) from None
    raise AssertionError("a round is tried at least once")


def one_exchange(
    setup: ServedRun, spec: wire.ExchangeSpec, r: int, attempt: int, state: State, marks: list[tuple[str, str]]
) -> State:
    """The state after an exchange: sends its messages, and adds up the replies as they come."""
    name, federation, demands = spec.exchange.name, setup.federation, setup.demands
    opening, working = exchange_keys(setup.key, r, spec.position)
    server, cohort = setup.prepared.compiled[name, "open"](state.server, opening)
    ids = np.asarray(cohort.ids)
    site_of = {int(s): federation.sites[ids[s]] for s in np.flatnonzero(cohort.present)}
    wanted = [site for site in {*site_of.values()} if site not in federation.without]
    timeout = setup.timeouts.get(name, federation.timeouts.exchange)
    needed = min(demands.least, len(wanted))
    federation.find(wanted, needed=needed, seconds=timeout)
    masked = begin_masked(setup, spec, state, [*site_of.values()], timeout)
    words = key_words(working, jnp.arange(len(ids))).tolist()
    under_way = UnderWay(setup, spec, state, server, cohort, site_of, masked)
    messages = under_way.messages(r, attempt, words, marks, timeout)

    seconds, start = dict[str, float](), time.monotonic()
    past = federation.times.setdefault(f"{setup.part}/{name}", deque(maxlen=REMEMBERED))
    limit = deadline(demands, timeout, past, sum(site in federation.nodes for site in site_of.values()))
    # What happens beside training does not wait for a site that training does not wait for.
    hopeless = (lambda s: site_of[s] not in federation.nodes) if setup.beside else None
    size = nbytes(under_way.shapes)
    for s, delivery in federation.deliver(messages, limit, reply_bytes=size, hopeless=hopeless):
        came = time.monotonic() - start
        if under_way.receive(s, delivery):
            seconds[site_of[s]] = came
    under_way.settle()
    past.extend(seconds.values())
    before, now = state.traffic[name], under_way.traffic
    exchange = {"kind": "exchange", "part": setup.part, "round": federation.where[0], "exchange": name}
    times = {"asked": len(wanted), "seconds": time.monotonic() - start, "sites": seconds}
    sizes = {"bytes_down": now.down - before.down, "bytes_up": now.up - before.up}
    federation.observe(exchange | times | sizes)
    state = State(server, state.counted, under_way.tally, state.traffic | {name: now})
    slots = under_way.replies.slots
    heard = len({site_of[s] for s in slots})
    if heard < needed:
        why = f"{heard} of {len(wanted)} sites answered and {needed} are needed"
        raise TooFew(why, state, under_way.left_out_for)
    folded = under_way.fold(state, timeout)
    state.tally.asked[spec.position] += len(site_of)
    state.tally.answered[spec.position] += len(slots)
    server = setup.prepared.compiled[name, "close"](server, folded)
    under_way.lengths.learn(slots, None if masked is None else folded.total)
    counted = list(state.counted)
    if spec.exchange.writes:
        for s in slots:
            counted[ids[s]] = wire.mark(attempt, r, spec.position)
    return state._replace(server=server, counted=tuple(counted))


class UnderWay:
    """An exchange whose messages go out while replies come in."""

    def __init__(
        self,
        setup: ServedRun,
        spec: wire.ExchangeSpec,
        state: State,
        server: Server,
        cohort: Cohort,
        site_of: Mapping[int, str],  # slot -> site
        masked: MaskedExchange | None,
    ):
        self.setup, self.spec, self.state = setup, spec, state
        self.server, self.site_of, self.masked = server, site_of, masked
        self.number = {site: i for i, site in enumerate(setup.federation.sites)}  # of each client
        name = spec.exchange.name
        self.shapes = spec.reply if masked is None else masked.reply
        self.traffic = state.traffic[name]
        self.replies = Collected(spec.reply, cohort, None if masked is None else masked.summation)
        self.lengths = Heard(setup.bounded, name, len(site_of))
        self.tally = jax.tree.map(np.copy, state.tally)
        self.given: dict[int, float | None] = {}  # slot -> the weight that the reply has to have
        self.waiting: dict[int, tuple[Delivery, Reply]] = {}  # until it is clear whether they are out of all proportion
        self.left_out_for: dict[str, str] = {}

    def messages(
        self, r: int, attempt: int, words: list, marks: list[tuple[str, str]], timeout: float
    ) -> Iterator[tuple[int, Message]]:
        """A message to every client of the cohort whose site is connected."""
        setup, spec, masked, federation = self.setup, self.spec, self.masked, self.setup.federation
        name, counted = spec.exchange.name, self.state.counted

        def send(i: int) -> Any:
            return setup.prepared.compiled[name, "send"](self.server, jnp.int32(i))

        alike = wire.pack(send(0)) if spec.alike else None
        if masked is not None:
            slot_of = {site: s for s, site in self.site_of.items()}
            members = [self.number[site] for site in masked.batch.members]
            masked.tell([counted[i] for i in members], [words[slot_of[site]] for site in masked.batch.members])
            alike = alike or wire.pack(spec.joined([send(i) for i in members]))
        for s, site in self.site_of.items():
            i, since = self.number[site], counted[self.number[site]]
            if site in federation.without:
                continue
            node = federation.nodes.get(site)
            if node is None or (masked is not None and site not in masked.batch.members):
                federation.note(site, "absent", f"'{site}' is not there")
                continue
            keep = [*{*marks[i]} - {since}]
            where = wire.Address(
                setup.part, setup.run, attempt, r, name, s, words[s], since, keep, setup.prepared.digest
            )
            sent = send(i) if alike is None else None
            if masked is None:
                self.given[s] = given_weight(sent, unit=spec.exchange.unit)
            arrays = wire.pack(sent) if alike is None else alike
            content = RecordDict({"at": wire.address(where), "message": arrays})
            if masked is not None:
                content["mask"] = masked.header
                masked.sent(where, arrays)
            message = Message(content, node, "train.exchange", ttl=max(timeout, 1.0), group_id=str(r))
            inside = node in federation.inline and wire.content_bytes(message) <= INLINE
            now = self.traffic
            framed = now.down_framing or wire.framing(message, inside)  # other messages have the same
            down = now.down + nbytes(spec.message)
            self.traffic = now._replace(sent=now.sent + 1, down=down, down_framing=framed)
            yield s, message

    def receive(self, s: int, delivery: Delivery) -> bool:
        """Whether a reply came that can be read; it counts as soon as it is not out of all proportion."""
        site, federation = self.site_of[s], self.setup.federation
        held = delivery.content is not None and "reply" in delivery.content
        try:
            wire.refuse_unless(held, "there is no reply")
            reply = wire.unpack(not_none(delivery.content)["reply"], self.shapes)
            wire.check_values(reply)
        except wire.Refusal as refusal:
            what, why = delivery.what, delivery.why
            what, why = ("broken", str(refusal)) if held else (what, why)
            self.leave_out(s, what, why)
            if wire.NOT_TOLD in why:
                federation.tell_agreement(site)
            if what == "late" and not self.setup.beside:
                federation.suspect(site)
            return False
        weight = self.given.get(s)
        if weight is not None and self.setup.demands.bound is not None and weighs_otherwise(reply, weight):
            self.leave_out(s, "broken", "its weight is not the one that it was given (federation.bound)")
            return True
        self.waiting[s] = (delivery, reply)
        self.lengths.add(s, site, reply)
        for ready in [t for t in self.waiting if not self.lengths.why_not(t)]:
            self.count(ready)
        return True

    def settle(self) -> None:
        """Decides on those that waited for others, which have all come by now."""
        for s in list(self.waiting):
            why = self.lengths.why_not(s, complete=True)
            if why:
                self.leave_out(s, "broken", why)
            else:
                self.count(s)

    def count(self, s: int) -> None:
        delivery, reply = self.waiting.pop(s)
        federation, now, message, size = self.setup.federation, self.traffic, delivery.message, nbytes(self.shapes)
        inside = federation.nodes.get(self.site_of[s]) in federation.inline and size <= INLINE
        framed = now.up_framing or (0 if message is None else wire.framing(message, inside))
        self.traffic = now._replace(received=now.received + 1, up=now.up + size, up_framing=framed)
        self.replies.add(s, reply)

    def leave_out(self, s: int, what: What, why: str) -> None:
        site = self.site_of[s]
        self.setup.federation.note(site, what, why)
        if what == "broken":
            self.left_out_for[site] = why
            self.tally.broken[self.number[site]] += 1

    def fold(self, state: State, timeout: float) -> Replies:
        """The sum of the replies that count; masks are taken off for it."""
        if self.masked is None:
            return self.replies.folded()
        why = self.masked.open([self.site_of[s] for s in self.replies.slots], timeout)
        if why:
            raise TooFew(why, state)
        folded = self.replies.folded()
        why = self.lengths.why_not_sum(folded.total)
        if why:
            raise TooFew(f"{why}; masks hide whose reply did it: leave out one site after the other", state)
        return folded


def begin_masked(
    setup: ServedRun, spec: wire.ExchangeSpec, state: State, asked: list[str], timeout: float
) -> MaskedExchange | None:
    """The masks of an exchange; None where nothing is to be masked."""
    if setup.masking is None or not jax.tree.leaves(spec.reply.total):
        return None
    require(
        len({*asked}) == len(asked),
        f"the exchange '{spec.exchange.name}' asks a site twice, which a masked sum cannot; draw cohorts without "
        "repetition, or leave out federation.secure",
    )
    everybody = len(asked) == len(setup.federation.sites)
    ahead = setup.masking.settings.exchanges if everybody else len(setup.prepared.specs)
    masked = setup.masking.begin(spec, asked, timeout, ahead=ahead)
    if masked is None:
        raise TooFew(f"fewer than {FEWEST} sites could prepare a masked sum", state)
    return masked


def how_to_resume(left_out: Mapping[str, str], asked: int) -> str:
    """What to do about a run that was given up."""
    if not left_out:
        return "when the sites are back"
    if 2 * len(left_out) > asked:
        return f"if you can; of {asked} replies {len(left_out)} could not be used, so that {SPOILT}"
    said = "; ".join(f"'{site}' was left out: {why}" for site, why in left_out.items())
    return f"without {', '.join(left_out)}: equipoise flower server --without {next(iter(left_out))} ({said})"


@jax.jit
def key_words(working: RandomKey, slots: Int[Array, " slots"]) -> Array:
    """The random key of every slot, in words."""
    return jax.random.key_data(jax.vmap(lambda slot: slot_key(working, slot))(slots))


def name_the_heavy(federation: ConnectedSites, lam: ArrayLike | None, most: float) -> None:
    """A warning, once for each site, when one site's loss is nearly all that counts."""
    if lam is None or len(federation.sites) == 1:
        return
    share = np.asarray(lam) / np.sum(np.asarray(lam))
    site, named = federation.sites[int(np.argmax(share))], {e.site for e in federation.events if e.what == "heavy"}
    if share.max() > most and site not in named:
        why = (
            f"'{site}' has {share.max():.0%} of the weight: the model is fitted to it nearly alone. If its losses are "
            "right, that is what the objective asks for; if not, cap weights or clip losses (docs/flower.md)"
        )
        federation.warn(site, "heavy", why)
