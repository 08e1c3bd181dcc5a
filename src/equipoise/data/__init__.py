"""Data of many owners, side by side.

    shards.py    what engines need of the clients' data, and examples padded to a common length
    pool.py      examples stored once, row after row; several federations in one shape
    dataset.py   a data set before it is divided; partition.py ways to divide it
    datasets/    data sets by name
    silos/       a file per owner

Whatever reads files is imported when it is first asked for: `import equipoise` stays quick.
"""

import importlib
from typing import TYPE_CHECKING

from equipoise.data.shards import ClientData as ClientData
from equipoise.data.shards import OwnerRows as OwnerRows
from equipoise.data.shards import Shards as Shards
from equipoise.data.shards import stack as stack

if TYPE_CHECKING:
    from equipoise.data import partition, silos
    from equipoise.data.dataset import Dataset
    from equipoise.data.datasets import catalogue, features, synthetic, tabular, text, vision
    from equipoise.data.datasets.catalogue import load
    from equipoise.data.pool import Pool, federate, natural, pools

MODULES = {"partition": "partition", "silos": "silos"}
MODULES |= {name: f"datasets.{name}" for name in ("catalogue", "features", "synthetic", "tabular", "text", "vision")}
NAMES = {"Dataset": "dataset", "load": "datasets.catalogue"}
NAMES |= dict.fromkeys(("Pool", "federate", "natural", "pools"), "pool")
__all__ = [
    "ClientData", "Dataset", "Pool", "Shards", "catalogue", "features", "federate", "load", "natural", "partition",
    "pools", "silos", "stack", "synthetic", "tabular", "text", "vision",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in MODULES:
        return importlib.import_module(f"equipoise.data.{MODULES[name]}")
    if name in NAMES:
        return getattr(importlib.import_module(f"equipoise.data.{NAMES[name]}"), name)
    raise AttributeError(f"module 'equipoise.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
