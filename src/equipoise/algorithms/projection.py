"""Updates that no honest client could have sent are moved to where one could: what keeps a liar from steering SCAFF-PD.

Honest corrected steps descend on f_i(u) + <c - c_i, u>, whose gradient at x is c, so with exact gradients

    quadratic f_i, eta_l <= 1/L:   du_i = M_i c with 0 <= M_i <= I,   so  |du_i - c/2| <= |c|/2
    convex f_i,    eta_l <= 2/L:   |du_i| <= |c|

Projecting onto that ball leaves honest runs as they are, up to rounding. In the first, <c, du_i> >= 0: a liar can slow
the descent and cannot move where it ends, for c = 0 there leaves nothing but du_i = 0. In the second it ends there as
long as b liars of weight at most kappa have b kappa < m/(1 + m), m = (1 - (1 - eta_l L)^J)/(J eta_l L).

A lie in the loss or gradient looks like another f_i; `clip_losses`, `clip_gradients` and a cap on weights bound what it
can do. No trimmed means or medians of gradients: they throw away the minority that the objective is there for.

The server has to see every update, so this excludes masked sums.
"""

import jax.numpy as jnp

from equipoise.algorithms.scaffpd import Client, Correction, Server
from equipoise.algorithms.wrapping import wrap
from equipoise.errors import require
from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Data, RandomKey, Replies, Reply, Weighted


@numbers_are_leaves
def project_updates(algorithm: Algorithm[Server, Client], *, quadratic: bool) -> Algorithm[Server, Client]:
    """`scaffpd`, whose server projects every client's update onto the ball of honest ones.

    Args:
        algorithm: from `scaffpd` with exact gradients and everyone in the cohort; eta_l <= 1/L (2/L if not quadratic).
        quadratic: all losses are; the smaller ball then holds.
    """
    require(
        algorithm.corrected,
        f"the projection is for scaffpd, whose updates the server can bound and see one by one, not for "
        f"{algorithm.name}; give scaffpd(..., sample=everyone(n)), or leave the projection out",
    )
    improve = algorithm.round[1]

    def work(message: Correction, mine: Client, data: Data, key: RandomKey) -> tuple[Client, Reply]:
        mine, reply = improve.work(message, mine, data, key)
        return mine, Reply(each=reply.total)

    def update_primal(server: Server, replies: Replies) -> Server:
        said: Weighted = replies.each
        du = said.value / jnp.where(said.weight > 0, said.weight, 1)[:, None]
        centre = server.c / 2 if quadratic else jnp.zeros_like(server.c)
        radius = jnp.linalg.norm(server.c) / (2 if quadratic else 1)
        away = du - centre[None]
        length = jnp.linalg.norm(away, axis=1)
        du = centre[None] + away * jnp.minimum(1, radius / jnp.where(length > 0, length, 1))[:, None]
        # The server's own weights: what a client says of its weight counts for nothing.
        lam = jnp.where(replies.cohort.present, server.lam[jnp.asarray(replies.cohort.ids)], 0)
        total = Weighted(jnp.sum(lam), lam @ du)
        return improve.close(server, replies._replace(total=total, each=None))

    return wrap(algorithm, lambda k, exchange: exchange._replace(work=work, close=update_primal) if k else exchange)
