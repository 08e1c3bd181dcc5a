import math
import re

from hypothesis import assume, example, given
from hypothesis import strategies as st

from equipoise.report import html, svg

ANY = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20)
ROOM = st.sampled_from([None, 0.0, 0.06])


@given(ANY, st.booleans(), ROOM)
def test_an_axis_holds_its_values(values, zero, room):
    axis = svg.axis(values, from_zero=zero, margin=room)
    assert axis.low < axis.high
    assert len(axis.ticks) <= 12
    assert list(axis.ticks) == sorted(set(axis.ticks))
    for value in values:
        if abs(value) < 1 / svg.TINY:
            assert -1e-6 <= axis.fraction(value) <= 1 + 1e-6
    for tick in axis.ticks:
        assert -1e-6 <= axis.fraction(tick) <= 1 + 1e-6
    if zero:
        assert axis.low <= 0 <= axis.high


@given(ANY)
@example([2.05e16, 3.07e16])  # between two of 1, 2, 5
@example([1.05, 1.6])
@example([6.0, 9.5])
def test_a_logarithmic_axis_holds_its_highest_decades(values):
    axis = svg.axis(values, log=True)
    assert 0 < axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 7
    positive = [v for v in values if svg.TINY <= v < 1 / svg.TINY]
    for value in positive:
        assert 0 <= axis.fraction(value) <= 1 + 1e-9
    assert axis.fraction(0.0) == 0  # on the lowest line


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round(low, width):
    assume(width > 1e-7 * abs(low))
    axis = svg.axis([low, low + width])
    step = axis.ticks[1] - axis.ticks[0]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 1e-2


def test_a_line_has_gaps():
    frame = svg.Frame(svg.Axis(0, 4, ()), svg.Axis(0, 1, ()), 0, 1, 0, 100)
    assert frame.path([(0, 0), (1, 0.5), (2, math.nan), (3, 1), (4, 0)]) == (
        "M0.0 100.0L250.0 50.0M750.0 0.0L1000.0 100.0"
    )


def test_the_colours_are_those_of_the_page():
    css = html.TEMPLATES.globals["asset"]("page.css")
    light = css.partition("@media")[0]
    assert re.findall(r"--c\d: (#\w+);", light) == list(svg.COLOURS)


def test_signs_differ_before_they_repeat():
    looks = {(svg.colour(k), svg.dash(k), svg.MARKERS[k % len(svg.MARKERS)]) for k in range(42)}
    assert len(looks) == 42
