"""A site's side of masked sums: what it answers, and what it refuses whatever the server says.

A batch prepares `count` exchanges among `members`, in three steps:

    keys     up: a one-time key for every exchange and one to seal with, and what commits to its seeds; signed
    shares   down: those of all, whose signatures are checked; up: its secrets in shares, sealed for each member
    deliver  down: what all have sealed for this site

Then, per exchange,

    mask     the total of a reply, once: the same masks are never used again
    open     down: who answered and who is missing; up: its shares of the seeds of the former and the keys of the latter

With the shares of both of one site the server could read that site's total. So a site opens an exchange once, only if
those who answered and those who are missing are all members and nobody is both, only if it has answered itself, and
only for at least `least` that answered, of whom none counts for nearly all of the sum. Secrets of an exchange are gone
once it has been opened.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag

from equipoise.errors import Refusal, refuse_unless
from equipoise.files import locked, make_folder, write_whole
from equipoise.privacy import masks, shamir
from equipoise.privacy.fixed_point import Integers
from equipoise.privacy.identity import Identity

FEWEST = 3  # of a sum over two, each of the two could read the other's part
MOST_MEMBERS = 200
MOST_EXCHANGES = 256
KEPT = 8  # batches that a site remembers
SUMS = "sums.json"  # over whom the last sums were opened, by what they were about
REMEMBERED = 128  # of these
SHARE = 2 * shamir.BYTES  # of a seed and of a key
WORD = re.compile(r"[\w.-]{1,64}", re.ASCII)  # it becomes part of a file's name
Question = Mapping[str, object]
Answer = dict[str, Any]
State = dict[str, Any]  # of a batch, as JSON
_changing = threading.RLock()  # one state of a batch at a time, whatever the threads of this process do


def least_threshold(n: int) -> int:
    """The fewest shares that may open a secret: two sets of so many have a site in common, which answers once."""
    return n // 2 + 1


def keys_length(count: int) -> int:
    return (1 + 2 * count) * masks.SEED


def signed_keys(run: str, batch: str, members: list[str], threshold: int, count: int, name: str, keys: bytes) -> bytes:
    return masks.joined("equipoise keys", run, batch, threshold, count, name, keys, *members)


def sealing(run: str, batch: str, keys: list[bytes], sender: str, receiver: str) -> bytes:
    """What shares are sealed with: only somebody who was shown the same `keys` of all members opens them.

    A site that has forgotten a batch may prepare it again, and signs other keys for it. Members that know it by
    different keys would each open one exchange of it, the server would have both, and so both secrets of a site.
    """
    return masks.joined("equipoise shares", run, batch, masks.digest_of(keys), sender, receiver)


class Limits(NamedTuple):
    """What a site asks of the sums that it takes part in."""

    threshold: int | None = 0  # sites that have to help the server to read another's part; None: all but one
    weight: float = 0.95  # the most that any site may count for in a sum
    same_sites: bool = False  # all sums of a run are over the same sites


def check_weights(weights: np.ndarray, most: float) -> None:
    """Refuses a sum in which nearly all of the weight is one member's: it would be that member's own part."""
    fine = weights.ndim == 1 and np.issubdtype(weights.dtype, np.floating) and np.isfinite(weights).all()
    refuse_unless(fine and (weights >= 0).all() and weights.any(), "the weights of this masked sum are not valid")
    largest = np.float64(weights.max())  # first of all divided by it: their sum may be more than a float can be
    share = float(1 / (weights / largest).sum())
    refuse_unless(
        share <= most,
        f"a site would have {share:.4g} of the weight of this masked sum, and this site takes part up to {most:g}: "
        f"set federation.cap = {most:g}, or let the sites say most_weight in site.toml",
    )


class About(NamedTuple):
    """What a sum is about, as digests."""

    subject: str  # all that its members were sent
    place: str  # where in which run
    plan: str  # of the run


class SiteMasks(NamedTuple):
    """One site's part in the masked sums of all runs; what it must not forget is in files of its own."""

    identity: Identity
    folder: Path
    least: Callable[[], int] = lambda: FEWEST  # sites that a sum must be over; asked before every answer
    limits: Callable[[], Limits] = Limits

    @property
    def name(self) -> str:
        return self.identity.name

    def answer(self, question: Question) -> Answer:
        """The answer to one of the steps; a Refusal to everything else."""
        steps = {step.__name__: step for step in (self.keys, self.shares, self.deliver, self.open)}
        step = question.get("step")
        if not isinstance(step, str) or step not in steps:
            raise Refusal("the message is no step of a masked sum")
        return steps[step](question)

    def keys(self, question: Question) -> Answer:
        run, batch = _word(question, "run"), _word(question, "batch")
        members = _names(question, "members")
        threshold, count = (_whole(question, key) for key in ("threshold", "count"))
        refuse_unless(self.name in members, f"'{self.name}' is not a member of this sum")
        fewest = max(self.least(), FEWEST)
        refuse_unless(
            fewest <= len(members) <= MOST_MEMBERS,
            f"'{self.name}' takes part in sums over {fewest} to {MOST_MEMBERS} sites, and this one is over "
            f"{len(members)}",
        )
        strangers = [name for name in members if name not in self.identity.roster]
        refuse_unless(not strangers, f"'{self.name}' does not know the key of {', '.join(map(repr, strangers[:3]))}")
        demanded = self.limits().threshold
        lowest = len(members) - 1 if demanded is None else min(demanded, len(members) - 1)
        lowest = max(lowest, least_threshold(len(members)))
        refuse_unless(
            lowest <= threshold <= len(members),
            f"{threshold} shares would open a secret; of {len(members)} sites it has to be {lowest} or more",
        )
        refuse_unless(1 <= count <= MOST_EXCHANGES, f"a batch is of 1 to {MOST_EXCHANGES} exchanges, not {count}")
        with self._changing(run, batch) as path:
            refuse_unless(not path.exists(), "this batch has been prepared already")
            sealed = sorted(self.folder.glob("masks-*.sealed"), key=lambda path: path.stat().st_mtime_ns)
            for old in sealed[: -(KEPT - 1)]:
                old.unlink(missing_ok=True)
            privates = [os.urandom(masks.SEED) for _ in range(count + 1)]
            seeds = [os.urandom(masks.SEED) for _ in range(count)]
            keys = b"".join([*map(masks.public_of, privates), *map(masks.commitment, seeds)])
            state = {"step": "keys", "members": members, "threshold": threshold, "count": count, "mine": keys.hex()}
            state |= {"sealing": privates[0].hex(), "privates": [p.hex() for p in privates[1:]]}
            state |= {"seeds": [s.hex() for s in seeds], "used": [], "opened": []}
            self._write(path, state)
        said = signed_keys(run, batch, members, threshold, count, self.name, keys)
        return {"keys": keys, "signature": self.identity.sign(said)}

    def shares(self, question: Question) -> Answer:
        run, batch = _word(question, "run"), _word(question, "batch")
        keys, signatures = _bytes(question, "keys"), _bytes(question, "signatures")
        with self._changed(run, batch, "keys") as state:
            members, threshold, count = state["members"], state["threshold"], state["count"]
            refuse_unless(len(keys) == len(signatures) == len(members), "there are not as many keys as members")
            for name, theirs, signature in zip(members, keys, signatures, strict=True):
                refuse_unless(len(theirs) == keys_length(count), f"the keys of '{name}' have another length")
                said = signed_keys(run, batch, members, threshold, count, name, theirs)
                self.identity.check(name, said, signature)
            place = members.index(self.name)
            refuse_unless(keys[place].hex() == state["mine"], f"the keys of '{self.name}' are not those that it sent")
            split = [
                [shamir.split(int.from_bytes(bytes.fromhex(secret)), threshold, len(members)) for secret in pair]
                for pair in zip(state["seeds"], state["privates"], strict=True)
            ]
            sealed, private = [], bytes.fromhex(state["sealing"])
            for k, name in enumerate(members):
                plain = b"".join(s[k].to_bytes(shamir.BYTES) for pair in split for s in pair)
                if name == self.name:
                    state["own"] = plain.hex()
                    sealed.append(b"")
                    continue
                key = masks.agreed(private, keys[k][: masks.SEED], "sealing", run, batch)
                sealed.append(masks.seal(key, plain, sealing(run, batch, keys, self.name, name)))
            state |= {"step": "shares", "keys": [k.hex() for k in keys]}
        return {"sealed": sealed}

    def deliver(self, question: Question) -> Answer:
        run, batch = _word(question, "run"), _word(question, "batch")
        sealed = _bytes(question, "sealed")
        with self._changed(run, batch, "shares") as state:
            members = state["members"]
            refuse_unless(len(sealed) == len(members), "there are not as many shares as members")
            keys, opened = [bytes.fromhex(k) for k in state["keys"]], []
            private = bytes.fromhex(state.pop("sealing"))
            for k, name in enumerate(members):
                if name == self.name:
                    opened.append(state.pop("own"))
                    continue
                key = masks.agreed(private, keys[k][: masks.SEED], "sealing", run, batch)
                try:
                    plain = masks.unseal(key, sealed[k], sealing(run, batch, keys, name, self.name))
                except (InvalidTag, ValueError):
                    raise Refusal(f"the shares of '{name}' are not those that it sealed for '{self.name}'") from None
                refuse_unless(len(plain) == SHARE * state["count"], f"the shares of '{name}' have another length")
                opened.append(plain.hex())
            state |= {"step": "ready", "shares": opened}
        return {}

    def members(self, question: Question) -> list[str]:
        """The members of a batch that is ready."""
        with self._changing(_word(question, "run"), _word(question, "batch")) as path:
            return list(self._read(path, "ready")["members"])

    def mask(
        self,
        question: Question,
        encode: Callable[[int, int], Integers],
        context: bytes,
        about: About | None = None,
        weights: Sequence[Mapping[str, float]] = (),
    ) -> Integers:
        """The integers that `encode` makes for a sum of so many members, of whom so many answer at least, hidden.

        Each exchange of a batch once. `weights` are what each member counts for, where a site knows it.
        """
        run, batch, exchange = _word(question, "run"), _word(question, "batch"), _whole(question, "exchange")
        # What is written before anything leaves: the masks are used up, whatever happens now.
        with self._changed(run, batch, "ready") as state:
            refuse_unless(exchange < state["count"], "the batch has no such exchange")
            refuse_unless(exchange not in state["used"], "this exchange has been answered already")
            members = state["members"]
            refuse_unless(
                all(name in w for w in weights for name in members), "what every member counts for was not agreed on"
            )
            integers = encode(len(members), self._fewest(state))
            state["used"].append(exchange)
            state.setdefault("about", {})[str(exchange)] = about
            state.setdefault("weights", {})[str(exchange)] = [
                {name: float(w[name]) for name in members} for w in weights
            ]
        start = (1 + exchange) * masks.SEED
        publics = {
            name: bytes.fromhex(keys)[start : start + masks.SEED]
            for name, keys in zip(members, state["keys"], strict=True)
        }
        private, seed = bytes.fromhex(state["privates"][exchange]), bytes.fromhex(state["seeds"][exchange])
        return masks.hidden(integers, self.name, private, seed, publics, context)

    def open(self, question: Question) -> Answer:
        run, batch, exchange = _word(question, "run"), _word(question, "batch"), _whole(question, "exchange")
        answered, missing = _names(question, "answered"), _names(question, "missing")
        with self._changed(run, batch, "ready") as state:
            members = state["members"]
            both = sorted({*answered} & {*missing})
            refuse_unless(not both, f"both shares of {', '.join(map(repr, both[:3]))} were asked for")
            refuse_unless({*answered, *missing} == {*members}, "who answered and who is missing are not the members")
            refuse_unless(self.name in answered, f"'{self.name}' is said to be missing, or was not asked")
            refuse_unless(exchange in state["used"], f"'{self.name}' has not answered in this exchange")
            refuse_unless(exchange not in state["opened"], "this exchange has been opened already")
            fewest = self._fewest(state)
            refuse_unless(
                len(answered) >= fewest,
                f"'{self.name}' opens sums over at least {fewest} sites, and this one is over {len(answered)}",
            )
            for weights in state.get("weights", {}).get(str(exchange), ()):
                there = np.array([weights[name] for name in answered])  # who is missing adds nothing to it
                check_weights(there, self.limits().weight)
            about = state.get("about", {}).get(str(exchange))
            if about is not None:
                self._only_one_set(About(*about), sorted(answered))
            given, start = [], exchange * SHARE
            for k, name in enumerate(members):
                pair = bytes.fromhex(state["shares"][k])[start : start + SHARE]
                given.append(pair[: shamir.BYTES] if name in answered else pair[shamir.BYTES :])
            gone = "00" * SHARE
            for k, shares in enumerate(state["shares"]):
                state["shares"][k] = shares[: 2 * start] + gone + shares[2 * (start + SHARE) :]
            state["privates"][exchange] = state["seeds"][exchange] = ""
            state["opened"].append(exchange)
        return {"shares": given}

    def _fewest(self, state: State) -> int:
        """The fewest sites of a sum that this site opens."""
        return int(max(self.least(), FEWEST, state["threshold"]))

    def _only_one_set(self, about: About, answered: list[str]) -> None:
        """Refuses a second sum about the same over other sites: the two differ by what single sites added."""
        path = self.folder / SUMS
        members_of: dict[str, list[str]] = json.loads(path.read_text()) if path.is_file() else {}
        for key, what in ((about.subject, "about the same"), (about.place, "of the same round")):
            refuse_unless(
                members_of.get(key, answered) == answered,
                f"'{self.name}' has opened a sum {what} over other sites, and both together would tell what a single "
                "site added; it helps again once the same sites are there",
            )
        refuse_unless(
            not self.limits().same_sites or members_of.get(about.plan, answered) == answered,
            f"'{self.name}' opens the sums of a run over the same sites only (same_sites in its site.toml)",
        )
        for key in about:
            members_of[key] = members_of.pop(key, answered)  # the newest last
        write_whole(path, json.dumps(dict(list(members_of.items())[-REMEMBERED:])))

    @contextmanager
    def _changing(self, run: str, batch: str) -> Iterator[Path]:
        """The file of a batch, while nobody else changes it."""
        path = self.folder / f"masks-{run}-{batch}.sealed"
        with _changing:
            make_folder(self.folder)
            with locked(self.folder / "masks.lock", f"the masks of {self.name}", wait=30.0):
                yield path

    @contextmanager
    def _changed(self, run: str, batch: str, step: str) -> Iterator[State]:
        """What is kept of a batch at that step; it is written back unless something is refused."""
        with self._changing(run, batch) as path:
            state = self._read(path, step)
            yield state
            self._write(path, state)

    def _read(self, path: Path, step: str) -> State:
        refuse_unless(path.is_file(), "this batch has not been prepared here, or is forgotten")
        try:
            state = read_state(path, self.identity.at_rest)
        except (OSError, ValueError, InvalidTag):
            raise Refusal("what this site remembered of the batch cannot be read") from None
        refuse_unless(state["step"] == step, f"the batch is at the step '{state['step']}', not '{step}'")
        return state

    def _write(self, path: Path, state: State) -> None:
        sealed = masks.seal(self.identity.at_rest, json.dumps(state).encode(), path.name.encode())
        write_whole(path, sealed, secret=True)


