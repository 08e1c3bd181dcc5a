import pytest

from equipoise.algorithms import ALGORITHMS
from equipoise.algorithms.overview import formula, overview
from tests.laws.test_laws import FLOATS
from tests.problems import DIM


def test_has_every_algorithm():
    assert [row.name for row in overview()] == list(ALGORITHMS)
    assert all(row.objective and row.paper for row in overview())


def test_formulas_are_those_of_the_messages():
    for row in (row for row in overview() if row.name in FLOATS):
        values = {"d": DIM, "n": 5, "nd": 5 * DIM}

        def count(text, values=values):
            total = 0
            for term in text.replace("− ", "+ -").split(" + "):
                unit = term.lstrip("-0123456789")
                factor = term.removesuffix(unit)
                total += (int(factor) if factor not in ("", "-") else int(factor + "1")) * (values[unit] if unit else 1)
            return total

        up = sum(up for _, up in FLOATS[row.name])
        if row.name != "agnostic_fedavg":  # its messages grow with the number of domains
            assert count(row.up) == pytest.approx(up)
        assert len(row.exchanges) == len(FLOATS[row.name])


def test_formula_reads_like_a_paper():
    from equipoise.algorithms.overview import PROBES

    assert formula([2 * d + 1 for d, n in PROBES]) == "2d + 1"
    assert formula([n * d + 3 * n for d, n in PROBES]) == "nd + 3n"
    assert formula([0] * 5) == "0"
    with pytest.raises(AssertionError, match="not of the form"):
        formula([d**2 * n**2 for d, n in PROBES])
