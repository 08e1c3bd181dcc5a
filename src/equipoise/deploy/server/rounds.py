"""The server's side: an algorithm's rounds, exchange by exchange, with whoever answers in time.

A round counts as a whole or not at all. It is repeated from its beginning when too few sites answer, and after a few
repetitions the run is given up with all finished rounds in hand. Clients go along: every message says which of a
client's replies was the last to count (`messages.Address`), so that a reply that got lost leaves no trace at the client
either, as in the simulator.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from equipoise.deploy.server.lengths import Bounded, given_weight, weighs_otherwise
from equipoise.deploy.server.sites import ConnectedSites, Delivery, Limit, why_not
from equipoise.deploy.wire.messages import (
    NAME,
    NOT_TOLD,
    START,
    Address,
    ExchangeSpec,
    Refusal,
    Specs,
    address,
    check_values,
    content_bytes,
    exchange_specs,
    fingerprint,
    framing,
    mark,
    pack,
    program,
    refuse_unless,
    unpack,
)
from equipoise.deploy.wire.secure import MaskedExchange, Masking, SecureSums
from equipoise.deploy.wire.transport import INLINE
from equipoise.engines.checks import check_every, check_start
from equipoise.engines.fold import Collected
from equipoise.engines.simulator import Progress, Result, Tally
from equipoise.errors import Stopped, require
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
    exchange_keys,
    nbytes,
    slot_key,
)

STEPS = ("open", "send", "close")
BLANK: tuple = (None, 0, 0.0, ())
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


def deadline(demands: Demands, timeout: float, past: Sequence[float], asked: int) -> Limit:
    """Until when to wait in an exchange, by how many have answered; `past` are the seconds of replies to it so far."""
    early = timeout
    if demands.quantile is not None and len(past) >= ENOUGH:
        early = min(timeout, max(SHORTEST, demands.slack * float(np.quantile(past, demands.quantile))))
    quorum = math.ceil(demands.quorum * asked)
    return lambda answered: early if answered >= quorum else timeout


class Prepared(NamedTuple):
    """An algorithm that is ready to be served, more than once without compiling again."""

    algorithm: Algorithm
    specs: Specs
    compiled: Mapping[tuple[str, str], Callable]  # (exchange, "open" | "send" | "close")
    digest: str


def prepare(algorithm: Algorithm, x: Vector, shard: Data, config: str = "") -> Prepared:
    """See `serve` for the arguments."""
    specs = exchange_specs(algorithm, x, shard)
    steps = {(name, do): program(getattr(spec.exchange, do)) for name, spec in specs.items() for do in STEPS}
    return Prepared(algorithm, specs, steps, fingerprint(algorithm, specs, config))


class ServedRun(NamedTuple):
    """What stays the same during a run."""

    federation: ConnectedSites
    specs: Specs
    compiled: Mapping[tuple[str, str], Callable]
    key: RandomKey
    part: str
    run: str
    digest: str
    demands: Demands
    timeouts: Mapping[str, float]
    masking: Masking | None
    note_under: int | None
    bounded: Bounded


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
    key = key if isinstance(key, jax.Array) else jax.random.key(key)
    check(algorithm, x, federation, rounds, every, resume)
    run = resume.ledger.run if resume else run or f"{int(time.time())}-{secrets.token_hex(4)}"
    require(NAME.fullmatch(run) and NAME.fullmatch(part), f"run '{run}', part '{part}': give letters, digits, . _ -")
    _, specs, steps, digest = prepare(algorithm, x, shard, config)
    demands = demands or Demands()
    require(demands.tries >= 1, f"a round would be tried {demands.tries} times; give at least 1")
    masking = None if secure is None else Masking(federation, run, secure)
    bounded = Bounded(demands.bound, resume.ledger.lengths if resume else None)
    setup = ServedRun(federation, specs, steps, key, part, run, digest, demands, timeouts or {}, masking, None, bounded)
    keep = jax.jit(record) if record else lambda server: ()

    past, done, before, old = (*resume.result[2:4], resume.result.seconds, resume.ledger.events) if resume else BLANK
    clock = time.perf_counter()
    state = begin(algorithm, resume, algorithm.init(x) if resume is None else None)
    history: list[PyTree] = []

    def outcome(rounds_done: int, state: State, last: bool = True) -> Outcome:
        new = [jax.tree.map(lambda a: a[None], row) for row in history]
        rows = [*([] if past is None else [past]), *new]
        joined = jax.tree.map(lambda *a: np.concatenate(a), *rows) if rows else ()
        seconds = before + time.perf_counter() - clock
        result: Result = Result(state.server, None, joined, rounds_done, state.tally, seconds, 0.0)
        new_events = federation.events[federation.reported :]
        federation.reported += last * len(new_events)
        events, crossed = (*old, *new_events), tuple(state.traffic.values())
        return Outcome(result, Ledger(run, federation.sites, state.counted, events, crossed, bounded.saved()))

    attempt, saved = 0, state.counted
    for r in range(done, rounds):
        began = state
        for t in range(demands.tries):
            attempt = max(attempt + 1, time.time_ns() // 1_000_000)
            marks = list(zip(began.counted, saved, strict=True))
            try:
                state = one_round(setup, r, attempt, began, marks)
                check_model(algorithm, state)
                break
            except TooFew as few:
                tally = began.tally._replace(broken=few.state.tally.broken)  # what was asked in vain is in the events
                began = began._replace(tally=tally, traffic=few.state.traffic)
                last, where = t + 1 == demands.tries, f"round {r}, exchange '{federation.where[1]}'"
                federation.note("", "given up" if last else "repeated", str(few))
                if last:
                    raise GivenUp(
                        f"{where}: {few}, {demands.tries} times over; the {r} rounds before are in `outcome` and in "
                        f"the last checkpoint: resume from there {how_to_resume(few.left_out, algorithm.n)}",
                        outcome(r, began),
                    ) from None
            except KeyboardInterrupt:
                raise Stopped(outcome(r, began)) from None
        history.append(jax.tree.map(np.asarray, keep(state.server)))
        name_the_heavy(federation, algorithm.weights(state.server), demands.heavy)
        ended, due = False, (r + 1) % every == 0 or r + 1 == rounds
        if callback is not None and due:
            callback(outcome(r + 1, state, last=False))
        if until is not None and due:
            ended = until(outcome(r + 1, state, last=False))
        if callback is None or due:
            saved = state.counted
        if progress is not None:
            progress(r + 1, rounds, history[-1])
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
) -> Server:
    """The server's state after one round of something beside training, such as an evaluation.

    Args:
        prepared: from `prepare`.
        server: the state to start from.
        note_under: the round of training under which its events are noted; the training's outcome reports them.

    The others are as for `serve`. Raises GivenUp where too few sites answer.
    """
    algorithm, specs, steps, digest = prepared
    key = key if isinstance(key, jax.Array) else jax.random.key(key)
    masking = None if secure is None else Masking(federation, run, secure)
    bounded = Bounded(demands.bound, None)
    setup = ServedRun(federation, specs, steps, key, part, run, digest, demands, {}, masking, note_under, bounded)
    state, attempt = begin(algorithm, None, server), 0
    marks = [(START, START)] * algorithm.n
    for tried in range(1, demands.tries + 1):
        attempt = max(attempt + 1, time.time_ns() // 1_000_000)
        try:
            after = one_round(setup, 0, attempt, state, marks)
            check_model(algorithm, after)
            break
        except TooFew as few:
            last = tried == demands.tries
            federation.note("", "given up" if last else "repeated", str(few))
            if last:
                where, how = federation.where[1], how_to_resume(few.left_out, algorithm.n)
                raise GivenUp(
                    f"exchange '{where}': {few}, {demands.tries} times over; start or resume the run {how}"
                ) from None
    name_the_heavy(federation, algorithm.weights(after.server), demands.heavy)
    return after.server


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
        return State(server, (START,) * algorithm.n, Tally.nothing(algorithm), fresh)
    result, ledger = resume
    server = jax.tree.map(jnp.asarray, result.server)
    return State(server, ledger.counted, result.tally, fresh | {t.exchange: t for t in ledger.traffic})


def one_round(setup: ServedRun, r: int, attempt: int, state: State, marks: list[tuple[str, str]]) -> State:
    """All exchanges of a round; `marks` are, per client, the states that may be gone back to."""
    for spec in setup.specs.values():
        setup.federation.where = (r if setup.note_under is None else setup.note_under, spec.exchange.name)
        state = one_exchange(setup, spec, r, attempt, state, marks)
    return state


def one_exchange(
    setup: ServedRun, spec: ExchangeSpec, r: int, attempt: int, state: State, marks: list[tuple[str, str]]
) -> State:
    """Sends, and folds in what comes, as it comes."""
    name, federation, demands = spec.exchange.name, setup.federation, setup.demands
    opening, working = exchange_keys(setup.key, r, spec.position)
    server, cohort = setup.compiled[name, "open"](state.server, opening)
    ids = np.asarray(cohort.ids)
    clients = {int(s): int(ids[s]) for s in np.flatnonzero(cohort.present)}  # slot -> client
    wanted = [site for i in {*clients.values()} if (site := federation.sites[i]) not in federation.without]
    asked, timeout = len(wanted), setup.timeouts.get(name, federation.timeouts.exchange)
    needed = min(demands.least, asked)
    federation.find(wanted, needed=needed, seconds=timeout)
    masked = begin_masked(setup, spec, state, clients, timeout)
    words = key_words(working, jnp.arange(len(ids))).tolist()
    under_way = UnderWay(setup, spec, state, server, cohort, clients, masked)
    messages = under_way.messages(r, attempt, words, marks, timeout)

    seconds, start = {}, time.monotonic()
    past = federation.times.setdefault(f"{setup.part}/{name}", [])
    there = sum(federation.sites[i] in federation.nodes for i in clients.values())
    limit = deadline(demands, timeout, past, there)
    hopeless = None if setup.note_under is None else under_way.left_by_training
    size = nbytes(under_way.shapes)
    for s, delivery in federation.deliver(messages, limit, reply_bytes=size, hopeless=hopeless):
        came = time.monotonic() - start
        if under_way.receive(s, delivery):
            seconds[under_way.site(s)] = came
    under_way.settle()
    past += seconds.values()
    del past[:-REMEMBERED]
    traffic = under_way.traffic
    federation.observe(
        {
            "kind": "exchange",
            "part": setup.part,
            "round": federation.where[0],
            "exchange": name,
            "asked": asked,
            "seconds": time.monotonic() - start,
            "sites": seconds,
            "bytes_down": traffic.now.down - traffic.before.down,
            "bytes_up": traffic.now.up - traffic.before.up,
        }
    )
    state = State(server, state.counted, under_way.tally, state.traffic | {name: traffic.now})
    slots = under_way.replies.slots
    heard = len({clients[s] for s in slots})
    if heard < needed:
        raise TooFew(f"{heard} of {asked} sites answered and {needed} are needed", state, under_way.left_out_for)
    folded = under_way.fold(state, timeout)
    state.tally.asked[spec.position] += len(clients)
    state.tally.answered[spec.position] += len(slots)
    server = setup.compiled[name, "close"](server, folded)
    under_way.lengths.learn(slots, None if masked is None else folded.total)
    counted = list(state.counted)
    if spec.exchange.writes:
        for s in slots:
            counted[clients[s]] = mark(attempt, r, spec.position)
    return state._replace(server=server, counted=tuple(counted))


class UnderWay:
    """An exchange whose messages go out while replies come in."""

    def __init__(
        self,
        setup: ServedRun,
        spec: ExchangeSpec,
        state: State,
        server: Server,
        cohort: Cohort,
        clients: Mapping[int, int],
        masked: MaskedExchange | None,
    ):
        self.setup, self.spec, self.state = setup, spec, state
        self.server, self.clients, self.masked = server, clients, masked
        name = spec.exchange.name
        self.shapes = spec.reply if masked is None else masked.reply
        self.traffic = Count(state.traffic[name], nbytes(spec.message), nbytes(self.shapes))
        self.replies = Collected(spec.reply, cohort, None if masked is None else masked.summation)
        self.lengths = setup.bounded.cohort(name, len(clients))
        self.tally = jax.tree.map(np.copy, state.tally)
        self.given: dict[int, float | None] = {}  # slot -> the weight that the reply has to have
        self.waiting: dict[int, tuple[Delivery, Reply]] = {}  # until it is clear whether they are out of all proportion
        self.left_out_for: dict[str, str] = {}

    def messages(
        self, r: int, attempt: int, words: list, marks: list[tuple[str, str]], timeout: float
    ) -> Iterator[tuple[int, Message]]:
        """To every client of the cohort whose site is there."""
        setup, spec, masked, federation = self.setup, self.spec, self.masked, self.setup.federation
        name, counted = spec.exchange.name, self.state.counted

        def send(i: int) -> Any:
            return setup.compiled[name, "send"](self.server, jnp.int32(i))

        alike = pack(send(0)) if spec.alike else None
        if masked is not None:
            slot_of = {federation.sites[i]: (s, i) for s, i in self.clients.items()}
            slots = [slot_of[name] for name in masked.batch.members]
            masked.tell([counted[i] for _, i in slots], [words[s] for s, _ in slots])
            alike = alike or pack(spec.joined([send(i) for _, i in slots]))
        for s, i in self.clients.items():
            site, since = federation.sites[i], counted[i]
            if site in federation.without:
                continue
            node = federation.nodes.get(site)
            if node is None or (masked is not None and site not in masked.batch.members):
                federation.note(site, "absent", f"'{site}' is not there")
                continue
            keep = [*{*marks[i]} - {since}]
            where = Address(setup.part, setup.run, attempt, r, name, s, words[s], since, keep, setup.digest)
            sent = send(i) if alike is None else None
            if masked is None:
                self.given[s] = given_weight(sent, unit=spec.exchange.unit)
            arrays = pack(sent) if alike is None else alike
            content = RecordDict({"at": address(where), "message": arrays})
            if masked is not None:
                content["mask"] = masked.header
                masked.sent(where, arrays)
            message = federation.message(content, node, round=r, ttl=timeout)
            self.traffic.sent(message, node in federation.inline and content_bytes(message) <= INLINE)
            yield s, message

    def left_by_training(self, s: int) -> bool:
        """What happens beside training does not wait for a site that training does not wait for."""
        return self.site(s) not in self.setup.federation.nodes

    def site(self, s: int) -> str:
        return self.setup.federation.sites[self.clients[s]]

    def receive(self, s: int, delivery: Delivery) -> bool:
        """Whether a reply came that can be read; it counts as soon as it is not out of all proportion."""
        site, federation = self.site(s), self.setup.federation
        try:
            reply = accepted(delivery, self.shapes)
        except Refusal as refusal:
            held = delivery.content is not None and "reply" in delivery.content
            reason: tuple[What, str] = ("broken", str(refusal)) if held else why_not(delivery)
            what, why = reason
            self.leave_out(s, what, why)
            if NOT_TOLD in why:
                federation.tell_agreement(site)
            if what == "late" and self.setup.note_under is None:
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
        federation = self.setup.federation
        inside = federation.nodes.get(self.site(s)) in federation.inline and nbytes(self.shapes) <= INLINE
        self.traffic.received(delivery.message, inside)
        self.replies.add(s, reply)

    def leave_out(self, s: int, what: What, why: str) -> None:
        site = self.site(s)
        self.setup.federation.note(site, what, why)
        if what == "broken":
            self.left_out_for[site] = why
            self.tally.broken[self.clients[s]] += 1

    def fold(self, state: State, timeout: float) -> Replies:
        """What counted, summed up; masks are opened for that."""
        if self.masked is None:
            return self.replies.folded()
        why = self.masked.open([self.site(s) for s in self.replies.slots], timeout)
        if why:
            raise TooFew(why, state)
        folded = self.replies.folded()
        why = self.lengths.why_not_sum(folded.total)
        if why:
            raise TooFew(f"{why}; masks hide whose reply did it: leave out one site after the other", state)
        return folded


def begin_masked(
    setup: ServedRun, spec: ExchangeSpec, state: State, clients: Mapping[int, int], timeout: float
) -> MaskedExchange | None:
    """The masks of an exchange; None where nothing is to be masked."""
    if setup.masking is None or not jax.tree.leaves(spec.reply.total):
        return None
    asked = [setup.federation.sites[i] for i in clients.values()]
    require(
        len({*asked}) == len(asked),
        f"the exchange '{spec.exchange.name}' asks a site twice, which a masked sum cannot; draw cohorts without "
        "repetition, or leave out federation.secure",
    )
    everybody = len(asked) == len(setup.federation.sites)
    ahead = setup.masking.settings.exchanges if everybody else len(setup.specs)
    masked = setup.masking.begin(spec, asked, timeout, ahead=ahead)
    if masked is None:
        raise TooFew(f"fewer than {FEWEST} sites could prepare a masked sum", state)
    return masked


def check_model(algorithm: Algorithm, state: State) -> None:
    """A model that has become infinite is in no checkpoint: resuming from it would fail as well."""
    if not np.isfinite(np.asarray(algorithm.model(state.server))).all():
        raise TooFew("the model is not finite any longer, and steps may be too long", state)


def how_to_resume(left_out: Mapping[str, str], asked: int) -> str:
    """What whoever reads that a run was given up can do."""
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


def accepted(delivery: Delivery, like: Reply) -> Reply:
    """The reply in a delivery, if it is what was agreed and its numbers can be reckoned with; else a Refusal."""
    content = delivery.content or RecordDict()
    refuse_unless("reply" in content, "there is no reply")
    reply = unpack(content["reply"], like)
    check_values(reply)
    return reply


class Count:
    """The traffic of one exchange; framing is taken of the first message and reply, as others have the same."""

    def __init__(self, before: Traffic, message_bytes: int, reply_bytes: int):
        self.before, self.now, self.bytes = before, before, (message_bytes, reply_bytes)

    def sent(self, message: Message, inside: bool) -> None:
        now, (size, _) = self.now, self.bytes
        framed = now.down_framing or framing(message, inside)
        self.now = now._replace(sent=now.sent + 1, down=now.down + size, down_framing=framed)

    def received(self, message: Message | None, inside: bool) -> None:
        now, (_, size) = self.now, self.bytes
        framed = now.up_framing or (0 if message is None else framing(message, inside))
        self.now = now._replace(received=now.received + 1, up=now.up + size, up_framing=framed)


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
