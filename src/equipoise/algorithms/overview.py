"""What each algorithm asks of a federation; every number is read off its own functions, none is typed in."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise import algorithms, cohorts, objectives, steps, tasks
from equipoise.data.shards import stack
from equipoise.protocol import Algorithm, wire


class About(NamedTuple):
    """What cannot be read off the functions, and one way to build it (task, number of clients)."""

    objective: str
    paper: str
    build: Callable[[tasks.Task, int], Algorithm]


class Entry(NamedTuple):
    """One row; d is the size of the model, n the number of clients; counts are numbers, not bytes."""

    name: str
    objective: str
    exchanges: tuple[str, ...]
    down: str  # from the server to a client, all exchanges of a round
    up: str
    client_keeps: str
    server_keeps: str
    seen: str  # what the server sees of a single client; the rest reaches it in sums only
    paper: str


LOCAL: dict[str, Any] = {"steps": 2, "local_lr": 0.1}
RULE = steps.constant(tau=0.1, sigma=0.1, theta=0.5)
SADDLE = "max_λ Σλ_i f_i − ψ(λ)"
EVERYONE = cohorts.everyone

ABOUT: dict[str, About] = {
    "fedavg": About("Σ p_i f_i", "McMahan et al. 2017", lambda t, n: algorithms.fedavg(t, EVERYONE(n), **LOCAL)),
    "sgd": About("1/n Σ f_i", "Karimireddy et al. 2020", lambda t, n: algorithms.sgd(t, EVERYONE(n), lr=0.1)),
    "fedprox": About("Σ p_i f_i", "Li et al. 2020", lambda t, n: algorithms.fedprox(t, EVERYONE(n), mu=1.0, **LOCAL)),
    "scaffold": About(
        "1/n Σ f_i", "Karimireddy et al. 2020", lambda t, n: algorithms.scaffold(t, EVERYONE(n), **LOCAL)
    ),
    "qfedsgd": About(
        "Σ p_i f_i^(q+1)", "Li et al. 2020", lambda t, n: algorithms.qfedsgd(t, EVERYONE(n), q=1.0, lr=0.1)
    ),
    "qfedavg": About(
        "Σ p_i f_i^(q+1)", "Li et al. 2020", lambda t, n: algorithms.qfedavg(t, EVERYONE(n), q=1.0, **LOCAL)
    ),
    "term": About(
        "1/t log Σ p_i exp(t f_i)", "Li et al. 2021", lambda t, n: algorithms.term(t, EVERYONE(n), t=1.0, **LOCAL)
    ),
    "propfair": About(
        "−Σ p_i log(M − f_i)", "Zhang et al. 2022", lambda t, n: algorithms.propfair(t, EVERYONE(n), bound=9.0, **LOCAL)
    ),
    "delta_fl": About(
        "superquantile of f",
        "Pillutla et al. 2021",
        lambda t, n: algorithms.delta_fl(t, EVERYONE(n), theta=0.5, **LOCAL),
    ),
    "afl": About(
        SADDLE,
        "Mohri et al. 2019",
        lambda t, n: algorithms.afl(t, objectives.agnostic(n), EVERYONE(n), **LOCAL, dual_lr=0.1),
    ),
    "agnostic_fedavg": About(
        "max_λ Σλ_i f_i",
        "Ro et al. 2021",
        lambda t, n: algorithms.agnostic_fedavg(t, EVERYONE(n), **LOCAL, dual_lr=0.1),
    ),
    "drfa": About(
        SADDLE,
        "Deng et al. 2020",
        lambda t, n: algorithms.drfa(t, objectives.agnostic(n), EVERYONE(n), **LOCAL, dual_lr=0.1),
    ),
    "drfa_alternative": About(
        SADDLE,
        "Deng et al. 2020, 5.2",
        lambda t, n: algorithms.drfa_alternative(t, objectives.agnostic(n), EVERYONE(n), **LOCAL, dual_lr=0.1),
    ),
    "scaffpd": About(
        SADDLE, "Yu et al. 2023", lambda t, n: algorithms.scaffpd(t, objectives.agnostic(n), EVERYONE(n), RULE, **LOCAL)
    ),
    "scaffpd_secure": About(
        SADDLE,
        "Yu et al. 2023",
        lambda t, n: algorithms.scaffpd(t, objectives.agnostic(n), EVERYONE(n), RULE, **LOCAL, secure=True),
    ),
    "scaffpd_ls": About(
        SADDLE,
        "beyond Yu et al. 2023",
        lambda t, n: algorithms.scaffpd_ls(t, objectives.agnostic(n), EVERYONE(n), **LOCAL, mu=0.1),
    ),
    "scaffpd_partial": About(
        SADDLE,
        "beyond Yu et al. 2023",
        lambda t, n: algorithms.scaffpd_partial(t, objectives.agnostic(n), cohorts.uniform(n, 1), RULE, **LOCAL),
    ),
}
PROBES = [(3, 2), (5, 2), (3, 4), (5, 4), (9, 7)]  # (d, n): d, n, n d and a constant told apart, and a check


def overview() -> list[Entry]:
    return [entry(name, about) for name, about in ABOUT.items()]


def entry(name: str, about: About) -> Entry:
    rows = [measure(about, d, n) for d, n in PROBES]
    down, up, client, server, seen = (formula([row[column] for row in rows]) for column in range(5))
    exchanges = tuple(e.name for e in about.build(tasks.ridge(3), 2).round)
    return Entry(name, about.objective, exchanges, down, up, client, server, seen, about.paper)


def measure(about: About, d: int, n: int) -> tuple[int, ...]:
    """Numbers down, up, kept by a client, kept by the server, seen of a single client."""
    algorithm = about.build(tasks.ridge(d), n)
    x = jnp.zeros(d)
    shard = algorithm.prepare(stack([(np.ones((d, d), x.dtype), np.ones(d, x.dtype))]).client(0))
    exchanges = wire(algorithm, x, shard)
    return (
        sum(numbers(e.message) for e in exchanges),
        sum(numbers(e.reply) for e in exchanges),
        numbers(jax.eval_shape(algorithm.init_client, x)),
        numbers(jax.eval_shape(algorithm.init, x)),
        sum(numbers(e.reply.each) for e in exchanges),
    )


def numbers(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def formula(counts: list[int]) -> str:
    """The counts at PROBES as a d + b n + c n d + e, in words that a paper would use."""
    design = np.array([(d, n, n * d, 1) for d, n in PROBES], float)
    found = np.rint(np.linalg.solve(design[:4], counts[:4])).astype(int)
    if not np.array_equal(design @ found, counts):
        raise AssertionError(f"the counts {counts} are not of the form a d + b n + c n d + e")
    terms = [(found[2], "nd"), (found[0], "d"), (found[1], "n"), (found[3], "")]
    words = [f"{'' if k == 1 and unit else k}{unit}" for k, unit in terms if k]
    return " + ".join(words).replace("+ -", "− ") or "0"
