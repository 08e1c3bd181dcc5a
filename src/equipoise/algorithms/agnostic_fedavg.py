"""AgnosticFedAvg: local steps on a mixture of domains, whose weights follow the domains' losses.

    min_x  max_{lam in Delta_p}  sum_i lam_i L_i(x)          L_i: the mean loss of domain i, whoever holds its examples

Ro, Chen, Mathews, Mohri and Suresh (2021), "Communication-efficient agnostic federated averaging". A client may hold
examples of several of the p domains; by default every client is a domain of its own.

    w, lam           server.x, server.lam
    N_i              server.window     the examples of domain i in each of the last W rounds; ones before the first
    alpha_i          lam_i / mean of the window
    N_i^k, L_i^k     counts, sums      client k's examples of domain i, and the sum of their losses at x
    beta_k           beta              sum_i alpha_i N_i^k
    Delta^k          y - x             after J steps on 1/beta_k sum_i alpha_i (sum of the losses of domain i)
    gamma_lambda     dual_lr           lam_i <- lam_i exp(gamma L_i) / Z, with L_i = sum_k L_i^k / sum_k N_i^k

One exchange; all that the server sees is sums over the cohort.

Avoided: the public code (FedJAX) sums the losses of a minibatch of B examples where beta_k counts all n_k of them:
steps are B/n_k times as long as on all data. Here a minibatch estimates the gradient of the whole local loss: one batch
per domain, each mean weighted by alpha_i N_i^k / beta_k.

Beyond the paper: a domain of which a round brought no examples keeps its window as well as its weight; a window of
zeros would make its next alpha infinite.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from equipoise import local
from equipoise.algorithms.messages import its_lam
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.data.shards import Shards
from equipoise.errors import InputError, all_positive, require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, Weighted, mean, weighted
from equipoise.tasks import Task
from equipoise.tasks.examples import real_rows


class Server(NamedTuple):
    """The model, the domains' weights, and their example counts of the last W rounds."""

    x: Vector
    lam: Float[Array, " p"]
    window: Float[Array, "p w"]


class Start(NamedTuple):
    """The model to train from, what an example of each domain counts, and the client's own number."""

    x: Vector
    alpha: Float[Array, " p"]
    i: Int[Array, ""]


class Sums(NamedTuple):
    """What the server sees of a cohort."""

    update: Weighted  # beta_k Delta^k
    counts: Float[Array, " p"]
    losses: Float[Array, " p"]


class Parts(NamedTuple):
    """A client's examples, domain by domain, each prepared by the task as if it were a client."""

    data: Data  # leading axis: domains
    counts: Int[Array, " p"]
    sizes: Int[Array, ""]


