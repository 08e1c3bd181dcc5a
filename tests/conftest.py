"""Every test runs in float64, with strict promotion, and with warnings as errors (pyproject.toml)."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import jax
import jaxlib
import pytest

from equipoise import _jax, keep_programs
from equipoise.files import write_whole
from tests import programs

# Tests compile much and run little: code is emitted the short way, which takes a third of the time of the usual one.
# And they wait for each other, as commands do: with other flags the same programs would be compiled once more.
QUICK = f"{_jax.QUICK} {_jax.PATIENCE}"


COMPILED = Path(__file__).parents[1] / ".jax_cache"


def quick_to_compile():
    """XLA's flags for it, where this version knows them all: of an unknown one a process dies, which is tried once."""
    flags = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"}
    known, these = COMPILED / "flags.txt", f"{jax.__version__} {jaxlib.__version__} {QUICK}"
    if known.is_file() and known.read_text() == these:
        return flags["XLA_FLAGS"]
    tried = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], env=flags, capture_output=True)
    if tried.returncode != 0:
        return os.environ.get("XLA_FLAGS", "")
    COMPILED.mkdir(exist_ok=True)
    write_whole(known, these)  # another run may be reading it
    return flags["XLA_FLAGS"]


# A shell has what it starts in its background ignore Ctrl-C, and so would the commands that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does, and says nothing.
# Every run tries the same examples, so that a change is judged by what it changed; EQUIPOISE_SEARCH=10 tries others.
hypothesis.settings.register_profile(
    "untimed",
    deadline=None,
    derandomize=int(os.environ.get("EQUIPOISE_SEARCH", "1")) < 10,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers, and the commands that tests start, inherit these
    os.environ |= {
        "XLA_FLAGS": quick_to_compile(),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_COMPILATION_CACHE_DIR": str(COMPILED),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # a program need not know from where each of its operations comes
        "OPENBLAS_NUM_THREADS": "1",  # a worker for every core computes already; idle threads only spin
        "OMP_NUM_THREADS": "1",
    }

jax.config.update("jax_num_cpu_devices", 2)  # for the laws about devices; all other tests use one
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_captured_constants_warn_bytes", 1 << 20)  # data is an operand of a program, not part of it
gc.set_threshold(300_000, 20, 50)  # tracing makes and drops millions of objects: the default took a tenth of all time


def programs_to_keep():
    """In memory, by a process: a megabyte or two each, and some maps, of which Linux gives a process 65,530."""
    try:
        gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, OSError, ValueError):  # Windows
        return 700
    return int(min(2000, max(700, 300 * gigabytes / _jax.number_of_cores())))


PROGRAMS = programs_to_keep()
keep_programs(COMPILED)  # and the same programs in many places, and again next time


def share_contexts(uses=100):
    """A context of MLIR for many small programs of a thread: to make one takes as long as to look up a program."""
    make, mine = mlir.make_ir_context, threading.local()

    def context():
        mine.left = getattr(mine, "left", 0) - 1
        if mine.left < 0:  # one that lived on would keep every constant that was ever in it
            mine.context, mine.left = make(), uses
        return mine.context

    mlir.make_ir_context = context


with contextlib.suppress(ImportError, AttributeError):  # where JAX keeps it today
    from jax._src.interpreters import mlir

    share_contexts()


def group(item):
    """Tests that share compiled programs: those of an algorithm where a test says so, else those of a file."""
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else item.nodeid.split("::")[0]


# They take longest, so they begin first: no process is left alone with one of them at the end.
LONGEST = (
    "flower/test_federation.py",
    "flower/test_local.py",
    "laws/test_laws.py",
    "laws/test_every_dual.py",
    "deploy/test_federated_run.py",
    "experiment/convexify/test_stages.py",
    "algorithms/test_scaffpd_model.py",
    "cli/test_experiments.py",
    "flower/test_mixed.py",
    "experiment/test_run.py",
    "flower/test_secure.py",
    "test_docs_site.py",
)
FIRST = {f"tests/{name}": place for place, name in enumerate(LONGEST)}


TIERS = pytest.StashKey()


def witness(item):
    marker = item.get_closest_marker("thorough")
    if marker is None:
        return None
    name = marker.kwargs["witness"]
    return item.nodeid.split("::")[0] + name if name.startswith("::") else f"tests/{name}"


def pytest_collection_modifyitems(config, items):
    """A file runs in one process (`--dist loadfile`), and in it the tests of a group one after the other."""
    config.stash[TIERS] = {item.nodeid: witness(item) for item in items}  # before `-m` leaves any out
    places = {}
    for item in items:
        places.setdefault(group(item), len(places))
    items.sort(key=lambda item: (FIRST.get(item.nodeid.split("::")[0], len(FIRST)), places[group(item)]))


@pytest.fixture
def tiers(request):
    """Every test that was collected, with the witness that its marker names, or None."""
    return request.config.stash[TIERS]


forgotten = 0


@pytest.fixture(autouse=True)
def forget_programs_when_there_are_many():
    """Thousands of them fill the memory of a small machine; forgotten too often, they are all lowered again."""
    global forgotten
    if programs.count() - forgotten > PROGRAMS:
        jax.clear_caches()
        gc.collect()
        forgotten = programs.count()


def pytest_collection_finish():
    """What has been imported stays: the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
