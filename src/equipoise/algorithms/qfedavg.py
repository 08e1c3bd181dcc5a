"""q-FedSGD and q-FedAvg: descent on a power of the losses, with a step size that adapts to the power.

    min_x  sum_i p_i f_i(x)^{q+1} / (q + 1)          q = 0: the average; the larger q, the more the worst clients count

Algorithms 1 and 2 of Li, Sanjabi, Beirami and Smith (2020), "Fair resource allocation in federated learning":

    w           server.x
    F_k         F               before training, on all local data, plus 1e-10
    Delta w_k   G               q-FedSGD: the gradient; q-FedAvg: L (w - w_k) after J local steps
    Delta_k     F^q G
    h_k         q F^{q-1} |G|^2 + L F^q
    L           1 / local_lr    the Lipschitz estimate, as tuned for q = 0
    p_k         p               by drawing clients: the sums over a cohort are plain

F^q G is the gradient of F^{q+1}/(q+1) and h bounds its Lipschitz constant (Lemma 3), so a step size found for q = 0
serves every q. Both sums are all that the server needs.

Avoided: FedTorch's q-FFL, which takes |F^q G|^2 for |G|^2 in h and sums the batch losses in F.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise.algorithms.fedavg import Server
from equipoise.algorithms.messages import ModelMessage, send_model
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_clients
from equipoise.errors import all_positive, positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.objectives.checks import reference
from equipoise.protocol import Algorithm, Cohort, Data, Exchange, RandomKey, Replies, Reply, Vector, Weighted, mean
from equipoise.tasks import Task

TINY = 1e-10  # keeps F^{q-1} finite where a client's loss is zero


@numbers_are_leaves(static=("p",))
def qfedsgd(task: Task, sample: Sample, *, q: float, lr: float, p: ArrayLike | None = None) -> Algorithm[Server, None]:
    """q-FedSGD, Algorithm 1: one gradient over all of a client's data; lr is 1/L. `p`: see `qfedavg`."""
    positive("lr", lr)

    def gradient(x: Vector, data: Data, key: RandomKey) -> Vector:
        return task.grad(x, data)

    return fair("qfedsgd", gradient, task, sample, q, 1 / lr, p)


@numbers_are_leaves(static=("p",))
def qfedavg(
    task: Task, sample: Sample, *, q: float, steps: int, local_lr: float, p: ArrayLike | None = None
) -> Algorithm[Server, None]:
    """q-FedAvg, Algorithm 2.

    Args:
        task: the clients' losses, none of them below zero.
        sample: everyone(n), uniform(n, m) or coin(n, c) for p = 1/n; by_weight(m), the paper's, draws clients by `p`.
        q: how much the worse clients count; 0 is FedAvg.
        local_lr: eta, local step size; also 1/L.
        p: the clients' weights, with by_weight(m) only.
    """
    all_positive(steps=steps, local_lr=local_lr)

    def gradient(x: Vector, data: Data, key: RandomKey) -> Vector:
        return (x - task.descend(x, data, key, steps=steps, lr=local_lr)) / local_lr

    return fair("qfedavg", gradient, task, sample, q, 1 / local_lr, p)


def fair(
    name: str,
    gradient: Callable[[Vector, Data, RandomKey], Vector],
    task: Task,
    sample: Sample,
    q: float,
    lipschitz: float,
    p: ArrayLike | None,
) -> Algorithm[Server, None]:
    """What the two have in common: everything but how a client finds its G."""
    require(q >= 0, f"q is {q}; give zero (the average) or more")
    n, probabilities = drawn_from(sample, p)

    def choose(server: Server, key: RandomKey) -> tuple[Server, Cohort]:
        return server, sample(key, None if probabilities is None else jnp.asarray(probabilities, server.x.dtype))

    def train(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        x = message.x
        big_f = jnp.maximum(task.loss(x, data), 0) + TINY
        g = gradient(x, data, key)
        h = big_f**q * (q * (g @ g) / big_f + lipschitz)  # q F^{q-1} |G|^2 + L F^q
        return None, Reply(total=Weighted(h, big_f**q * g))

    def step(server: Server, replies: Replies) -> Server:
        return Server(server.x - mean(replies.total))  # sum of Delta_k over the sum of h_k

    exchange = Exchange("train", choose, send_model, train, step)
    return Algorithm(name, n, task.size, task.prepare, Server, round=(exchange,))


def drawn_from(sample: Sample, p: ArrayLike | None) -> tuple[int, Float[np.ndarray, " n"] | None]:
    """The number of clients, and the probabilities that by_weight draws them with."""
    if sample.n is not None:
        require(
            p is None,
            f"p is given, but {sample.name} does not draw by it and q-FFL's sums have no weights; use by_weight(m)",
        )
        return sample.n, None
    require(p is not None, f"{sample.name} draws clients by p; give p, or use everyone(n), uniform(n, m) or coin(n, c)")
    n = np.asarray(p).size
    check_clients(n)
    return n, reference(p, n, zeros=True)


QFEDSGD, QFEDAVG = (
    Record.usual(
        factory,
        "Σ p_i f_i^(q+1)",
        "Li et al. 2020",
        example={"q": 1.5},
        defaults={"q": 1.0},
        not_settings=("p",),
        descent={"q": 0.0},
    )
    for factory in (qfedsgd, qfedavg)
)
