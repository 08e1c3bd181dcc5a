"""What an accelerator makes of the engine: `python -m benchmarks.gpu` (one device, some minutes).

Every figure is of the library as it is called: the seconds to the first round (data on the device, compiled), and the
time of a round after that. Where a bound is known it stands beside it: bytes that must be read and flops that must be
done, counted in the code below, over what the device can do. With $OUT set, the same lines go to $OUT/gpu.txt.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.models import Model, cnn, cross_entropy, resnet
from equipoise.models.convolution import Bias, Weight, plus, pooled

# Of an H200: bytes/s of its memory, flop/s of its matrix units.
BANDWIDTH, PEAK = 4.8e12, {"float32": 67e12, "tf32": 495e12}
LINES: list[str] = []


def say(line: str) -> None:
    print(line, flush=True)
    LINES.append(line)
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "gpu.txt").write_text("\n".join(LINES) + "\n")


def timed(what: str, algorithm: object, x: jax.Array, data: object, rounds: int, **how: object) -> float:
    """ms of a round; says what the start took."""
    clock = time.perf_counter()
    eq.simulate(algorithm, x, data, 0, rounds=1, **how)
    start = time.perf_counter() - clock
    result = eq.simulate(algorithm, x, data, 0, rounds=rounds, **how)
    ms = result.seconds / rounds * 1e3
    say(f"{what}: {ms:.3f} ms/round; {start:.1f} s to the end of round 1, compiled and all")
    return ms


def least_squares(n: int, m: int, p: int, k: int, rounds: int) -> None:
    """SCAFF-PD, 10 exact local steps in sample space."""
    keys = jax.random.split(jax.random.key(0), 2)
    inputs = jax.jit(lambda key: jax.random.normal(key, (n, m, p), jnp.float32) / np.sqrt(p))(keys[0])
    labels = jax.random.randint(keys[1], (n, m), 0, k)
    data = eq.data.Shards(inputs, labels, jnp.full(n, m, jnp.int32))
    task, steps = eq.tasks.least_squares(p, k, l2=1e-3), 10
    rule = eq.steps.constant(tau=0.5, sigma=0.1, theta=0.5)
    algorithm = eq.algorithms.scaffpd(
        task, eq.objectives.chi2(n, 0.1), eq.cohorts.everyone(n), rule, steps=steps, local_lr=0.5
    )
    x = jnp.zeros(task.size, jnp.float32)
    # Products with A, each 2 n m p k flops: A x and its transpose for loss and gradient, A x and A shift before the
    # steps, z A after them; A is read once for each, and once more where A x is not kept from one exchange to the next.
    products, reads = 5, 4
    flops = products * 2.0 * n * m * p * k + steps * 2.0 * n * m * m * k
    moved = reads * 4.0 * n * m * p + steps * 4.0 * n * m * m
    for products_in in ("float32", "tf32"):
        bound = max(flops / PEAK[products_in], moved / BANDWIDTH) * 1e3
        what = f"least squares {n} x {m} x {p} x {k}, {products_in}"
        ms = timed(what, algorithm, x, data, rounds, products=products_in)
        if m > p:  # Gram matrices instead of the data: the count above is not theirs
            continue
        say(
            f"    bound {bound:.2f} ms ({flops / 1e12:.2f} Tflop at {PEAK[products_in] / 1e12:.0f} Tflop/s, "
            f"{moved / 1e9:.1f} GB at {BANDWIDTH / 1e12:.1f} TB/s): {100 * bound / ms:.0f}% of it"
        )


def softmax(n: int, m: int, samples: int, features: int, batch: int, steps: int, rounds: int, what: str) -> None:
    keys = jax.random.split(jax.random.key(1), 2)
    inputs = jax.jit(lambda key: jax.random.normal(key, (n, samples, features), jnp.float32))(keys[0])
    data = eq.data.Shards(inputs, jax.random.randint(keys[1], (n, samples), 0, 10), jnp.full(n, samples, jnp.int32))
    task = eq.tasks.softmax_regression(features, 10, batch=batch)
    sample = eq.cohorts.everyone(n) if m == n else eq.cohorts.uniform(n, m)
    algorithm = eq.algorithms.fedavg(task, sample, steps=steps, local_lr=0.01)
    timed(f"softmax regression, {what}", algorithm, jnp.zeros(task.size, jnp.float32), data, rounds)


def natively(x: jax.Array, weight: Weight, bias: Bias, stride: int, pool: bool) -> jax.Array:
    """XLA's own convolution; with other weights for each client it becomes one of as many groups."""
    around = (weight.shape[2] // 2,) * 2
    flat = weight.transpose(2, 3, 1, 0)
    out = jax.lax.conv_general_dilated(
        x, flat, (stride, stride), (around, around), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return plus(pooled(out) if pool else out, bias)


def images(name: str, model: Model, n: int, rounds: int, products: str) -> None:
    """A network on 32 x 32 x 3 images, 10 local steps of batch 50, in each form of convolution."""
    module = sys.modules["equipoise.models.convolution"]
    key = jax.random.key(2)
    inputs = jax.random.randint(key, (n, 200, 32, 32, 3), 0, 256, jnp.uint8)
    data = eq.data.Shards(inputs, jax.random.randint(key, (n, 200), 0, 10), jnp.full(n, 200, jnp.int32))
    chosen = dict(module.BY_BACKEND)
    module.CONVOLUTIONS["native"] = natively
    for form in module.CONVOLUTIONS:
        module.BY_BACKEND[jax.default_backend()] = form
        task = eq.tasks.task_of(model.init, model.apply, cross_entropy, batch=50)
        algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(n), steps=10, local_lr=0.01)
        mark = " (the default)" if chosen.get(jax.default_backend(), "rows") == form else ""
        what = f"{name}, {n} clients x 10 steps x 50 images, {form}{mark}, {products}"
        timed(what, algorithm, task.init(key), data, rounds, products=products)
    module.BY_BACKEND.update(chosen)


def sweep() -> None:
    """27 runs of one method as one program, against one run."""
    data = eq.data.synthetic.regression(n=20, dim=50, samples=200, key=jax.random.key(0))
    data = jax.tree.map(lambda a: a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a, data)
    task, n = eq.tasks.ridge(50, 0.1), 20
    rule = eq.steps.constant(tau=0.1, sigma=0.1, theta=0.5)

    def make(local_lr: float, rho: float) -> object:
        dual = eq.objectives.chi2(n, rho)
        return eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(n), rule, steps=10, local_lr=local_lr)

    x, times = jnp.zeros(50, jnp.float32), []
    settings = [make(local_lr, rho) for local_lr in (0.001, 0.002, 0.005) for rho in (0.05, 0.1, 0.5)]
    for trials in (eq.grid(make(0.002, 0.1), x, data), eq.grid(settings, x, data, range(3))):
        clock = time.perf_counter()
        eq.sweep(trials, rounds=300)
        times.append(time.perf_counter() - clock)
    say(f"a sweep of 27 runs of 300 rounds: {times[1]:.2f} s; of one: {times[0]:.2f} s, both from nothing")


