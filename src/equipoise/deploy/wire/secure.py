"""Masked sums over the network: the server relays keys and shares between sites, and learns sums.

The totals of an exchange come as integers that say nothing by themselves (`equipoise.privacy`); when all have answered,
those who did are asked for what takes the masks off the sum. Sites keep a batch of exchanges prepared, among those who
are there; when somebody goes or comes, another one is. Nothing in an algorithm knows.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.deploy.server.sites import ConnectedSites
from equipoise.deploy.wire.messages import Address, ExchangeSpec, fields, program, unpack
from equipoise.engines.summation import Summation
from equipoise.errors import Refusal, StopRun, refuse_unless
from equipoise.privacy import fixed_point, masks, shamir, unmasking
from equipoise.privacy.fixed_point import Integers
from equipoise.privacy.site_masks import FEWEST, About, SiteMasks, check_weights, keys_length, least_threshold
from equipoise.privacy.unmasking import Batch
from equipoise.protocol import Algorithm, Reply, Vector
from equipoise.steps.rules import StepSizes
from equipoise.tensors import named

QUESTION = "secure"
MOST_ROUNDS = 1_000_000  # whose step sizes a site reckons
HIGHEST = 2.0  # of a weight that a site keeps itself, of which all are near 1 together


class SecureSums(NamedTuple):
    """How totals are masked; server and sites have to have the same."""

    bound: float = 2.0**20  # of every number in a total; a site does not send one that is larger
    threshold: int | None = None  # sites that open a sum together; None: all but one
    exchanges: int = 64  # that are prepared at once where everybody takes part


class SecureSite(NamedTuple):
    """A site that sends no total but masked."""

    masks: SiteMasks
    bound: float = SecureSums().bound


def subject_of(where: Address, header: Mapping[str, object], arrays: ArrayRecord) -> bytes:
    """What a sum is about, in 32 bytes: all that its members are sent, whoever asks for it again and whenever."""
    parts: list[Any] = [where.part, where.exchange, str(header.get("keys")), str(header.get("since"))]
    for name, array in sorted(arrays.items()):
        parts += [name, array.dtype, str(list(array.shape)), array.data]
    return masks.digest_of(parts)


def context_of(where: Address, header: Mapping[str, object], arrays: ArrayRecord) -> bytes:
    """The same of one exchange: members that were sent anything else add masks that do not cancel."""
    of_exchange = header.get("batch"), header.get("exchange")
    coordinates = where.run, where.attempt, where.round, where.plan, *of_exchange
    return masks.digest_of([*map(str, coordinates), subject_of(where, header, arrays)])


# At a site.


def answer_step(secure: SecureSite | None, content: RecordDict) -> RecordDict:
    if secure is None:
        raise Refusal("this site takes no part in masked sums; set federation.secure")
    question = fields(content, "question")
    if question is None:
        raise Refusal("the message is no step of a masked sum")
    return RecordDict({"answer": ConfigRecord(secure.masks.answer(question))})


def check_masked(secure: SecureSite | None, spec: ExchangeSpec, content: RecordDict) -> None:
    """Before any row is touched: a total leaves the site masked, or not at all."""
    total, asked = bool(jax.tree.leaves(spec.reply.total)), isinstance(content.get("mask"), ConfigRecord)
    refuse_unless(secure is None or asked or not total, "this site sends totals masked, and was asked for a plain one")
    refuse_unless(not asked or (secure is not None and total), "this site was asked for a mask and has none")


def read_message(
    secure: SecureSite | None, spec: ExchangeSpec, where: Address, content: RecordDict
) -> tuple[Any, list[dict[str, float]]]:
    """This site's part of what all members of a sum were sent, and their weights if there are any in it.

    Without masks, what it was sent.
    """
    if secure is None or "mask" not in content:
        return unpack(content.get("message"), spec.message), []
    header = fields(content, "mask") or {}
    members = secure.masks.members({**header, "run": where.run})
    k = members.index(secure.masks.name)
    for what, mine in (("since", [where.since]), ("keys", where.key)):
        rows, width = header.get(what), len(mine)
        said = isinstance(rows, list) and len(rows) == width * len(members) and rows[k * width : (k + 1) * width]
        refuse_unless(said == mine, "the message says something else to this site than to all members of the sum")
    table, weights = unpack(content.get("message"), spec.table(len(members))), list[np.ndarray]()
    for leaf, varies in zip(jax.tree.leaves(table), jax.tree.leaves(spec.varies), strict=True):
        if varies and np.issubdtype(leaf.dtype, np.integer):
            refuse_unless(len({*leaf.ravel().tolist()}) == len(members), "two sites would have the same number")
        elif varies:
            weights.append(leaf)
    if spec.exchange.weights is not None:
        weights.append(np.asarray(spec.exchange.weights(table)))
    for some in weights:
        check_weights(some, secure.masks.limits().weight)
    return spec.row(table, k), [dict(zip(members, some.tolist(), strict=True)) for some in weights]


def check_own_weight(weight: ArrayLike, members: int, most: float) -> None:
    """Where each site keeps its own weight and nobody knows all: a band in which no site can have more than `most`.

    `members` are as many as have to answer, as a site that is missing adds nothing.
    """
    low = lowest_weight(members, most)
    if not low <= float(np.asarray(weight)) <= HIGHEST:
        raise StopRun(
            f"this site's own weight has left the range {low:.2g} to {HIGHEST:g}, in which no site has more than "
            f"{most:g} of a masked sum: set a larger objective.rho, or let the sites say most_weight in site.toml"
        )


class AgreedSteps:
    """The largest step sizes of the weights that the agreed rule gives, round by round: sites reckon them too."""

    def __init__(self, algorithm: Algorithm, x: Vector):
        self.open, self.server = program(algorithm.round[0].open), algorithm.init(x)
        self.largest: list[dict[str, float]] = []

    def check(self, round: int, message: PyTree) -> None:
        """A Refusal where a message has larger ones."""
        given = {name.rpartition(".")[2]: a for name, a in named(message)}
        for what in {"sigma", "theta"} & given.keys():
            refuse_unless(round < MOST_ROUNDS, f"there is no round {round}")
            while len(self.largest) <= round:
                self.server, _ = self.open(self.server, jax.random.key(0))
                parts = jax.tree.leaves(self.server, is_leaf=lambda part: isinstance(part, StepSizes))
                steps = [part for part in parts if isinstance(part, StepSizes)]
                self.largest.append({w: max(float(getattr(s, w)) for s in steps) for w in ("sigma", "theta")})
            most = self.largest[round][what]
            refuse_unless(
                np.isfinite(given[what]) and 0 <= float(given[what]) <= most * (1 + 1e-5),
                f"{what} is {float(given[what]):.4g}, and the agreed rule gives {most:.4g} in this round",
            )


def lowest_weight(members: int, most: float) -> float:
    """With all weights between it and HIGHEST, none is more than `most` of the sum of all."""
    return HIGHEST * (1 - most) / (most * max(members - 1, 1))


def masked(
    secure: SecureSite,
    spec: ExchangeSpec,
    where: Address,
    content: RecordDict,
    reply: Reply,
    weights: Sequence[Mapping[str, float]] = (),
) -> Reply:
    """The reply, with its total hidden; `weights` are what all members count for."""
    header, arrays = fields(content, "mask") or {}, content.array_records["message"]
    context, subject = context_of(where, header, arrays), subject_of(where, header, arrays)
    place = masks.digest_of([where.part, where.run, where.round, where.exchange])

    def encode(n: int, fewest: int) -> Integers:
        if spec.exchange.counts is not None:
            check_own_weight(spec.exchange.counts(reply), fewest, secure.masks.limits().weight)
        return fixed_point.encode(reply.total, n, secure.bound)

    about = About(subject.hex(), place.hex(), where.plan)
    return reply._replace(total=secure.masks.mask({**header, "run": where.run}, encode, context, about, weights))


# At the server.


class MaskedExchange:
    """One exchange whose totals are masked."""

    def __init__(self, masking: "Masking", spec: ExchangeSpec, batch: Batch, exchange: int):
        self.masking, self.spec, self.batch, self.exchange = masking, spec, batch, exchange
        self.size, self.context = fixed_point.length(spec.reply.total), b""
        self.header = ConfigRecord({"batch": batch.batch, "exchange": exchange})
        hidden = jax.ShapeDtypeStruct((self.size,), np.uint64)
        self.reply = Reply(hidden, spec.reply.each)
        self.secrets: unmasking.Secrets | None = None

    def tell(self, since: Sequence[str], keys: Sequence[Sequence[int]]) -> None:
        """Says to all members what each of them is told: the state to start from, and its random key."""
        more: Any = {"since": [*since], "keys": [word for key in keys for word in key]}
        self.header = ConfigRecord({**self.header, **more})

    def sent(self, where: Address, arrays: ArrayRecord) -> None:
        """Called with any of the messages: what is on them goes into the masks."""
        self.context = context_of(where, self.header, arrays)

    @property
    def summation(self) -> Summation:
        def finish(total: Integers) -> PyTree[np.ndarray]:
            assert self.secrets is not None
            integers = unmasking.unmasked(total, self.batch, self.exchange, self.secrets, self.context)
            return fixed_point.decode(
                integers, self.spec.reply.total, len(self.batch.members), self.masking.settings.bound
            )

        return Summation(lambda like: np.zeros(self.size, np.uint64), np.add, finish)

    def open(self, answered: Sequence[str], timeout: float) -> str:
        """Asks for what takes the masks off the sum over `answered`; says why it cannot be, or nothing."""
        members = self.batch.members
        missing = [name for name in members if name not in answered]
        question = {"exchange": self.exchange, "answered": [*answered], "missing": missing}
        shares: dict[str, list[bytes]] = {}
        why = f"{len(answered)} sites answered, too few to open their sum"
        for name, answer in self.masking.ask("open", self.batch, dict.fromkeys(answered, question), timeout):
            given: Any = answer.get("shares")
            sound = isinstance(given, list) and len(given) == len(members)
            if not sound or any(not isinstance(s, bytes) or len(s) != shamir.BYTES for s in given):
                self.masking.federation.note(name, "broken", "its shares are not valid")
                continue
            shares[name] = given
            if len(shares) >= self.batch.threshold:
                try:
                    self.secrets = unmasking.recover(self.batch, self.exchange, answered, shares)
                    return ""
                except Refusal as refusal:
                    why = str(refusal)  # with the shares of one more site it may still be found
        if len(shares) < self.batch.threshold:
            why = f"{len(shares)} sites helped to open their sum and {self.batch.threshold} are needed"
        return why


class Masking:
    """The batches of one run, at the server."""

    def __init__(self, federation: ConnectedSites, run: str, settings: SecureSums):
        self.federation, self.run, self.settings = federation, run, settings
        self.batch: Batch | None = None
        self.used = 0  # exchanges of the batch

    def begin(self, spec: ExchangeSpec, asked: Sequence[str], timeout: float, *, ahead: int) -> MaskedExchange | None:
        """An exchange among those asked who are there; None where they are too few. `ahead`: exchanges to prepare."""
        members = tuple(sorted(site for site in {*asked} if site in self.federation.nodes))
        if self.batch is None or self.batch.members != members or self.used >= self.batch.exchanges:
            self.batch, self.used = None, 0
        while self.batch is None:
            if len(members) < FEWEST:
                return None
            made = self.attempt(members, timeout, ahead)
            if isinstance(made, Batch):
                self.batch = made
            else:  # it begins again without those who have not taken all three steps
                members = tuple(name for name in members if name in made)
        self.used += 1
        return MaskedExchange(self, spec, self.batch, self.used - 1)

    def attempt(self, members: tuple[str, ...], timeout: float, ahead: int) -> Batch | set[str]:
        """The batch, or who has taken the step at which somebody failed."""
        threshold = self.settings.threshold or len(members) - 1
        threshold = min(max(threshold, least_threshold(len(members))), len(members))
        batch = Batch(self.run, secrets.token_hex(8), members, threshold, ahead, {})
        asked = {"members": [*members], "threshold": threshold, "count": ahead}
        keys, sealed = dict[str, dict[str, Any]](), dict[str, list[bytes]]()
        for name, answer in self.ask("keys", batch, dict.fromkeys(members, asked), timeout):
            given = [answer.get("keys"), answer.get("signature")]
            if self.fits(name, given, [keys_length(ahead), None]):
                keys[name] = answer
        if len(keys) < len(members):
            return {*keys}
        asked = {"keys": [keys[n]["keys"] for n in members], "signatures": [keys[n]["signature"] for n in members]}
        for name, answer in self.ask("shares", batch, dict.fromkeys(members, asked), timeout):
            if self.fits(name, answer.get("sealed"), [None] * len(members)):
                sealed[name] = answer["sealed"]
        if len(sealed) < len(members):
            return {*sealed}
        questions = {name: {"sealed": [sealed[sender][k] for sender in members]} for k, name in enumerate(members)}
        ready = {name for name, _ in self.ask("deliver", batch, questions, timeout)}
        if len(ready) < len(members):
            return ready
        return batch._replace(keys={name: keys[name]["keys"] for name in members})

    def fits(self, name: str, given: Any, lengths: Sequence[int | None]) -> bool:
        fine = isinstance(given, list) and len(given) == len(lengths)
        pairs = list(zip(given, lengths, strict=True)) if fine else []
        fine = fine and all(isinstance(part, bytes) and length in (None, len(part)) for part, length in pairs)
        if not fine:
            self.federation.note(name, "broken", "its part of a masked sum has another form")
        return fine

    def ask(
        self, step: str, batch: Batch, questions: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each site's answer, as it comes; who does not answer is noted."""
        federation, messages = self.federation, []
        for name, question in questions.items():
            node = federation.nodes.get(name)
            if node is not None:
                record = ConfigRecord({"step": step, "run": batch.run, "batch": batch.batch, **question})
                content = RecordDict({"question": record})
                messages.append((name, Message(content, node, f"query.{QUESTION}", ttl=max(timeout, 1.0))))
        for name, delivery in federation.deliver(messages, lambda _: timeout):
            answer = None if delivery.content is None else fields(delivery.content, "answer")
            if answer is None:
                federation.note(name, delivery.what, delivery.why)
                if delivery.what == "late":
                    federation.suspect(name)
            else:
                yield name, answer
