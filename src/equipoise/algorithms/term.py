"""TERM: tilted empirical risk minimisation, the average of the losses in the exponent.

    min_x  1/t log sum_i p_i exp(t f_i(x))  =  min_x  max_{lam in Delta}  sum_i lam_i f_i(x) - 1/t KL(lam | p)

Li, Beirami, Sanjabi and Smith (2021), "Tilted empirical risk minimization", over clients: FedAvg whose mean is tilted
towards those with the larger losses. It is the objective `kl(n, rho)` at rho = 1/t, and its weights are that dual's
best response to the losses.

    t            t              towards 0: the average; towards infinity: the worst client
    w_i          server.lam     p_i exp(t f_i(x)), normalised over those who answered
    y_i          y              J steps y -= eta_l g_i(y) from y = x
    eta_l, J     local_lr, steps

Avoided: the authors' federated code divides by a running estimate of the normaliser, which starts at zero and mixes
rounds with different offsets, and then once more by the number m of clients: its steps are about m times too small
(half that in round one). Here the weights of a round sum to one.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from equipoise.algorithms.messages import ModelMessage, its_lam, send_model
from equipoise.algorithms.record import Record
from equipoise.cohorts import Sample, check_distinct
from equipoise.errors import all_positive, one_of
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector, mean
from equipoise.tasks import Task


class Server(NamedTuple):
    """The model, and the weights it was last averaged with."""

    x: Vector
    lam: Float[Array, " n"]


class Report(NamedTuple):
    """What a client says of itself."""

    p: Float[Array, ""]
    loss: Float[Array, ""]  # at x
    dy: Vector  # y - x


@numbers_are_leaves
def term(
    task: Task,
    sample: Sample,
    *,
    t: float,
    steps: int,
    local_lr: float,
    server_lr: float = 1.0,
    weights: Literal["uniform", "samples"] = "uniform",
) -> Algorithm[Server, None]:
    """TERM; `t` is the tilt, `weights` the reference p: every client alike, or every sample alike."""
    n = check_distinct(sample, "TERM would count it twice")
    all_positive(t=t, steps=steps, local_lr=local_lr, server_lr=server_lr)
    one_of("weighting", weights, ("uniform", "samples"))

    def train(message: ModelMessage, _: None, data: Data, key: RandomKey) -> tuple[None, Reply]:
        x = message.x
        y = task.descend(x, data, key, steps=steps, lr=local_lr)
        p = data.sizes.astype(x.dtype) if weights == "samples" else jnp.ones((), x.dtype)
        return None, Reply(each=Report(p, task.loss(x, data), y - x))

    def tilt(server: Server, replies: Replies) -> Server:
        p, losses, dy = replies.each
        here = replies.cohort.present
        top = jnp.max(losses, where=here, initial=-jnp.inf)
        w = jnp.where(here, p * jnp.exp(t * (losses - top)), 0)
        w = mean((jnp.sum(w), w))
        lam = jnp.where(jnp.any(here), replies.cohort.put(jnp.zeros_like(server.lam), w), server.lam)
        return Server(server.x + server_lr * (w @ dy), lam)

    def init(x: Vector) -> Server:
        return Server(x, jnp.full(n, 1 / n, x.dtype))

    exchange = Exchange("train", sample.open, send_model, train, tilt)
    return Algorithm("term", n, task.size, task.prepare, init, round=(exchange,), weights=its_lam)


TERM = Record.usual(term, "1/t log Σ p_i exp(t f_i)", "Li et al. 2021", example={"t": 0.5}, defaults={"t": 1.0})
