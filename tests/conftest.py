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
programs.keep(Path(__file__).parents[1] / ".jax_cache")  # and the same programs in many places, and again next time


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Hundreds of compiled programs fill the memory of a small machine."""
    yield
    jax.clear_caches()
    gc.collect()
