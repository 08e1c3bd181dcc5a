"""How the benchmarks take time."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    what: str
    per_round: float  # seconds, median
    first: float | None = None  # seconds for a whole run from nothing, of as many rounds for every row


def timed(call: Callable[[], object]) -> float:
    clock = time.perf_counter()
    call()
    return time.perf_counter() - clock


def median(call: Callable[[], object], repeats: int = 5) -> float:
    return statistics.median(timed(call) for _ in range(repeats))
