"""Every algorithm, by name."""

from collections.abc import Callable
from functools import partial

from equipoise.algorithms.afl import afl as afl
from equipoise.algorithms.agnostic_fedavg import agnostic_fedavg as agnostic_fedavg
from equipoise.algorithms.clipping import clip_losses as clip_losses
from equipoise.algorithms.delta_fl import delta_fl as delta_fl
from equipoise.algorithms.drfa import drfa as drfa
from equipoise.algorithms.drfa_alternative import drfa_alternative as drfa_alternative
from equipoise.algorithms.fedavg import fedavg as fedavg
from equipoise.algorithms.fedprox import fedprox as fedprox
from equipoise.algorithms.propfair import propfair as propfair
from equipoise.algorithms.qfedavg import qfedavg as qfedavg
from equipoise.algorithms.qfedavg import qfedsgd as qfedsgd
from equipoise.algorithms.scaffold import scaffold as scaffold
from equipoise.algorithms.scaffpd import scaffpd as scaffpd
from equipoise.algorithms.scaffpd_ls import scaffpd_ls as scaffpd_ls
from equipoise.algorithms.scaffpd_model import scaffpd_model as scaffpd_model
from equipoise.algorithms.scaffpd_partial import scaffpd_partial as scaffpd_partial
from equipoise.algorithms.sgd import sgd as sgd
from equipoise.algorithms.term import term as term
from equipoise.errors import unknown
from equipoise.protocol import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "sgd": sgd,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "qfedsgd": qfedsgd,
    "qfedavg": qfedavg,
    "term": term,
    "propfair": propfair,
    "delta_fl": delta_fl,
    "afl": afl,
    "agnostic_fedavg": agnostic_fedavg,
    "drfa": drfa,
    "drfa_alternative": drfa_alternative,
    "scaffpd": scaffpd,
    "scaffpd_secure": partial(scaffpd, secure=True),
    "scaffpd_partial": scaffpd_partial,
    "scaffpd_ls": scaffpd_ls,
    "scaffpd_model": scaffpd_model,
}


def named(name: str) -> Callable[..., Algorithm]:
    """The factory of an algorithm's name."""
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
