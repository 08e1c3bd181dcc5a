"""In the metric every algorithm runs, and the saddle point is that of the plain problem."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.tasks.metric import gradients_of_model, stretch
from tests.problems import DIM, KEY, N, each_kind, first, lose, start, unequal

DUALS = {
    "chi2": lambda: eq.objectives.chi2(N, 0.1),
    "agnostic": lambda: eq.objectives.agnostic(N),
    "cvar": lambda: eq.objectives.cvar(N, 0.5),
    "kl": lambda: eq.objectives.kl(N, 0.1),
    "tv": lambda: eq.objectives.tv(N, 0.1),
    "chi2_ball": lambda: eq.objectives.chi2_ball(N, 0.2),
}
TASK = eq.tasks.ridge(DIM, 0.1)


@cache
def metric():
    with jax.enable_x64(True):
        return eq.metric.agree(TASK, unequal())


def told(name, dual, **changes):
    algorithm = ALGORITHMS[name].build_example(eq.tasks.in_metric(TASK), dual, **changes)
    return eq.algorithms.told_in_x(algorithm, TASK, metric())


@partial(each_kind, kinds=("fedavg", "scaffpd"))
def test_it_starts_at_x_and_comes_down(name):
    algorithm, dual = told(name, DUALS["chi2"]()), DUALS["chi2"]()
    data, plain = eq.tasks.WithMetric(unequal(), metric()), unequal()
    begun = algorithm.model(algorithm.init(start()))
    np.testing.assert_allclose(begun, start(), rtol=1e-12)
    done = eq.simulate(algorithm, start(), data, KEY, rounds=6, lost=lose())
    before, after = (eq.tasks.losses(TASK, x, plain) for x in (start(), algorithm.model(done.server)))
    assert float(jnp.mean(after)) < float(jnp.mean(before))
    assert float(dual.value(after)) < float(dual.value(before))


CUTS = [(None, True), (2, True), (None, False), (2, False)]


@pytest.mark.parametrize(
    ("rank", "intercept"), first(1, CUTS, "::test_what_clients_said_in_the_metric_is_of_x[None-True]")
)
def test_what_clients_said_in_the_metric_is_of_x(rank, intercept):
    """Points, losses and gradients are those of the plain task; a gradient's rounding is at most so much longer."""
    rng = np.random.default_rng(0)
    inner = eq.tasks.softmax_regression(DIM, 2, l2=(0.1,) * 2 * DIM + (1e-3,) * 2) if intercept else None
    task, data = inner or TASK, unequal()
    if intercept:
        data = data._replace(labels=(data.labels > 0).astype(jnp.int32))
    dual = DUALS["chi2"]()
    found = eq.metric.in_metric(
        lambda task: ALGORITHMS["scaffpd_model"].build_example(task, dual), task, data, rank=rank
    )
    server = eq.simulate(found.algorithm, jnp.zeros(task.size), found.data, KEY, rounds=3).server
    cuts = found.algorithm.cuts(server)
    assert len(cuts.points) == 3
    for x, losses, gradients in zip(cuts.points, cuts.losses, cuts.gradients, strict=True):
        np.testing.assert_allclose(losses, eq.tasks.losses(task, jnp.asarray(x), data), rtol=1e-10)
        each = [task.grad(jnp.asarray(x), data.client(i)) for i in range(N)]
        np.testing.assert_allclose(gradients, each, rtol=1e-9, atol=1e-11)
    linear, size = task.linear, task.size
    nudge = rng.normal(size=(20, size))
    longer = np.linalg.norm(gradients_of_model(linear, found.metric, nudge), axis=1) / np.linalg.norm(nudge, axis=1)
    assert longer.max() <= stretch(linear, found.metric) ** -0.5 * (1 + 1e-12)


def check_the_saddle_point(kind):
    dual = DUALS[kind]()
    algorithm = told("scaffpd_model", dual, steps=5, memory=5)
    done = eq.simulate(algorithm, start(), eq.tasks.WithMetric(unequal(), metric()), KEY, rounds=40)
    x = algorithm.model(done.server)
    found = eq.certificates.certify(TASK, dual, unequal(), x, algorithm.weights(done.server))  # of the plain problem
    assert float(found.gap) < 1e-10 * float(found.robust)
    plain = ALGORITHMS["scaffpd_model"].build_example(TASK, dual, steps=5, memory=5)
    same = plain.model(eq.simulate(plain, start(), unequal(), KEY, rounds=60).server)
    np.testing.assert_allclose(x, same, rtol=0, atol=1e-10 * float(jnp.max(jnp.abs(same))))


@pytest.mark.thorough(witness="experiment/test_conditioning.py::test_the_saddle_point_is_the_same")
def test_the_saddle_point_is_that_of_the_plain_problem():
    check_the_saddle_point("chi2")


@pytest.mark.thorough(witness="experiment/test_conditioning.py::test_the_saddle_point_is_the_same")
@pytest.mark.parametrize("kind", [kind for kind in DUALS if kind != "chi2"])
def test_the_saddle_point_is_that_of_the_plain_problem_for_every_dual(kind):
    check_the_saddle_point(kind)
