"""The metric of a federation: one exchange of sums, after which every method needs several times fewer rounds.

    method = eq.metric.in_metric(lambda task: eq.algorithms.scaffpd_model(task, dual, sample, steps=10), task, shards)
    result = eq.simulate(method.algorithm, x, method.data, key, rounds=10)
    x = method.algorithm.model(result.server)

`tasks/metric.py` says what it is. The saddle point stays where it is, and models are still x.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from equipoise.algorithms.in_metric import told_in_x
from equipoise.algorithms.second_moments import metric_from, second_moments
from equipoise.cohorts import everyone
from equipoise.data.shards import ClientData, client_shapes
from equipoise.engines.kernel import Lost
from equipoise.engines.simulator import simulate
from equipoise.errors import require
from equipoise.protocol import Algorithm, Data, RandomKey, wire
from equipoise.tasks import in_metric as task_in_metric
from equipoise.tasks.metric import LowRank, Metric, Triangular, WithMetric, linear_of
from equipoise.tasks.task import Linear, Task

FULL = (200, 20)  # inputs for which all of the moments are worth sending: so many, and so many more for each output
RANK, SHARE = 64, 8  # of others: so many directions, or one in so many inputs


class InMetric(NamedTuple):
    """What to run, on what, and where it lies."""

    algorithm: Algorithm
    data: WithMetric
    metric: Metric


def in_metric(
    build: Callable[[Task], Algorithm],
    task: Task,
    data: ClientData,
    *,
    rank: int | None = None,
    dtype: DTypeLike | None = None,
) -> InMetric:
    """The algorithm that `build` makes of a task, in the metric of `data`; `rank` as in `agree`.

    `dtype` is the precision of the run; the default is that of the data.
    """
    metric = agree(task, data, rank=rank, dtype=dtype)
    require(metric is not None, "no client told its second moments; a metric needs at least one")
    assert metric is not None
    return InMetric(told_in_x(build(task_in_metric(task)), task, metric), WithMetric(data, metric), metric)


def agree(
    task: Task,
    data: ClientData,
    *,
    rank: int | None = None,
    dtype: DTypeLike | None = None,
    key: RandomKey | int = 0,
    lost: Lost | None = None,
    engine: Callable[..., Any] = simulate,
) -> Metric | None:
    """The metric that the clients of `data` agree on; None: all their replies were lost.

    Args:
        task: of a model that is linear in its inputs.
        data: as for `simulate`.
        rank: how many directions, fewer than inputs; None: all of them, by a triangular factor.
        dtype: the precision of the metric; that of the inputs unless given.
        key: for `lost`.
        lost: as in `simulate`; who answers is in the mean.
        engine: `simulate` or `debug`.
    """
    linear, like = linear_of(task), client_shapes(data).inputs
    if dtype is None:
        dtype = like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jnp.zeros(()).dtype
    kind = like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else dtype
    with jax.enable_x64(True):
        algorithm = second_moments(linear, everyone(data.n), rank=rank)
        server = engine(algorithm, jnp.zeros(algorithm.size, kind), data, key, rounds=1, lost=lost).server
        moments = jax.tree.map(np.asarray, server)
    return metric_from(linear, moments, rank, dtype)


def chosen_rank(linear: Linear) -> int | None:
    """By the number of inputs: None, all of the moments, where they cost less than the rounds that they save."""
    least, more = FULL
    d = linear.features
    return None if d <= least + more * linear.outputs else max(1, min(RANK, d // SHARE))


def bytes_of_agreement(linear: Linear, n: int, rank: int | None, like: Data, dtype: DTypeLike) -> tuple[int, int]:
    """Down and up, over all n clients: the sums, and the metric that everybody is told. `like`: a client's shard."""
    with jax.enable_x64(True):
        algorithm = second_moments(linear, everyone(n), rank=rank)
        exchanges = wire(algorithm, jnp.zeros(algorithm.size), like)
    d, real = linear.features, np.dtype(dtype).itemsize
    up = real * ((d * (d + 1) // 2 if rank is None else (d + 1) * rank + 1) + d * linear.intercept)
    return n * (up + sum(e.down for e in exchanges)), n * sum(e.up for e in exchanges)


def packed(metric: Metric) -> dict[str, np.ndarray]:
    """Its arrays by name, without the zeros of a triangle."""
    arrays = {} if metric.centre is None else {"centre": np.asarray(metric.centre)}
    if isinstance(metric.factor, Triangular):
        W = np.asarray(metric.factor.W)
        return arrays | {"upper": W[np.triu_indices(len(W))]}
    return arrays | {name: np.asarray(a) for name, a in metric.factor._asdict().items()}


def unpacked(arrays: dict[str, np.ndarray], linear: Linear) -> Metric:
    """What `packed` took apart; one that does not fit the model is refused."""
    d = features = linear.features
    sizes = {"upper": d * (d + 1) // 2} if "upper" in arrays else {"V": d * len(arrays.get("s", ())), "gain": 1}
    sizes |= {"centre": d} if linear.intercept else {}
    fits = all(name in arrays and arrays[name].size == size for name, size in sizes.items())
    require(fits, f"the metric does not fit a model of {d} inputs; give server and sites the same version")
    given = {name: jnp.asarray(a) for name, a in arrays.items()}
    centre = given.pop("centre", None)
    if "upper" not in given:
        return Metric(LowRank(given["V"].reshape(features, -1), given["s"], given["gain"].reshape(())), centre)
    W = np.zeros((features, features), arrays["upper"].dtype)
    W[np.triu_indices(features)] = arrays["upper"]
    return Metric(Triangular(jnp.asarray(W)), centre)