def main() -> None:
    device = jax.devices()[0]
    say(f"{device.device_kind}, JAX {jax.__version__}")
    small, deep = cnn((32, 32, 3), 10), resnet((32, 32, 3), 10, blocks=1)
    everything: list[tuple[Callable, tuple]] = [
        (images, ("CNN", small, 20, 20, "float32")),
        (images, ("CNN", small, 20, 20, "tf32")),
        (images, ("CNN", small, 100, 5, "float32")),
        (images, ("ResNet, width 16, one block a stage", deep, 20, 5, "float32")),
        (images, ("ResNet, width 16, one block a stage", deep, 20, 5, "tf32")),
        (softmax, (100, 20, 600, 784, 120, 25, 200, "20 of 100 clients (W1)")),
        (softmax, (100, 100, 600, 784, 120, 25, 100, "100 of 100 clients (W1b)")),
        (softmax, (1000, 1000, 600, 784, 120, 25, 20, "1000 of 1000 clients")),
        (softmax, (10**6, 1000, 10, 32, 5, 5, 200, "1000 of 10^6 small clients")),
        (sweep, ()),
        (least_squares, (20, 5000, 256, 200, 100)),
        (least_squares, (20, 1000, 10_000, 100, 100)),
        (least_squares, (20, 2500, 50_000, 100, 20)),
    ]
    for run, arguments in everything:
        try:
            run(*arguments)
        except Exception:  # the other figures are still wanted
            say(f"{run.__name__}{arguments} FAILED: {traceback.format_exc(limit=3)}")
        jax.clear_caches()


if __name__ == "__main__":
    main()
