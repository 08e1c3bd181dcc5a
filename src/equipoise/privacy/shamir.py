"""A secret in shares: any `threshold` of them give it back, fewer say nothing about it.

Shamir 1979, "How to share a secret": the secret is the value at 0 of a random polynomial of degree threshold - 1 over
the integers modulo a prime, holder k (1, 2, ...) gets its value at k.
"""

import secrets
from collections.abc import Mapping
from functools import reduce
from math import prod

from equipoise.errors import require

PRIME = 2**256 + 297  # the least above 2^256: every key of 32 bytes is a number below it
BYTES = 33  # of a share


def split(secret: int, threshold: int, holders: int) -> list[int]:
    """The shares of holders 1, 2, ..., `holders`."""
    require(0 <= secret < PRIME, "the secret is no number below the prime")
    require(1 <= threshold <= holders < PRIME, f"{threshold} of {holders} holders cannot give a secret back")
    polynomial = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [evaluate(polynomial, k) for k in range(1, holders + 1)]


def evaluate(polynomial: list[int], x: int) -> int:
    return reduce(lambda value, coefficient: (value * x + coefficient) % PRIME, reversed(polynomial), 0)


def weights_at_zero(holders: list[int]) -> list[int]:
    """Lagrange's: the value at 0 is their combination of the values at `holders`."""
    others = {i: [j for j in holders if j != i] for i in holders}
    return [prod(rest) * pow(prod(j - i for j in rest), -1, PRIME) % PRIME for i, rest in others.items()]


def join(shares: Mapping[int, int]) -> int:
    """The secret, from as many shares as its threshold, by holder; from fewer or wrong ones, another number."""
    holders = list(shares)
    return sum(w * shares[k] for w, k in zip(weights_at_zero(holders), holders, strict=True)) % PRIME
