"""Objectives over the client weights: a set, a penalty, and their exact prox, best response and value."""

from equipoise.objectives.agnostic import agnostic
from equipoise.objectives.capping import cap_weights
from equipoise.objectives.chi2 import chi2, chi2_ball
from equipoise.objectives.cvar import cvar
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.kl import kl
from equipoise.objectives.propfair import propfair
from equipoise.objectives.qffl import qffl
from equipoise.objectives.tv import tv

DUALS = {
    "agnostic": agnostic,
    "chi2": chi2,
    "chi2_ball": chi2_ball,
    "cvar": cvar,
    "kl": kl,
    "tv": tv,
    "qffl": qffl,
    "propfair": propfair,
}

__all__ = [
    "DUALS",
    "Dual",
    "Interior",
    "agnostic",
    "cap_weights",
    "chi2",
    "chi2_ball",
    "cvar",
    "kl",
    "propfair",
    "qffl",
    "tv",
]
