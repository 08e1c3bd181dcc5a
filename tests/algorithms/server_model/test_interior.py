"""Duals that do not say what they are: a smooth penalty is found out, anything else is refused with the reason."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import equipoise as eq
from equipoise.algorithms.server_model.interior import interior_of
from equipoise.certificates import certify
from equipoise.errors import InputError
from tests.problems import DIM, N, few, first, start, unequal

DOCS = Path(__file__).parents[3] / "docs"


def documented():
    """The dual of docs/extending.md."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(next(block for block in blocks if "pull_to_equal" in block), names)
    return names["pull_to_equal"](N)


@pytest.mark.thorough(witness="::test_smooth_penalties_are_found")
def test_the_documented_dual_is_trained_to_a_certified_optimum():
    """It was once refused because its weights were "not shares"."""
    task, dual, data = eq.tasks.ridge(DIM, 0.1), documented(), unequal()
    algorithm = eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(N), steps=5)
    server = eq.simulate(algorithm, start(), data, 0, rounds=12).server
    found = certify(task, dual, data, algorithm.model(server), algorithm.weights(server))
    assert float(found.gap) < 1e-8 * float(found.robust)


@pytest.mark.parametrize(
    "name",
    few(
        ["cvar"],
        ["tv", "cvar", "chi2_ball"],
        "::test_corners_and_parts_of_the_simplex_are_refused_with_the_reason[cvar]",
    ),
)
def test_corners_and_parts_of_the_simplex_are_refused_with_the_reason(name):
    record = eq.objectives.DUALS[name]
    dual = record(N, **record.example)._replace(interior=None)
    with pytest.raises(InputError, match=f"'{name}' is not a smooth penalty on all of the simplex"):
        interior_of(dual)


def test_weights_that_are_no_shares_are_refused_with_the_reason():
    with pytest.raises(InputError, match="the weights of 'qffl' are not shares"):
        interior_of(eq.objectives.qffl(N, 1.0))


@pytest.mark.parametrize(
    "dual",
    first(1, [[eq.objectives.kl(3, 0.2)], [eq.objectives.agnostic(3)]], "::test_smooth_penalties_are_found[kl]"),
    ids=["kl", "agnostic"],
)
def test_smooth_penalties_are_found(dual):
    assert interior_of(dual) is dual.interior
    assert interior_of(dual._replace(interior=None)).smooth is dual.penalty
    assert jnp.isfinite(dual.penalty(jnp.full(3, 1 / 3)))
