"""Masked sums over the network: the server relays keys and shares between sites, and learns sums.

The totals of an exchange come as integers that say nothing by themselves (`equipoise.privacy`); when all have answered,
those who did are asked for what takes the masks off the sum. Sites keep a batch of exchanges prepared, among those who
are there; when somebody goes or comes, another one is. Nothing in an algorithm knows.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from equipoise.deploy.exchanges import ExchangeSpec
from equipoise.deploy.network.envelope import Address
from equipoise.deploy.sites import ConnectedSites, why_not
from equipoise.engines.summation import Summation
from equipoise.errors import Refusal, refuse_unless
from equipoise.privacy import fixed_point, masks, shamir, unmasking
from equipoise.privacy.fixed_point import Integers
from equipoise.privacy.site_masks import FEWEST, SiteMasks, keys_length, least_threshold
from equipoise.privacy.unmasking import Batch
from equipoise.protocol import Reply

QUESTION = "secure"


class SecureSums(NamedTuple):
    """How totals are masked; server and sites have to have the same."""

    bound: float = 2.0**20  # of every number in a total; a site does not send one that is larger
    threshold: int | None = None  # sites that open a sum together; None: more than half
    exchanges: int = 64  # that are prepared at once where everybody takes part


class SecureSite(NamedTuple):
    """A site that sends no total but masked."""

    masks: SiteMasks
    bound: float = SecureSums().bound


def context_of(at: Address, batch: str, exchange: int, common: ArrayRecord | None) -> bytes:
    """What all members of a sum were sent, in 32 bytes; `common` are the arrays, where all are sent the same."""
    parts: list[Any] = [at.part, at.run, at.attempt, at.round, at.exchange, at.plan, batch, exchange]
    for name, array in sorted(common.items()) if common is not None else ():
        parts += [name, array.dtype, str(list(array.shape)), array.data]
    return masks.digest_of(parts)


# At a site.


def answer_step(secure: SecureSite | None, content: RecordDict) -> RecordDict:
    refuse_unless(secure is not None, "this site takes no part in masked sums; set federation.secure")
    assert secure is not None
    question: Any = content.get("question")
    refuse_unless(isinstance(question, ConfigRecord), "the message is no step of a masked sum")
    return RecordDict({"answer": ConfigRecord(secure.masks.answer(dict(question)))})


def check_masked(secure: SecureSite | None, spec: ExchangeSpec, content: RecordDict) -> None:
    """Before any row is touched: a total leaves the site masked, or not at all."""
    total, asked = bool(jax.tree.leaves(spec.reply.total)), isinstance(content.get("mask"), ConfigRecord)
    refuse_unless(secure is None or asked or not total, "this site sends totals masked, and was asked for a plain one")
    refuse_unless(not asked or (secure is not None and total), "this site was asked for a mask and has none")


def masked(secure: SecureSite, spec: ExchangeSpec, at: Address, content: RecordDict, reply: Reply) -> Reply:
    """The reply, with its total hidden."""
    header: Any = content["mask"]
    common: Any = content["message"] if spec.alike else None
    context = context_of(at, str(header.get("batch")), header.get("exchange"), common)

    def encode(n: int) -> Integers:
        return fixed_point.encode(reply.total, n, secure.bound)

    return reply._replace(total=secure.masks.mask({**header, "run": at.run}, encode, context))


# At the server.


class MaskedExchange:
    """One exchange whose totals are masked."""

    def __init__(self, masking: "Masking", spec: ExchangeSpec, batch: Batch, exchange: int):
        self.masking, self.spec, self.batch, self.exchange = masking, spec, batch, exchange
        self.size, self.context = fixed_point.length(spec.reply.total), b""
        hidden: Any = jax.ShapeDtypeStruct((self.size,), np.uint64)
        self.reply = Reply(hidden, spec.reply.each)
        self.secrets: unmasking.Secrets | None = None

    @property
    def header(self) -> ConfigRecord:
        return ConfigRecord({"batch": self.batch.batch, "exchange": self.exchange})

    def sent(self, at: Address, common: ArrayRecord | None) -> None:
        """Called with any of the messages: what they have in common goes into the masks."""
        self.context = context_of(at, self.batch.batch, self.exchange, common)

    @property
    def summation(self) -> Summation:
        def finish(total: Integers) -> Any:
            assert self.secrets is not None
            found = unmasking.unmasked(total, self.batch, self.exchange, self.secrets, self.context)
            return fixed_point.decode(
                found, self.spec.reply.total, len(self.batch.members), self.masking.settings.bound
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
            given = answer.get("shares")
            sound = isinstance(given, list) and len(given) == len(members)
            if not sound or any(not isinstance(s, bytes) or len(s) != shamir.BYTES for s in given):
                self.masking.federation.note(name, "broken", "its shares are none")
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
        self.bytes = [0, 0]  # down and up, of all that is not the exchanges' own

    def begin(self, spec: ExchangeSpec, asked: Sequence[str], timeout: float, *, ahead: int) -> MaskedExchange | None:
        """An exchange among those asked who are there; None where they are too few. `ahead`: exchanges to prepare."""
        members = tuple(sorted(site for site in {*asked} if site in self.federation.nodes))
        if self.batch is None or self.batch.members != members or self.used >= self.batch.exchanges:
            self.batch, self.used = self.prepared(members, timeout, ahead), 0
        if self.batch is None:
            return None
        self.used += 1
        return MaskedExchange(self, spec, self.batch, self.used - 1)

    def prepared(self, members: tuple[str, ...], timeout: float, ahead: int) -> Batch | None:
        """A batch among all members who take the three steps; if one does not, it begins again without that one."""
        while len(members) >= FEWEST:
            batch = self.attempt(members, timeout, ahead)
            if isinstance(batch, Batch):
                return batch
            members = tuple(name for name in members if name in batch)
        return None

    def attempt(self, members: tuple[str, ...], timeout: float, ahead: int) -> Batch | set[str]:
        """The batch, or who has taken the step at which somebody failed."""
        threshold = self.settings.threshold or least_threshold(len(members))
        threshold = min(max(threshold, least_threshold(len(members))), len(members))
        batch = Batch(self.run, secrets.token_hex(8), members, threshold, ahead, {})
        asked = {"members": [*members], "threshold": threshold, "count": ahead}
        keys = {
            name: answer
            for name, answer in self.ask("keys", batch, dict.fromkeys(members, asked), timeout)
            if self.fits(name, [answer.get("keys")], [keys_length(ahead)])
            and self.fits(name, [answer.get("signature")], [None])
        }
        if len(keys) < len(members):
            return {*keys}
        asked = {
            "keys": [keys[name]["keys"] for name in members],
            "signatures": [keys[name]["signature"] for name in members],
        }
        sealed = {
            name: answer["sealed"]
            for name, answer in self.ask("shares", batch, dict.fromkeys(members, asked), timeout)
            if self.fits(name, answer.get("sealed"), [None] * len(members))
        }
        if len(sealed) < len(members):
            return {*sealed}
        questions = {name: {"sealed": [sealed[of][k] for of in members]} for k, name in enumerate(members)}
        ready = {name for name, _ in self.ask("deliver", batch, questions, timeout)}
        if len(ready) < len(members):
            return ready
        return batch._replace(keys={name: keys[name]["keys"] for name in members})

    def fits(self, name: str, given: Any, lengths: Sequence[int | None]) -> bool:
        fine = isinstance(given, list) and len(given) == len(lengths)
        fine = fine and all(
            isinstance(g, bytes) and length in (None, len(g)) for g, length in zip(given, lengths, strict=True)
        )
        if not fine:
            self.federation.note(name, "broken", "its part of a masked sum has another form")
        return fine

    def ask(self, step: str, batch: Batch, questions: Mapping[str, Mapping[str, Any]], timeout: float) -> Any:
        """Each site's answer, as it comes; who does not answer is noted."""
        federation, messages = self.federation, []
        for name, question in questions.items():
            node = federation.nodes.get(name)
            if node is not None:
                record = ConfigRecord({"step": step, "run": batch.run, "batch": batch.batch, **question})
                content = RecordDict({"question": record})
                self.bytes[0] += _size(record)
                messages.append((name, Message(content, node, f"query.{QUESTION}", ttl=max(timeout, 1.0))))
        for name, delivery in federation.deliver(messages, lambda _: timeout):
            answer = delivery.content.get("answer") if delivery.content is not None else None
            if not isinstance(answer, ConfigRecord):
                what, why = why_not(delivery)
                federation.note(name, what, why)
                if what == "late":
                    federation.suspect(name)
                continue
            self.bytes[1] += _size(answer)
            yield name, dict(answer)


def _size(record: ConfigRecord) -> int:
    def size(value: Any) -> int:
        return sum(map(size, value)) if isinstance(value, list) else len(value) if isinstance(value, bytes | str) else 8

    return sum(map(size, record.values()))