@numbers_are_leaves
def agnostic_fedavg(
    task: Task,
    sample: Sample,
    *,
    steps: int,
    local_lr: float,
    dual_lr: float,
    server_lr: float = 1.0,
    window: int = 1,
    domains: int | None = None,
    domain_of: Callable[[Shards], Int[Array, " m"]] | None = None,
) -> Algorithm[Server, None]:
    """AgnosticFedAvg.

    Args:
        task: the loss of an example, as a mean over a client's.
        window: W.
        domains: p, with `domain_of` only.
        domain_of: the domain 0..p-1 of each row of a client's raw shard, found by the client itself, such as
            `lambda shard: shard.labels`; a row of any other number takes no part. A client then keeps its examples
            once per domain. Without it every client is a domain.
    """
    n = check_distinct(sample, "AgnosticFedAvg would count it twice")
    all_positive(steps=steps, local_lr=local_lr, dual_lr=dual_lr, server_lr=server_lr)
    require(window >= 1, f"the window is of {window} rounds; give at least 1")
    require(
        (domains is None) == (domain_of is None),
        "domains and domain_of belong together; give both, or neither if every client is a domain of its own",
    )
    require(domains is None or domains >= 1, f"there are {domains} domains; give at least 1")
    p = n if domains is None else domains

    prepare = task.prepare if domain_of is None else lambda shard: split(task, shard, domain_of, p)

    def send(server: Server, i: Int[Array, ""]) -> Start:
        return Start(server.x, server.lam / jnp.mean(server.window, axis=1), i)

    def train(message: Start, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        x, alpha, i = message
        if domain_of is None:  # the local loss is the client's own, whatever alpha
            counts = jax.nn.one_hot(i, p, dtype=x.dtype) * data.sizes.astype(x.dtype)
            sums = counts * task.loss(x, data)
            y = task.descend(x, data, key, steps=steps, lr=local_lr)
        else:
            counts = data.counts.astype(x.dtype)
            sums = counts * jax.vmap(lambda part: task.loss(x, part))(data.data)
            y = descend(x, data.data, mean((alpha @ counts, alpha * counts)), key)
        return None, Reply(total=Sums(weighted(alpha @ counts, y - x), counts, sums))

    def descend(x: Vector, parts: object, shares: Float[Array, " p"], key: RandomKey) -> Vector:
        """J steps on sum_i shares_i (mean loss of domain i)."""

        def gradient(u: Vector, k: RandomKey) -> Vector:
            return shares @ jax.vmap(lambda part, k: task.grad(u, part, k))(parts, jax.random.split(k, p))

        return local.descend(gradient, x, jax.random.split(key, steps), steps=steps, lr=local_lr)

    def update(server: Server, replies: Replies) -> Server:
        update, counts, sums = replies.total
        losses = sums / jnp.maximum(counts, 1)
        lam = jax.nn.softmax(jnp.log(server.lam) + dual_lr * losses)
        rolled = jnp.concatenate([server.window[:, 1:], counts[:, None]], axis=1)
        window = jnp.where(counts[:, None] > 0, rolled, server.window)
        return Server(server.x + server_lr * mean(update), lam, window)

    def init(x: Vector) -> Server:
        return Server(x, jnp.full(p, 1 / p, x.dtype), jnp.ones((p, window), x.dtype))

    weights = None if domain_of else lambda message: message.alpha
    exchange = Exchange("train", sample.open, send, train, update, weights=weights)
    made = Algorithm("agnostic_fedavg", n, task.size, prepare, init, round=(exchange,))
    return made._replace(weights=its_lam) if domain_of is None else made  # else the weights are the domains'


def split(task: Task, shard: Data, domain_of: Callable[[Shards], Int[Array, " m"]], p: int) -> Parts:
    """A client's raw shard as one shard per domain."""
    if not isinstance(shard, Shards):
        raise InputError(
            f"the domain of each example is found in a client's raw shard, not in {type(shard).__name__}; give Shards, "
            "or leave domain_of out, so that every client is a domain"
        )
    m = shard.labels.shape[0]
    ids = jnp.asarray(domain_of(shard))
    require(
        ids.shape == (m,) and jnp.issubdtype(ids.dtype, jnp.integer),
        f"domain_of gave shape {ids.shape} of {ids.dtype} for {m} rows; give one integer per row",
    )
    real = real_rows(shard)

    def part(i: Int[Array, ""]) -> tuple[Data, Int[Array, ""]]:
        mine = real & (ids.astype(jnp.int32) == i)
        first = jnp.argsort(~mine, stable=True)  # its rows to the front, the others are padding
        count = jnp.sum(mine, dtype=shard.sizes.dtype)
        some = jnp.maximum(count, 1)  # an empty part counts for nothing, but its mean must exist
        return task.prepare(Shards(shard.inputs[first], shard.labels[first], some)), count

    data, counts = jax.vmap(part)(jnp.arange(p, dtype=jnp.int32))
    return Parts(data, counts, shard.sizes)


AGNOSTIC_FEDAVG = Record.usual(
    agnostic_fedavg,
    "max_λ Σλ_i f_i",
    "Ro et al. 2021",
    example={"dual_lr": 0.1},
    defaults={"dual_lr": 0.01},
    not_settings=("domains", "domain_of"),
)
