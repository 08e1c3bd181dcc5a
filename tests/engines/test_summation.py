"""Sums of totals that arrive in any order."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engines.summation import plain_sum

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False)


def summed(values, dtype=np.float64):
    rule = plain_sum()
    sums = rule.start({"a": np.zeros(1, dtype)})
    for value in values:
        sums = rule.add(sums, {"a": np.array([value], dtype)})
    return rule.finish(sums)["a"][0]


@given(st.lists(NUMBERS, max_size=30), st.randoms())
def test_the_sum_is_exact_to_rounding_and_does_not_depend_on_the_order(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    exact, scale = math.fsum(values), math.fsum(map(abs, values))
    one, other = summed(values), summed(shuffled)
    assert abs(one - exact) <= abs(exact) * 2.3e-16 + scale * 1e-29
    assert abs(one - other) <= abs(exact) * 4.5e-16 + scale * 1e-29


def test_what_plain_addition_loses_is_kept():
    assert summed([1e16, 1.0, -1e16]) == 1.0
    assert summed([1e8, 1.0, -1e8], np.float32) == 1.0


def test_nothing_is_zero_and_whole_numbers_stay_whole():
    rule = plain_sum()
    like = {"n": np.zeros((), np.int32), "x": np.zeros(2, np.float32)}
    assert rule.finish(rule.start(like))["n"] == 0
    sums = rule.add(rule.add(rule.start(like), like | {"n": np.int32(3)}), like | {"n": np.int32(4)})
    found = rule.finish(sums)
    assert (found["n"], found["n"].dtype, found["x"].dtype) == (7, np.int32, np.float32)
