"""Every test runs in float64, with strict promotion, and with warnings as errors (pyproject.toml)."""

import gc
from pathlib import Path

import jax
import pytest

from equipoise import programs

jax.config.update("jax_num_cpu_devices", 2)  # for the laws about devices; all other tests use one
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)  # tests compile much and run little
jax.config.update("jax_captured_constants_warn_bytes", 1 << 20)  # data is an operand of a program, not part of it
programs.keep(Path(__file__).parents[1] / ".jax_cache")  # and the same programs in many places, and again next time


def group(item):
    """Tests that share compiled programs: those of an algorithm where a test says so, else those of a file."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else item.nodeid.split("::")[0]


def pytest_collection_modifyitems(items):
    """A group runs in one process (`--dist loadgroup`), one test after the other."""
    places = {}
    for item in items:
        places.setdefault(group(item), len(places))
    items.sort(key=lambda item: places[group(item)])
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group(item)))


last = None


@pytest.fixture(autouse=True)
def forget_the_programs_of_other_groups(request):
    """Hundreds of compiled programs fill the memory of a small machine."""
    global last
    if last not in (None, group(request.node)):
        jax.clear_caches()
        gc.collect()
    last = group(request.node)
