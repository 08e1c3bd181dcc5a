"""The federations that are part of the package."""

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.cli.data import facts
from equipoise.data.datasets import catalogue
from equipoise.data.datasets.natural import OWNERS
from equipoise.data.partition import split
from tests.problems import few

FACTS = {  # rows, owners, inputs, share of the last class or None
    "exam": (4059, 65, 2 + 2 + 3 + 3 + 2, 0.512),
    "contraception": (1934, 60, 1 + 4 + 2, 0.392),
    "insteval": (73421, 14, 4 + 6 + 2, 0.445),
    "mathachieve": (7185, 160, 8, None),
    "language": (2287, 131, 15, None),
    "star": (5829, 79, 20, None),
    "chemistry": (31022, 131, 4, 0.215),
    "poverty": (5381, 4, 7, 0.151),
    "pharmacy": (27679, 194, 14, 0.256),
    "covid": (12301, 81, 24, 0.060),
    "stays": (1495, 54, 9, 0.343),
    "lending": (9855, 50, 31, 0.052),
    "loans": (9976, 50, 27, 0.185),
    "flights": (107489, 16, 25, 0.219),
    "counties": (2196, 46, 9, 0.588),
    "voters": (38396, 51, 16, 0.408),
    "wages": (29472, 51, 3, None),
}
SMALLER = [name for name in FACTS if name not in ("flights", "chemistry", "pharmacy", "insteval", "voters")]


@pytest.mark.parametrize("name", FACTS)
def test_a_federation_of_the_package(name):
    data = eq.data.load(name)
    rows, owners, inputs, share = FACTS[name]
    assert data.inputs.shape == (rows, inputs)
    assert np.isfinite(data.inputs).all()
    assert np.isfinite(data.labels).all()
    assert len(data.group_names) == owners == len(np.unique(data.groups)) == len(set(data.group_names))
    if share is None:
        assert not data.classes
        assert data.labels.std() == pytest.approx(1, abs=1e-3)
    else:
        assert set(np.unique(data.labels)) == set(range(len(data.classes)))
        assert (data.labels == len(data.classes) - 1).mean() == pytest.approx(share, abs=1e-3)


def test_all_are_here():
    assert FACTS.keys() == OWNERS.keys()


@pytest.mark.parametrize("name", few(SMALLER, FACTS, "::test_a_federation_of_the_package"))
def test_no_input_gives_the_label_away(name):
    """Nor do all of them together, with the owner's own level: what is known only afterwards is not among them."""
    data = eq.data.load(name)
    x, g = data.inputs.astype(np.float64), data.groups
    for y in [data.labels == k for k in range(len(data.classes))] or [data.labels]:
        y = y.astype(np.float64)
        for column in x.T:  # the best that any function of one input can do, if it has few values
            values, code = np.unique(column, return_inverse=True)
            if len(values) < len(x) / 50:
                assert explained(y, (np.bincount(code, y) / np.bincount(code))[code]) < 0.8
        design = np.column_stack([x, np.eye(g.max() + 1)[g]])
        assert explained(y, design @ np.linalg.lstsq(design.T @ design, design.T @ y, rcond=None)[0]) < 0.85


def explained(y, guess):
    return 1 - np.mean((y - guess) ** 2) / np.var(y)


@pytest.mark.parametrize("name", few(SMALLER, FACTS, "::test_a_federation_of_the_package"))
def test_no_record_is_on_both_sides_of_a_split(name):
    """Of tables whose rows can be told apart; where a few inputs have few values, different people are alike."""
    data = eq.data.load(name)
    rows = np.column_stack([data.groups, data.inputs, data.labels])
    share = len(np.unique(rows, axis=0)) / len(rows)
    assert share == 1 or share < 0.999, "a handful of equal rows are the same record twice"


def test_numbers_are_split_at_random():
    """Labels that are numbers are no classes: the test rows are not the lowest of them."""
    data = eq.data.load("star")
    train, test = split([np.arange(len(data.labels))], data.labels, test=0.3, key=0)
    assert abs(data.labels[train[0]].mean() - data.labels[test[0]].mean()) < 0.1
    assert len(test[0]) == round(0.3 * len(data.labels))


def test_licences_are_said_beside_the_tables():
    """In the folder that is shipped as on the cards, and of the data sets that the tables are made of."""
    folder = resources.files("equipoise.data.datasets") / "shipped"
    lines = (folder / "LICENCES.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if ".parquet" in line]
    assert {file for file, _, _ in rows} == {path.name for path in folder.iterdir() if path.name.endswith(".parquet")}
    script = (Path(__file__).parents[3] / "experiments" / "natural_federations.py").read_text()
    for file, source, licence in rows:
        package, data = source.split(", ")
        said = catalogue.entry(file.removesuffix(".parquet")).licence
        assert said.startswith(f"{licence}, as of the R package {package}, of whose data set {data} ")
        assert f'"{package}/{data}"' in script


def test_a_card():
    card = dict(facts("covid", None, False, {}, "label"))
    assert card["rows of an owner"] == "1 to 6,739, half of them at most 12"
    assert card["share of 'positive'"].startswith("0.06, 0.00 to 0.33 by owner")
    assert "three quarters" in card["what differs"]
    assert "MIT" in card["licence"]
