"""The server's side of masked sums: from the sum of hidden integers to the sum, with the shares of enough sites."""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, islice
from typing import NamedTuple

from equipoise.errors import Refusal, refuse_unless
from equipoise.privacy import masks, shamir
from equipoise.privacy.fixed_point import Integers

TRIES = 500  # sets of shares that are tried where some are wrong


class Batch(NamedTuple):
    """What the server knows of a batch of exchanges that the members have prepared."""

    run: str
    batch: str
    members: tuple[str, ...]
    threshold: int
    exchanges: int
    keys: Mapping[str, bytes]  # as each member sent them

    def publics(self, exchange: int) -> dict[str, bytes]:
        start = (1 + exchange) * masks.SEED
        return {name: keys[start : start + masks.SEED] for name, keys in self.keys.items()}

    def commitment(self, name: str, exchange: int) -> bytes:
        start = (1 + self.exchanges + exchange) * masks.SEED
        return self.keys[name][start : start + masks.SEED]


class Secrets(NamedTuple):
    """What takes the masks off a sum."""

    seeds: Mapping[str, bytes]  # of those who answered
    privates: Mapping[str, bytes]  # of those who are missing


def recover(batch: Batch, exchange: int, answered: Iterable[str], shares: Mapping[str, list[bytes]]) -> Secrets:
    """From each opener's shares, in the order of the members; a Refusal where too few of them are right."""
    answered, publics = {*answered}, batch.publics(exchange)
    holders = {name: k + 1 for k, name in enumerate(batch.members)}
    seeds, privates = {}, {}
    for k, name in enumerate(batch.members):
        given = {holders[who]: int.from_bytes(theirs[k]) for who, theirs in shares.items()}
        if name in answered:
            seeds[name] = _joined(given, batch.threshold, masks.commitment, batch.commitment(name, exchange), name)
        else:
            privates[name] = _joined(given, batch.threshold, masks.public_of, publics[name], name)
    return Secrets(seeds, privates)


def _joined(
    given: Mapping[int, int], threshold: int, public: Callable[[bytes], bytes], expected: bytes, name: str
) -> bytes:
    """The secret of which these are shares, some of them possibly wrong: the one with the `expected` public part."""
    refuse_unless(len(given) >= threshold, f"{len(given)} sites gave shares and {threshold} are needed")
    for some in islice(combinations(given.items(), threshold), TRIES):
        secret = shamir.join(dict(some))
        if secret < 1 << 256 and public(secret.to_bytes(masks.SEED)) == expected:
            return secret.to_bytes(masks.SEED)
    raise Refusal(f"the shares of what '{name}' keeps secret do not fit: a site sent wrong ones")


def unmasked(total: Integers, batch: Batch, exchange: int, secrets: Secrets, context: bytes) -> Integers:
    """The sum of q(total_i) over those who answered, from that of their y_i."""
    out, publics = total.copy(), batch.publics(exchange)
    for seed in secrets.seeds.values():
        out -= masks.stream(seed, len(out))
    answered = {name: publics[name] for name in secrets.seeds}
    for name, private in secrets.privates.items():
        masks.add_pair_masks(out, name, private, answered, context)  # in the missing site's own sum they would cancel
    return out
