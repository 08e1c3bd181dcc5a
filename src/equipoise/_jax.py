"""How JAX is set up: a device for every core, programs on disk, how and how often it compiles. Importing loads nothing.

The commands do the first two by themselves; in Python they are a call each, before anything else of JAX:

    equipoise.use_all_cores()
    equipoise.keep_programs()
"""

import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from equipoise.files import cache_folder

if TYPE_CHECKING:
    from jax.stages import Wrapped

Key = ParamSpec("Key")
Program = TypeVar("Program")
DEVICES = 16  # at most; more of them cost more to keep in step than they bring
# XLA kills a process in which a device has waited a minute for another, as one may on a busy machine. A process dies
# of a flag that XLA does not know, too, so: where it is known to.
PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=3600 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=1000000"
)
PATIENCE_TRIED_WITH = ((0, 10), (0, 11))  # of JAX
# Code for a CPU emitted the short way: in half of the time, and programs of small models run as fast.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
QUICK_TRIED_WITH = ((0, 10),)
# Else XLA tries hundreds of Triton kernels for products in float32, which takes ten times as long as all else it does,
# and what it ends with makes rounds of the library's own models at best 15% faster (docs/benchmarks.md).
ON_GPUS: dict[str, bool | int] = {"xla_gpu_enable_triton_gemm": False}
# For a CPU: a third of the compilation, and rounds of small arrays that take three times as long (docs/benchmarks.md).
# The first is for what runs a few times over little data.
QUICKLY: dict[str, bool | int] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
LITTLE = 1 << 17  # numbers in the arguments of such a program
ALGORITHMS_KEPT = 64  # whose compiled programs stay in memory
BYTES = 1 << 30  # of programs; beyond, the ones that were used longest ago are removed
PROGRAM = re.compile(r"(.+-[0-9a-f]{64})-(cache|atime)")  # as JAX names them; other files in the folder are not touched


def use_all_cores() -> None:
    """Every core of the CPU becomes a device, so that clients run side by side on them.

    Has an effect only before JAX is first used, and only where the user did not decide. They wait for each other as
    long as it takes.
    """
    # Linear algebra in one thread per device: with more, those that wait for the others take most of the time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    flags = os.environ.get("XLA_FLAGS", "")
    if jax.__version_info__[:2] in PATIENCE_TRIED_WITH and "xla_cpu_collective_call" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}".strip()
    decided = jax.config.jax_num_cpu_devices != -1 or "device_count" in flags  # type: ignore[attr-defined]
    if decided:
        return
    with suppress(RuntimeError):  # JAX runs already: on one device, correct and slower
        jax.config.update("jax_num_cpu_devices", min(number_of_cores(), DEVICES))


def compile_quickly() -> None:
    """For what compiles for longer than it runs. Has an effect only before JAX is first used, and on its children."""
    import jax

    flags = os.environ.get("XLA_FLAGS", "")
    if jax.__version_info__[:2] in QUICK_TRIED_WITH and "xla_cpu_use_fusion_emitters" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK}".strip()


def number_of_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def keep_programs(folder: Path | str | None = None) -> None:
    """From now on JAX looks in `folder` before it compiles, unless the user named a place in JAX's own settings.

    Without a folder: the user's cache folder. The same run then starts in a third of the time.
    """
    import jax

    if folder is None:
        folder = cache_folder() / "programs"
    folder = Path(folder)
    # JAX writes a program in place: one that another process is writing, or that a kill left half written, cannot be
    # read, JAX then compiles it as if it were not there, and a warning would only frighten.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    with suppress(OSError):  # another process may remove them at the same time
        _remove_oldest(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def compiled(function: Callable, *, quickly: bool | None = None, **options: Any) -> "Wrapped":
    """`jax.jit` for programs that are called from outside of any other, once the device is known.

    `quickly` is for those that run a few times over little: on a CPU they compile sooner and run slower. None: where
    the arguments are small.
    """
    import jax

    backend = jax.default_backend()
    if quickly is not None or not compiles_quickly():
        return jax.jit(function, compiler_options=compiler_options(backend, bool(quickly)), **options)
    usual, quick = (compiled(function, quickly=how, **options) for how in (False, True))

    def by_size(*args: object, **named: object) -> object:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, named))):
            return function(*args, **named)  # a part of another program, which has settings of its own
        return (quick if numbers_in((args, named)) <= LITTLE else usual)(*args, **named)

    by_size.trace = usual.trace  # type: ignore[attr-defined]  # which has no settings yet, and is kept for both
    return by_size  # type: ignore[return-value]


def numbers_in(tree: object) -> int:
    """How many numbers a tree of arrays has; their values are not read."""
    import jax
    import numpy as np

    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def cached_program(build: Callable[Key, Program]) -> Callable[Key, Program]:
    """`build`, whose compiled programs are kept for the algorithms that were used last."""
    kept = lru_cache(maxsize=ALGORITHMS_KEPT)(build)

    def program_of(*key: Key.args, **named: Key.kwargs) -> Program:
        try:
            hash(key)
        except TypeError:  # an algorithm with a function that has no hash
            return build(*key, **named)
        return kept(*key, **named)  # type: ignore[arg-type]

    return program_of


def compiles_quickly() -> bool:
    """Whether `quickly` makes a difference here."""
    import jax

    backend = jax.default_backend()
    return compiler_options(backend, True) != compiler_options(backend)


@cache
def compiler_options(backend: str, quickly: bool = False) -> dict[str, bool | int] | None:
    """XLA's settings for this kind of device, as far as it knows them; None: as they are."""
    every: dict[str, dict[str, bool | int]] = {"gpu": ON_GPUS, "cpu": QUICKLY if quickly else {}}
    options = every.get(backend, {})
    return {name: value for name, value in options.items() if _is_known(name, value)} or None


def _is_known(name: str, value: object) -> bool:
    """To this version of XLA."""
    import jax

    try:
        jax.jit(lambda: 0, compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _remove_oldest(folder: Path) -> None:
    """Leaves half of what is allowed, so that it is not looked through for every program."""
    programs: dict[str, list[Path]] = {}  # a program and the file that says when it was last used
    for file in folder.glob("*-*"):
        if match := PROGRAM.fullmatch(file.name):
            programs.setdefault(match[1], []).append(file)
    sizes = {name: sum(file.stat().st_size for file in files) for name, files in programs.items()}
    total = sum(sizes.values())
    if total <= BYTES:
        return
    for name in sorted(programs, key=lambda name: max(file.stat().st_mtime for file in programs[name])):
        for file in programs[name]:
            file.unlink(missing_ok=True)
        total -= sizes[name]
        if total <= BYTES // 2:
            return
