"""The same rows as programs and people write them: they are read as they were meant, or a sentence says why not."""

import itertools
import random
from datetime import date, timedelta

import numpy as np
import pytest

from equipoise.data import silos
from tests.searches import tiny

ENDS = ("\n", "\r\n", "\r\r\n", "\r")
SEPARATORS = (",", ";", "\t", "|")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")
NUMBERS = {
    "point": lambda v: f"{v:.2f}",
    "three": lambda v: f"{v:.3f}",
    "english": lambda v: f"{v:,.2f}",
    "comma": lambda v: f"{v:.2f}".replace(".", ","),
    "comma three": lambda v: f"{v:.3f}".replace(".", ","),
    "german": lambda v: f"{v:,.2f}".translate(str.maketrans(",.", ".,")),
    "french": lambda v: f"{v:,.2f}".translate(str.maketrans(",.", "\u202f,")),
    "swiss": lambda v: f"{v:,.2f}".replace(",", "'"),
    "percent": lambda v: f"{100 * v:.0f}%",
}
DATES = {
    "iso": "%Y-%m-%d",
    "zone": "%Y-%m-%dT00:00:00Z",
    "german": "%d.%m.%Y",
    "british": "%d/%m/%Y",
    "american": "%m/%d/%Y",
    "named": "%d %b %Y",
}
POINTS, SLASHES = ("point", "three", "english", "swiss"), ("german", "british", "american")
AMBIGUOUS = "the cell can be read with"


def cell(text, separator):
    return f'"{text}"' if separator in text else text


def owner(rng, numbers, dates, separator, end, rows):
    """(its file, its numbers, its days)"""
    values = [rng.choice((1, -1)) * round(rng.uniform(0, 5000), 2) for _ in range(rows)]
    days = [date(2024, 1, 1) + timedelta(rng.randrange(366)) for _ in range(rows)]
    lines = [separator.join(("v", "d", "y"))]
    for i, (v, d) in enumerate(zip(values, days, strict=True)):
        texts = (NUMBERS[numbers](v), d.strftime(DATES[dates]), "ab"[i % 2])
        lines.append(separator.join(cell(text, separator) for text in texts))
    return end.join(lines) + end, values, [(d - date(1970, 1, 1)).days for d in days]


def checked(folder, owners):
    """Whether the folder is read, as it was meant."""
    for i, (text, _, _) in enumerate(owners):
        (folder / f"{i}.csv").write_bytes(text)
    found, said = tiny.tried(lambda: silos.read(folder, "y", test=0))
    if said is not None:
        return said
    for i, (_, *meant) in enumerate(owners):
        inputs = np.asarray(found.train.inputs)[i, : len(meant[0])]
        for feature, column, true in zip(found.encoding.features, inputs.T, meant, strict=True):
            np.testing.assert_allclose(column * feature.scale + feature.mean, true, rtol=1e-6, atol=1e-6)
    return None


@pytest.mark.thorough(witness="::test_every_owner_in_its_own_way")
def test_one_way_to_write_for_all(tmp_path):
    """Of many rows: nothing is open, so nothing may be asked."""
    rng = random.Random(0)
    ways = list(itertools.product([n for n in NUMBERS if n != "percent"], DATES))
    few = [way for k, way in enumerate(ways) if (k // len(DATES) + k) % 3 == 0]  # every number and every date
    for k, (numbers, dates) in enumerate(few if tiny.LONGER == 1 else ways):
        separator, end, encoding = rng.choice(SEPARATORS), rng.choice(ENDS), rng.choice(ENCODINGS)
        owners = [owner(rng, numbers, dates, separator, end, 40) for _ in range(2)]
        (folder := tmp_path / str(k)).mkdir()
        assert checked(folder, [(text.encode(encoding), *meant) for text, *meant in owners]) is None, (numbers, dates)


@pytest.mark.parametrize("seed", range(1 if tiny.LONGER == 1 else 4 * tiny.LONGER))
def test_every_owner_in_its_own_way(tmp_path, seed):
    """Of few rows, so that some can be read in two ways: they follow their file and the others, or that is said."""
    rng = random.Random(seed)
    for k in range(10):
        owners, written = [], set()
        for _ in range(rng.randrange(1, 4)):
            numbers, dates = rng.choice([n for n in NUMBERS if n != "percent"]), rng.choice(list(DATES))
            text, *meant = owner(rng, numbers, dates, rng.choice(SEPARATORS), rng.choice(ENDS), rng.randrange(2, 7))
            owners.append((text.encode(rng.choice(ENCODINGS)), *meant))
            written |= {("point", numbers in POINTS), ("day", dates != "american" if dates in SLASHES else None)}
        (folder := tmp_path / str(k)).mkdir()
        try:
            said = checked(folder, owners)
        except AssertionError:
            # Owners who mean different things by the same cells, of whom one is certain and one is not.
            assert any({(what, True), (what, False)} <= written for what in ("point", "day")), [t for t, *_ in owners]
            continue
        assert said is None or AMBIGUOUS in said or "dropped" in said or "no column is left" in said, said


def test_other_encodings_are_said(tmp_path):
    """As German Excel writes a CSV: which letters its bytes are, nobody can tell for certain."""
    text = "größe;y\n" + "".join(f"{i},5;{'ja' if i % 2 else 'nein'}\n" for i in range(8))
    for encoding in ("cp1252", "mac_roman", "utf-16-le"):
        (tmp_path / "a.csv").write_bytes(text.encode(encoding))
        _, said = tiny.tried(lambda: silos.read(tmp_path, "y", test=0))
        assert said is not None
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    _, said = tiny.tried(lambda: silos.read(tmp_path, "y", test=0))
    assert said == (
        "a.csv is not UTF-8 text, as the byte 0xf6 after data row 0 shows; "
        "save it as UTF-8 (Excel calls that 'CSV UTF-8')"
    )
    (tmp_path / "a.csv").write_bytes(text.encode("utf-16")[:-1])
    _, said = tiny.tried(lambda: silos.read(tmp_path, "y", test=0))
    assert "is not UTF-8 text" in said
