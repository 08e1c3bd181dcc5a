"""SCAFF-PD on the synthetic robust regression: N = 5, d = 10, 100 samples, J = 100 exact local steps, float64."""

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from benchmarks.timing import Row, median, timed

N, DIM, STEPS, LR, TAU, SIGMA, THETA, RHO, MU = 5, 10, 100, 0.005, 0.5, 3.0, 0.5, 0.05, 0.1
ROUNDS = 200


def project(v: np.ndarray) -> np.ndarray:
    u = np.sort(v)[::-1]
    levels = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - levels[np.count_nonzero(u > levels) - 1], 0)


def numpy_loop(a: np.ndarray, y: np.ndarray, rounds: int) -> np.ndarray:
    """What a careful researcher writes: Gram matrices once, all clients in one batched product."""
    m = y.shape[1]
    gram = 2 / m * np.swapaxes(a, 1, 2) @ a + MU * np.eye(DIM)
    cross = 2 / m * np.einsum("nmd,nm->nd", a, y)
    energy = np.mean(y**2, axis=1)
    x, lam, before = np.zeros(DIM), np.full(N, 1 / N), None
    for _ in range(rounds):
        gx = gram @ x
        losses, c_i = gx @ x / 2 - cross @ x + energy, gx - cross
        s = (1 + THETA) * losses - THETA * (losses if before is None else before)
        lam = project((lam + SIGMA * s) / (1 + SIGMA * RHO * N))
        shift = lam @ c_i - c_i - cross
        u = np.broadcast_to(x, (N, DIM))
        for _ in range(STEPS):
            u = u - LR * ((gram @ u[:, :, None])[:, :, 0] + shift)
        x, before = x - TAU * (lam @ (x - u)) / (LR * STEPS), losses
    return x


def run() -> list[Row]:
    with jax.enable_x64(True):
        shards = eq.data.synthetic.regression(n=N, dim=DIM, samples=100, shift=0.1, key=jax.random.key(0))
        rule = eq.steps.constant(tau=TAU, sigma=SIGMA, theta=THETA)
        algorithm = eq.algorithms.scaffpd(
            eq.tasks.ridge(DIM, MU), eq.objectives.chi2(N, RHO), eq.cohorts.everyone(N), rule, steps=STEPS, local_lr=LR
        )
        x0, results = jnp.zeros(DIM), []
        first = timed(lambda: results.append(eq.simulate(algorithm, x0, shards, 0, rounds=ROUNDS)))
        ours = sorted(eq.simulate(algorithm, x0, shards, 0, rounds=20 * ROUNDS).seconds for _ in range(3))[1] / (
            20 * ROUNDS
        )
        a, y = np.asarray(shards.inputs), np.asarray(shards.labels)
        plain = median(lambda: numpy_loop(a, y, ROUNDS)) / ROUNDS
        np.testing.assert_allclose(numpy_loop(a, y, ROUNDS), results[0].server.x, rtol=1e-8)  # the same work
        slow = timed(lambda: eq.debug(algorithm, x0, shards, 0, rounds=5)) / 5
    return [
        Row("equipoise, compiled", ours, first),
        Row("NumPy loop, Gram matrices, clients batched", plain, plain * ROUNDS),
        Row("equipoise, debug engine", slow, slow * ROUNDS),
    ]
