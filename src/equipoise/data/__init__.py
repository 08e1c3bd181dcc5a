"""Data of many owners, side by side.

Whatever reads files is imported when it is first asked for: `import equipoise` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.data.shards import ClientData as ClientData
from equipoise.data.shards import Shards as Shards
from equipoise.data.shards import stack as stack

if TYPE_CHECKING:
    from equipoise.data import (
        catalogue,
        features,
        federation,
        partition,
        silos,
        synthetic,
        tabular,
        text,
        vision,
    )
    from equipoise.data.catalogue import Dataset, load
    from equipoise.data.federation import Pool, federate, natural, pools

MODULES = ("catalogue", "features", "federation", "partition", "silos", "synthetic", "tabular", "text", "vision")
NAMES = {
    "Dataset": "catalogue",
    "load": "catalogue",
    "Pool": "federation",
    "federate": "federation",
    "natural": "federation",
    "pools": "federation",
}
__all__ = [
    "ClientData",
    "Dataset",
    "Pool",
    "Shards",
    "catalogue",
    "features",
    "federate",
    "federation",
    "load",
    "natural",
    "partition",
    "pools",
    "silos",
    "stack",
    "synthetic",
    "tabular",
    "text",
    "vision",
]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"equipoise.data.{name}")  # which also makes it an attribute here
    if name in NAMES:
        value = getattr(importlib.import_module(f"equipoise.data.{NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'equipoise.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