def read_state(path: Path, key: bytes) -> State:
    """What a site keeps of a batch: sealed with its own key, so that a copy of its folder tells nobody its masks."""
    return json.loads(masks.unseal(key, path.read_bytes(), path.name.encode()))


# What a question holds, or a Refusal.


def _checked(question: Question, key: str, fine: Callable[[Any], object], what: str) -> Any:
    value = question.get(key)
    refuse_unless(fine(value), f"the message's {key} {what}")
    return value


def _word(question: Question, key: str) -> str:
    return str(_checked(question, key, lambda v: isinstance(v, str) and WORD.fullmatch(v), "is not valid"))


def _whole(question: Question, key: str) -> int:
    return int(_checked(question, key, lambda v: type(v) is int and v >= 0, "is no number"))


def _names(question: Question, key: str) -> list[str]:
    def fine(names: Any) -> bool:
        each = isinstance(names, list | tuple) and all(isinstance(name, str) and 0 < len(name) <= 200 for name in names)
        return each and len({*names}) == len(names) <= MOST_MEMBERS

    return list(_checked(question, key, fine, "are no names"))


def _bytes(question: Question, key: str) -> list[bytes]:
    def fine(values: Any) -> bool:
        return isinstance(values, list | tuple) and all(isinstance(value, bytes) for value in values)

    return list(_checked(question, key, fine, "are no bytes"))
