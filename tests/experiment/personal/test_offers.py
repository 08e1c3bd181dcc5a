"""What each owner should use, against scipy and by owners of whom it is plain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from equipoise.data.shards import Shards
from equipoise.experiment import config, problems, run
from equipoise.experiment.personal.baselines import FEWEST, OwnFit, own_fits, watched
from equipoise.experiment.personal.offers import ALONE, PULLS, SHARED, best_of, best_of_each
from equipoise.experiment.personal.paths import FOLDS, fold
from equipoise.tasks import own_part, softmax_regression
from tests.searches import tiny

W = np.array([2.0, -1.0, 0.5])
ROWS = 80


def owner(slopes, intercept, m, seed, padded=ROWS):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(padded, 3))
    y = (a @ slopes + intercept + rng.logistic(size=padded) > 0).astype(np.int32)
    return a, y, m


@pytest.fixture(scope="module")
def federation():
    """One like the others with few rows, one of quite other slopes with many, one with a few rows only."""
    owners = [owner(W, 1.0, 20, 0), owner(-W, 0.0, ROWS, 1), owner(W, -1.0, FEWEST - 1, 2)]
    a, y, m = zip(*owners, strict=True)
    train = Shards(jnp.asarray(np.stack(a), jnp.float32), jnp.asarray(np.stack(y)), jnp.asarray(m, jnp.int32))
    task = own_part(softmax_regression(3, 2, l2=0.01))
    shared = jnp.asarray(np.concatenate([-W / 2, W / 2, [0.0, 0.0]]), jnp.float32)
    return task, shared, train, own_fits(task, True, shared, train)


def test_who_is_like_the_others_keeps_the_shared_model_and_who_is_not_has_its_own(federation):
    task, shared, train, alone = federation
    found = best_of_each(task, shared, train, alone)
    assert found.pull[0] == SHARED
    np.testing.assert_array_equal(found.model[0], shared)
    assert found.pull[1] == ALONE
    np.testing.assert_array_equal(found.model[1], alone.model[1])
    assert found.pull[2] == SHARED  # too few rows to say


def test_how_many_have_their_own_models_is_heard(federation):
    task, shared, train, alone = federation
    heard = []
    with watched(lambda done, total: heard.append((done, total))):
        again = own_fits(task, True, shared, train)
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 3)]
    np.testing.assert_array_equal(again.model, alone.model)


def test_a_tuned_model_is_the_least_of_loss_and_pull(federation):
    """With a model of its own that is hopeless, the owner of other slopes tunes the shared one."""
    task, shared, train, alone = federation
    shard = train.client(1)
    hopeless = OwnFit(jnp.float32(9.0), alone.model[1], jnp.full(FOLDS, 200.0))
    found = jax.jit(lambda x, shard, fit: best_of(task, x, shard, fit))(shared, shard, hopeless)
    assert float(found.pull) in np.float32(PULLS)
    a, y = np.asarray(shard.inputs, np.float64), np.asarray(shard.labels)

    def objective(v):  # of the difference of the two outputs: slopes, intercept, own intercept
        z = a @ v[:3] + v[3] + v[4]
        pulled = float(found.pull) / 4 * (np.sum((v[:3] - W) ** 2) + v[3] ** 2)
        return np.mean(np.logaddexp(0, z) - y * z) + pulled + v[4] ** 2 / (2 * len(y))

    best = minimize(objective, np.zeros(5), tol=1e-10).x
    weights = np.asarray(found.model[:6]).reshape(2, 3)
    np.testing.assert_allclose(weights[1] - weights[0], best[:3], atol=2e-3)


def test_it_is_chosen_by_the_folds_of_the_own_loss(federation):
    """The same folds as the own model's loss, so that the two can be compared."""
    _, _, train, _ = federation
    shard = train.client(0)
    left = [int(fold(shard, jnp.int32(k))[1].sizes) for k in range(6)]
    assert left == [4, 4, 4, 4, 4, 0]


def test_of_huge_federations_nothing_is_chosen(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    monkeypatch.setattr(problems, "MOST_FITTED", 0)
    told = config.parse(tiny.settings(tiny.silos(tmp_path / "silos"), personal={"kind": "best"}))
    done = run.run(told, tmp_path / "out")
    assert done.personal is None
    assert any("what each owner should use was not chosen" in event for event in done.outcome.events)
