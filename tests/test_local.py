import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.local import descend

X = jnp.array([1.0, -2.0])
SHIFT = jnp.array([0.3, 0.1])


def gradient(u, draw):
    return jnp.array([2.0, 0.5]) * u + (0 if draw is None else draw)


def plain(steps, shift, pull, draws):
    u, path = np.asarray(X), []
    for j in range(steps):
        g = np.array([2.0, 0.5]) * u + (0 if draws is None else np.asarray(draws[j]))
        u = u - 0.1 * (g + (0 if shift is None else np.asarray(shift)) + pull * (u - np.asarray(X)))
        path.append(u)
    return path


@pytest.mark.parametrize("shift", [None, SHIFT])
@pytest.mark.parametrize("pull", [0.0, 1.5])
@pytest.mark.parametrize("draws", [None, jnp.arange(7.0)])
def test_is_the_plain_loop(shift, pull, draws):
    path = plain(7, shift, pull, draws)
    how = {"steps": 7, "lr": 0.1, "shift": shift, "pull": pull}
    np.testing.assert_allclose(descend(gradient, X, draws, **how), path[-1], rtol=1e-13)
    for t in (1, 4, 7):
        end, seen = descend(gradient, X, draws, **how, snapshot=jnp.int32(t))
        np.testing.assert_allclose(end, path[-1], rtol=1e-13)
        np.testing.assert_allclose(seen, path[t - 1], rtol=1e-13)
