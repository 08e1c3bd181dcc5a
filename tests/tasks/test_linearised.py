import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import equipoise as eq
from equipoise import models
from equipoise.tasks import linearised
from tests.problems import assert_same

RNG = np.random.default_rng(0)
INPUTS, LABELS = RNG.normal(size=(6, 4)), RNG.integers(0, 3, 6).astype(np.int32)
SHARD = eq.data.stack([(INPUTS, LABELS)]).client(0)
MODEL = models.mlp(4, (5,), 3)
PARAMS = MODEL.init(jax.random.key(0))
THETA, UNRAVEL = ravel_pytree(PARAMS)
DELTA = jnp.asarray(0.3 * RNG.normal(size=THETA.size))


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_is_the_first_order_expansion(loss):
    """Outputs, loss and gradient from the Jacobian itself."""
    task = linearised(PARAMS, MODEL.apply, models.LOSSES[loss], l2=0.1)
    jacobian = jax.jit(jax.jacobian(lambda t: MODEL.apply(UNRAVEL(t), jnp.asarray(INPUTS))))(THETA)

    def outputs(x):
        return MODEL.apply(PARAMS, jnp.asarray(INPUTS)) + jnp.tensordot(jacobian, x, 1)

    def whole(x):
        return jnp.mean(models.LOSSES[loss](outputs(x), jnp.asarray(LABELS))) + 0.05 * x @ x

    @jax.jit
    def both(x):
        ours = task.predict(x, jnp.asarray(INPUTS)), task.loss(x, SHARD), task.grad(x, SHARD)
        return ours, (outputs(x), whole(x), jax.grad(whole)(x)), jax.hessian(whole)(x)

    ours, theirs, hessian = both(DELTA)
    assert_same(ours[:2], theirs[:2], rtol=1e-12)
    assert_same(ours[2], theirs[2], rtol=1e-11, atol=1e-13)
    assert np.linalg.eigvalsh(hessian).min() >= task.strong_convexity - 1e-12 == 0.1 - 1e-12


def test_starts_as_the_network_and_trains():
    task = linearised(PARAMS, MODEL.apply, models.cross_entropy, l2=0.01, batch=3)
    x = task.init(jax.random.key(0))
    assert_same(task.predict(x, jnp.asarray(INPUTS)), MODEL.apply(PARAMS, jnp.asarray(INPUTS)))
    data = eq.data.stack([(INPUTS, LABELS), (INPUTS[::-1], LABELS[::-1])])
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(2), steps=5, local_lr=0.3)
    end = eq.simulate(algorithm, x, data, 0, rounds=20).server.x
    assert task.loss(end, SHARD) < 0.5 * task.loss(x, SHARD)
    assert linearised(PARAMS, MODEL.apply, models.cross_entropy, l2=0.01, convex=False).strong_convexity is None


def test_a_linear_model_is_its_own_expansion():
    model = models.linear(4, 3)
    params = model.init(jax.random.key(0))
    task = linearised(params, model.apply, models.cross_entropy, l2=0.1)
    plain = eq.tasks.task_of(model.init, model.apply, models.cross_entropy, l2=0.1)
    x = jnp.asarray(RNG.normal(size=task.size))
    assert_same((task.loss(x, SHARD), task.grad(x, SHARD)), (plain.loss(x, SHARD), plain.grad(x, SHARD)))
