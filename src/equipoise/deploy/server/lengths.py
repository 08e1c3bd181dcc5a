"""No reply counts that is out of all proportion to what the sites have sent before, its own and the others'.

Of every array of a reply its length is compared, as a vector. What the sites usually send is the largest median of the
cohorts so far, that of the others in this one included: a minority cannot lift it, and it does not shrink as a run
converges. With `bound` = B a reply is left out if an array is longer than

    B^2 times that, whatever its site has sent before: also in the first round, and however slowly it grew; or
    B times that, and B times the longest that the site itself has sent (vectors only: a loss may jump for one site)

What comes with a weight is compared per weight, and a weight that the server has given has to come back as it was.
Other totals, whose scale is not known, have B^4 and B^2 instead, and so has a weight that a site finds itself, of at
least 1. Of masked totals nobody sees one: their sum is compared with earlier sums.
"""

import copy
import sys
from collections.abc import Iterator
from statistics import median_low
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise.protocol import Reply, Weighted
from equipoise.tensors import named

TINY = 1e-6
USUAL = ""  # among the names of sites: the largest median of the cohorts
Lengths = dict[str, dict[str, float]]  # exchange and array -> site -> the longest that counted


class Length(NamedTuple):
    """One array of a reply."""

    value: float
    vector: bool
    wide: bool  # its scale is not known


class Bounded:
    """What is usual in one run; `past` is what counted in an earlier part of it."""

    def __init__(self, bound: float | None, past: Lengths | None = None):
        self.bound = bound
        self.past: Lengths = copy.deepcopy(past or {})

    def why_not(self, exchange: str, name: str, site: str, length: Length, median: float, complete: bool = True) -> str:
        """Why a reply is left out; empty where it is not."""
        if self.bound is None:
            return ""
        past = self.past.get(f"{exchange}/{name}", {})
        usual, own = max(past.get(USUAL, 0.0), median), past.get(site, 0.0)
        if name.endswith("weight"):
            usual = max(usual, 1.0)
        if usual == 0.0:  # nothing to compare with
            return "" if complete or length.value == 0.0 else "it is not known yet what is usual"
        jump = self.bound**2 if length.wide else self.bound
        # Without the number itself: what happens again and again is one event.
        if length.value > jump**2 * usual:
            return f"its {name} is more than {jump**2:.6g} times what the sites usually send (federation.bound)"
        if length.vector and own > 0.0 and length.value > jump * max(usual, own):
            times = f"more than {jump:.6g} times what the sites usually send, and what it ever sent itself"
            return f"its {name} is {times} (federation.bound)"
        return ""


class Heard:
    """The replies of one exchange."""

    def __init__(self, run: Bounded, exchange: str, asked: int):
        self.run, self.exchange, self.asked = run, exchange, asked
        self.replies: dict[int, tuple[str, dict[str, Length]]] = {}  # slot -> site, arrays

    def add(self, slot: int, site: str, reply: Reply) -> None:
        self.replies[slot] = (site, {} if self.run.bound is None else dict(lengths(reply)))

    def why_not(self, slot: int, *, complete: bool = False) -> str:
        """Why the reply of a slot does not count.

        Until all replies are there (`complete`) those that are missing count as nothing: who passes then passes later.
        """
        site, mine = self.replies[slot]
        reasons = (
            self.run.why_not(self.exchange, name, site, length, self.median(name, slot, complete), complete)
            for name, length in mine.items()
        )
        return next(filter(None, reasons), "")

    def median(self, name: str, slot: int, complete: bool) -> float:
        """The median length of the others' arrays of that name."""
        there = [mine[name].value for other, (_, mine) in self.replies.items() if other != slot and name in mine]
        missing = [0.0] * (self.asked - len(self.replies))
        return median(there) if complete else median_low([*there, *missing] or [0.0])

    def why_not_sum(self, total: PyTree) -> str:
        """Why a sum whose parts nobody has seen does not count; empty where it does."""
        sums = ((f"sum of {name}", length) for name, length in lengths(Reply(total=total)))
        reasons = (self.run.why_not(self.exchange, name, "all", length, 0.0) for name, length in sums)
        why = next(filter(None, reasons), "")
        return why.replace("its ", "the ", 1).replace("the sites usually send", "it usually is")

    def learn(self, slots: list[int], total: PyTree = None) -> None:
        """What counted is what is compared with from now on; `total` is a sum whose parts nobody has seen."""
        if self.run.bound is None:
            return
        for name in {name for slot in slots for name in self.replies[slot][1]}:
            past = self.run.past.setdefault(f"{self.exchange}/{name}", {})
            replies = [self.replies[slot] for slot in slots]
            counted = [(site, mine[name].value) for site, mine in replies if name in mine]
            past[USUAL] = max(past.get(USUAL, 0.0), median([value for _, value in counted]))
            for site, value in counted:
                past[site] = max(past.get(site, 0.0), value)
        for name, length in lengths(Reply(total=total)):
            past = self.run.past.setdefault(f"{self.exchange}/sum of {name}", {})
            past[USUAL] = max(past.get(USUAL, 0.0), length.value)


def given_weight(message: object, *, unit: bool) -> float | None:
    """What the reply to a message has to weigh; None: the site itself says it."""
    said = (float(a) for name, a in named(message) if name.rpartition(".")[2] in ("lam_i", "weight") and a.ndim == 0)
    return next(said, 1.0 if unit else None)


def weighs_otherwise(reply: Reply, given: float) -> bool:
    """Whether a reply takes another weight than it was given; they may have been rounded on the way."""
    return isinstance(reply.total, Weighted) and not abs(float(reply.total.weight) - given) <= 0.01 * given + TINY


def median(values: list[float]) -> float:
    """The lower median of the lengths above zero: a reply without weight says nothing about them."""
    return median_low([value for value in values if value > 0.0] or [0.0])


def lengths(reply: Reply) -> Iterator[tuple[str, Length]]:
    """The length of every array of real numbers, by name; of what has a weight, per weight."""
    for part, tree in zip(Reply._fields, reply, strict=True):
        nodes = jax.tree.flatten_with_path(tree, is_leaf=lambda node: isinstance(node, Weighted))[0]
        for path, node in nodes:
            prefix = path_name(path)
            if isinstance(node, Weighted):
                weight = _length(node.weight)
                yield _joined(prefix, "weight"), Length(weight, vector=False, wide=True)
                for inner, leaf in jax.tree.flatten_with_path(node.value)[0]:
                    if _real(leaf):
                        name, value = _joined(prefix, path_name(inner) or "update"), _length(leaf)
                        per = value / weight if weight > 0.0 else (np.inf if value else 0.0)
                        yield name, Length(min(per, sys.float_info.max), np.ndim(leaf) > 0, wide=False)
            elif _real(node):
                yield prefix or "array", Length(_length(node), np.ndim(node) > 0, wide=part == "total")


def path_name(path: tuple) -> str:
    """A place in a tree in plain words."""
    return jax.tree_util.keystr(path, simple=True, separator=" ")


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))


def _real(a: np.ndarray) -> bool:
    return bool(jnp.issubdtype(a.dtype, jnp.floating))


def _length(a: ArrayLike) -> float:
    """The norm, also of numbers whose squares would overflow."""
    values = np.abs(np.asarray(a, np.float64))
    most = float(values.max(initial=0.0))
    return 0.0 if most == 0.0 else most * float(np.sqrt(np.sum((values / most) ** 2)))
