"""`equipoise doctor`: what a bug report needs to say about this machine."""

import importlib.util
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

from equipoise.cli.plainly import say

LIBRARIES = ("jax", "jaxlib", "numpy", "equinox", "optax", "polars", "pydantic", "scipy", "typer", "rich")
EXTRAS = {  # what to install, what it is for, and a module of it that says whether it is there
    "data": ("downloads, images in files of their own", {"pooch": "pooch", "pillow": "PIL"}),
    "flower": ("federations across machines", {"flwr": "flwr", "cryptography": "cryptography"}),
    "torch": ("sites with PyTorch", {"torch": "torch"}),
    "privacy": ("tighter accounting", {"dp-accounting": "dp_accounting"}),
    "tensorboard": ("run.tensorboard", {"tensorboardX": "tensorboardX"}),
    "mlflow": ("run.mlflow", {"mlflow-skinny": "mlflow"}),
    "docs": ("make docs", {"mkdocs-material": "material", "mkdocstrings-python": "mkdocstrings_handlers"}),
}
SETTINGS = ("EQUIPOISE_DATA", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")


def doctor() -> None:
    """What Equipoise finds on this machine: versions, devices, the cache, extras. For bug reports.

    Example: equipoise doctor
    """
    import equipoise

    versions = {"equipoise": f"{equipoise.__version__} in {_short(Path(equipoise.__file__).parent)}"}
    versions |= {"python": sys.version.split()[0]} | {name: _version(name) or "missing" for name in LIBRARIES}
    settings = {name: os.environ.get(name, "not set") for name in SETTINGS}
    parts = {"versions": versions, "machine": _machine(), "devices": _devices(), "folders": _folders()}
    for title, facts in (parts | {"extras": _extras(), "settings": settings}).items():
        say(title)
        width = max(map(len, facts), default=0)
        for name, fact in facts.items():
            say(f"  {name:<{width}}  {fact}")


def _machine() -> dict[str, str]:
    from equipoise._jax import number_of_cores
    from equipoise.engines.checks import total_memory

    try:
        memory = f"{total_memory() / 2**30:.1f} GiB"
    except RuntimeError:  # JAX finds no device, which is said below
        memory = "not known"
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(number_of_cores()),
        "memory": memory,
    }


def _devices() -> dict[str, str]:
    """JAX's, and whether they compile and compute."""
    import jax
    import jax.numpy as jnp

    from equipoise._jax import use_all_cores

    use_all_cores()  # as the commands that train do
    try:
        devices = jax.devices()
        start = time.perf_counter()
        right = float(jax.jit(lambda x: jnp.sum(x * x))(jnp.arange(4.0))) == 14.0
        seconds = time.perf_counter() - start
    except RuntimeError as error:
        return {"jax": " ".join(str(error).split())}
    kinds = {f"{device.platform} ({device.device_kind})" for device in devices}
    works = f"compiles and computes ({seconds:.2f} s)" if right else "COMPUTES A WRONG SUM"
    return {"jax": f"{len(devices)} x {', '.join(sorted(kinds))}", "a first program": works}


def _folders() -> dict[str, str]:
    from equipoise.data.datasets import catalogue
    from equipoise.files import cache_folder

    programs = cache_folder() / "programs"
    kept = [file for file in programs.glob("*-cache") if file.is_file()] if programs.is_dir() else []
    size = sum(file.stat().st_size for file in kept) / 1e6
    there = [name for name, entry in catalogue.CATALOGUE.items() if not entry.files or catalogue.where(name, None)]
    return {
        "compiled programs": f"{_short(programs)}: {len(kept):,} of {size:,.0f} MB",
        "data sets found": ", ".join(there),
    }


def _extras() -> dict[str, str]:
    out = {}
    for extra, (use, packages) in EXTRAS.items():
        missing = [name for name, module in packages.items() if importlib.util.find_spec(module) is None]
        versions = ", ".join(f"{name} {_version(name) or 'without a version'}" for name in packages)
        out[extra] = f"not installed ({use}): pip install 'equipoise[{extra}]'" if missing else versions
    return out


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _short(path: object) -> str:
    """Without the name of the home folder, which is often that of a person."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home) :] if home != "/" and text.startswith(home) else text
