"""Compiled programs, kept on disk: the same run starts in a third of the time.

The commands of Equipoise do it by themselves; in Python one call does it: `equipoise.programs.keep()`.
"""

import re
from contextlib import suppress
from pathlib import Path

import jax

MOST = 1 << 30  # bytes; programs that have grown beyond are thrown away and compiled anew
PROGRAM = re.compile(r".+-[0-9a-f]{64}-(cache|atime)")  # as JAX names them; other files in the folder are not touched


def keep(folder: Path | str | None = None) -> None:
    """From now on JAX looks in `folder` before it compiles, unless the user named a place in JAX's own settings.

    Without a folder: the user's cache folder.
    """
    if folder is None:
        import pooch

        folder = Path(pooch.os_cache("equipoise")) / "programs"
    folder = Path(folder)
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    with suppress(OSError):  # another process may remove them at the same time
        kept = [file for file in folder.glob("*-*") if PROGRAM.fullmatch(file.name)]
        if sum(file.stat().st_size for file in kept) > MOST:
            for file in kept:
                file.unlink(missing_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
