"""Objectives over the client weights: a set, a penalty, and their exact prox, best response and value."""

from equipoise import extensions
from equipoise.errors import one_of
from equipoise.objectives.agnostic import AGNOSTIC, agnostic
from equipoise.objectives.capping import cap_weights
from equipoise.objectives.chi2 import CHI2, CHI2_BALL, chi2, chi2_ball
from equipoise.objectives.cvar import AVERAGE, CVAR, cvar
from equipoise.objectives.dual import Dual, Interior
from equipoise.objectives.gains import of_gains
from equipoise.objectives.kl import KL, kl
from equipoise.objectives.propfair import PROPFAIR, propfair
from equipoise.objectives.qffl import QFFL, qffl
from equipoise.objectives.record import Record, record_of
from equipoise.objectives.tv import TV, tv

DUALS: dict[str, Record] = {record.name: record for record in (AGNOSTIC, CHI2, CHI2_BALL, CVAR, KL, TV, QFFL, PROPFAIR)}

__all__ = [
    "DUALS",
    "Dual",
    "Interior",
    "Record",
    "agnostic",
    "cap_weights",
    "chi2",
    "chi2_ball",
    "cvar",
    "kl",
    "named",
    "of_gains",
    "propfair",
    "qffl",
    "tv",
]


def named(name: str) -> Record:
    """The record of a listed name or 'average', or of a factory or Record of the user's own, "module:name"."""
    if extensions.is_reference(name):
        return record_of(extensions.load(name), name)
    records = {"average": AVERAGE, **DUALS}
    one_of("objective", name, records)
    return records[name]
