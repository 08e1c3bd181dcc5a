import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report import formats

WRITERS = (
    *(formats.percent, formats.number, formats.count),
    *(formats.with_unit, formats.byte_size, formats.duration),
)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_number_can_be_written(value):
    for write in WRITERS:
        assert write(value) == formats.MISSING if not math.isfinite(value) else write(value)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (formats.percent, 0.6123, "61.2%"),
        (formats.points, -0.0412, "4.1 points"),
        (formats.points, 0.01, "1.0 point"),
        (formats.number, 4.65, "4.650"),
        (formats.number, 123456.7, "123,457"),
        (formats.number, 1.5e-7, "1.50e-07"),
        (formats.number, 0, "0"),
        (formats.tick, 1e-16, "1e-16"),
        (formats.tick, 12500, "12,500"),
        (formats.byte_size, 999, "999 B"),
        (formats.byte_size, 1_040_000, "1.0 MB"),
        (formats.byte_size, 999_960, "1.0 MB"),
        (formats.with_unit, 130_000, "130k"),
        (formats.duration, 3.21, "3.2 s"),
        (formats.duration, 7500, "2 h 05 min"),
    ],
)
def test_how_numbers_are_written(write, value, text):
    assert write(value) == text


def test_how_bounds_are_written():
    assert formats.interval(0.6, 0.7, formats.percent) == "60.0–70.0%"
    assert formats.interval(-0.5, 0.25, formats.number) == "-0.5000 to 0.2500"
    assert formats.interval(math.nan, 0.7, formats.percent) == formats.MISSING
