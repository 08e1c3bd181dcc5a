"""Federated averaging in a plain NumPy loop, on the shape of SPEED.md's first workload; nothing of JAX is imported."""

import numpy as np

CLIENTS, SAMPLES, FEATURES, CLASSES, COHORT, BATCH, STEPS, LR = 100, 600, 784, 10, 20, 120, 25, 0.01


def make_data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels and labels: the arithmetic does not depend on the values."""
    pixels = rng.integers(0, 256, (CLIENTS, SAMPLES, FEATURES), np.uint8)
    return pixels.astype(np.float32) / 255, rng.integers(0, CLASSES, (CLIENTS, SAMPLES), np.int32)


def numpy_round(
    w: np.ndarray, b: np.ndarray, inputs: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple:
    dw, db, rows = np.zeros_like(w), np.zeros_like(b), np.arange(BATCH)
    for i in rng.choice(CLIENTS, COHORT, replace=False):
        u, v = w.copy(), b.copy()
        for _ in range(STEPS):
            drawn = rng.integers(0, SAMPLES, BATCH)
            a, y = inputs[i][drawn], labels[i][drawn]
            z = a @ u.T + v
            z -= z.max(axis=1, keepdims=True)
            np.exp(z, out=z)
            z /= z.sum(axis=1, keepdims=True)
            z[rows, y] -= 1
            z *= LR / BATCH
            u -= z.T @ a
            v -= z.sum(axis=0)
        dw += u - w
        db += v - b
    return w + dw / COHORT, b + db / COHORT
