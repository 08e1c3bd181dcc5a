"""Every core of a CPU as a JAX device of its own, so that clients run side by side on them.

The commands of Equipoise do it by themselves; in Python call `equipoise.cores.use_all()` first of all.
"""

import os

import jax

MOST = 16  # devices; more of them cost more to keep in step than they bring


def use_all() -> None:
    """Has an effect only before JAX is first used, and only where the user did not decide."""
    decided = jax.config.jax_num_cpu_devices != -1 or "device_count" in os.environ.get("XLA_FLAGS", "")  # type: ignore[attr-defined]
    if decided:
        return
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", min(cores, MOST))
    except RuntimeError:  # JAX runs already: on one device, correct and slower
        return
