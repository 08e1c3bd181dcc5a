"""Every algorithm, by name."""

from collections.abc import Callable
from functools import partial

from equipoise.algorithms.drfa import drfa as drfa
from equipoise.algorithms.fedavg import fedavg as fedavg
from equipoise.algorithms.scaffold import scaffold as scaffold
from equipoise.algorithms.scaffpd import scaffpd as scaffpd
from equipoise.algorithms.sgd import sgd as sgd
from equipoise.errors import unknown
from equipoise.protocol import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "sgd": sgd,
    "scaffold": scaffold,
    "drfa": drfa,
    "scaffpd": scaffpd,
    "scaffpd_secure": partial(scaffpd, secure=True),
}


def named(name: str) -> Callable[..., Algorithm]:
    """The factory of an algorithm's name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
