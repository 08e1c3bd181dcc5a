"""Losses less a constant of each client's own, which stays with its rows: for clients that weigh themselves."""

from typing import NamedTuple

from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise.protocol import Data, RandomKey, Vector
from equipoise.tasks.task import Scalar, Task


class WithBaseline(NamedTuple):
    """Clients' data with a constant each; or one client's."""

    data: Data
    baseline: Float[Array, "*n"]

    @property
    def n(self) -> int:
        return self.data.n

    @property
    def sizes(self) -> Array:
        return self.data.sizes

    def client(self, i: ArrayLike) -> "WithBaseline":
        return WithBaseline(self.data.client(i), self.baseline[i])


def less_baseline(task: Task) -> Task:
    """`task`, whose loss is f_i(x) - b_i on data `WithBaseline`; on other data nothing changes."""

    def rows(data: Data) -> Data:
        return data.data if isinstance(data, WithBaseline) else data

    def loss(x: Vector, data: Data, key: RandomKey | None = None) -> Scalar:
        plain = task.loss(x, rows(data), key)
        return plain - data.baseline.astype(x.dtype) if isinstance(data, WithBaseline) else plain

    def prepare(data: Data) -> Data:
        prepared = task.prepare(rows(data))
        return WithBaseline(prepared, data.baseline) if isinstance(data, WithBaseline) else prepared

    return task._replace(
        loss=loss,
        grad=lambda x, data, key=None: task.grad(x, rows(data), key),
        descend=lambda x, data, key, **options: task.descend(x, rows(data), key, **options),
        prepare=prepare,
    )
