"""Over federations that are made up, so that what is said of them is known."""

import numpy as np
import pytest

from equipoise.bench import page
from equipoise.bench.entries import Entry
from equipoise.bench.standings import standings
from equipoise.errors import InputError
from tests.problems import first


def entry(federation, method, split, skill, gain):
    middle = float(np.mean(skill))
    three = (middle - 0.1, middle, middle + 0.1)
    return Entry(
        federation=federation, method=method, about="", kind="method", split=split, rows=f"{federation}{split}",
        source="", owners=tuple(map(str, range(len(skill)))), tested=(10,) * len(skill), unit=0.6,
        base=(0.6,) * len(skill), loss=(0.5,) * len(skill), skill=tuple(skill), gain=tuple(gain),
        mean=three, worst=three, worst_gain=three,
        auroc=(0.7,) * len(skill), calibration=(0.01, 0.02, 0.03), cores=1, equipoise="0",
    )  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """On every federation `better` is a tenth above `default` for each owner, and `noise` is anywhere around it."""
    rng, entries = np.random.default_rng(0), []
    for k in range(6):
        owners = rng.normal(size=20) / 5
        noise = rng.normal(size=20) / 20
        for split in (0, 1):
            entries += [
                entry(f"f{k}", "default", split, owners, owners),
                entry(f"f{k}", "better", split, owners + 0.1, owners + 0.1),
                entry(f"f{k}", "noise", split, owners + noise - noise.mean(), owners),
            ]
    entries.append(entry("f0", "once", 0, owners, owners))
    return standings(entries)


def test_who_is_better_by_how_much(found):
    better, noise = (found.overall[m].against_it for m in ("better", "noise"))
    assert better.average == pytest.approx((0.1, 0.1, 0.1))
    assert better.counts == better.worst_counts == (6, 0, 0)
    assert noise.counts == (0, 6, 0)
    assert noise.average.low < 0 < noise.average.high
    assert found.overall["better"].rank == pytest.approx((1, 1, 1))
    assert found.overall["default"].against_it is None
    assert found.methods[0] == "better"


def test_all_may_be_compared_with_another_one():
    level = [(m, np.full(20, v)) for m, v in (("default", 0.2), ("better", 0.3))]
    entries = [entry("f", m, 0, skill, skill) for m, skill in level]
    found = standings(entries, "better")
    assert found.overall["default"].against_it.average == pytest.approx((-0.1, -0.1, -0.1))
    assert found.overall["better"].against_it is None
    with pytest.raises(InputError, match="did you mean 'better'"):
        standings(entries, "bettr")


def test_a_method_that_did_not_run_everywhere(found):
    assert found.overall["once"].rank is None
    assert found.overall["once"].federations == 1
    assert found.methods[-1] == "once"


@pytest.mark.parametrize(
    ("federations", "owners"), first(1, [(1, 4), (10, 8)], "::test_bounds_hold_as_often_as_they_say[1-4]")
)
def test_bounds_hold_as_often_as_they_say(federations, owners):
    """Of a difference whose truth is zero, over federations that are drawn; and over the few owners of a single one."""
    held = 0
    for seed in range(100):
        rng, entries = np.random.default_rng(seed), []
        for k in range(federations):
            shift = rng.normal() / 20 if federations > 1 else 0
            skill = rng.normal(size=owners)
            other = skill + shift + rng.normal(size=owners) / 10
            entries += [entry(f"f{k}", "default", 0, skill, skill), entry(f"f{k}", "other", 0, other, skill)]
        low, _, high = standings(entries).overall["other"].against_it.average
        held += low <= 0 <= high
    assert held >= 90  # of 100 at 95%; fewer by chance three times in a hundred, and quantiles alone hold 80 of four


def test_only_splits_that_both_have_are_compared():
    """A tenth better on the one split that it has, where all are worse than on the other."""
    rng = np.random.default_rng(0)
    skills = [rng.normal(size=20), rng.normal(size=20) + 5]
    entries = [entry("f", "default", s, skill, skill) for s, skill in enumerate(skills)]
    entries.append(entry("f", "half", 0, skills[0] + 0.1, skills[0]))
    found = standings(entries).overall["half"]
    assert found.against_it.average == pytest.approx((0.1, 0.1, 0.1))
    assert found.rank is None  # it did not run everywhere


def test_the_tables_the_picture_and_the_page(found):
    text = page.markdown(found)
    assert "| better | 1.0 (1.0 to 1.0) |" in text
    assert "+10.0 (+10.0 to +10.0) | 6, 0, 0 |" in text
    assert "### f5" in text
    drawing = page.picture(found)
    assert drawing.count("<circle") >= 3 * 6
    assert "better: +10.0 (+10.0 to +10.0)" in drawing
    assert page.page(found).count("<table>") == 2 + 6
