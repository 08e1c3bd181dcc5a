import os
import subprocess
import sys

import jax

from equipoise import _jax

CODE = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from equipoise import keep_programs
keep_programs(Path(sys.argv[1]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones(7))
print(jax.config.jax_compilation_cache_dir)
"""


def python(*arguments, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    out = subprocess.run(
        [sys.executable, "-W", "error:Error", "-c", CODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env=clean | env,
    )
    return out.stdout.strip()


def test_programs_are_kept_where_it_is_said_unless_the_user_says_otherwise(tmp_path):
    assert python(tmp_path / "a") == str(tmp_path / "a")
    assert any((tmp_path / "a").iterdir())
    assert python(tmp_path / "b", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")
    assert not (tmp_path / "b").exists()


def test_a_program_that_is_half_written_is_compiled_again_without_a_word(tmp_path):
    """By another process at this moment, or before a kill: JAX writes its programs in place."""
    python(tmp_path)
    programs = list(tmp_path.glob("*-cache"))
    assert programs
    for program in programs:
        program.write_bytes(program.read_bytes()[:-7])
    assert python(tmp_path) == str(tmp_path)


def test_the_programs_that_were_used_longest_ago_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(_jax, "BYTES", 100)
    programs = [f"jit_f-{letter * 64}" for letter in "abcd"]
    for age, name in enumerate(programs):
        (tmp_path / f"{name}-cache").write_bytes(bytes(20))
        (tmp_path / f"{name}-atime").write_bytes(bytes(8))
        for kind in ("cache", "atime"):
            os.utime(tmp_path / f"{name}-{kind}", (1e9, 1e9 - (age if kind == "atime" else 100)))
    _jax._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{programs[0]}-{kind}" for kind in ("atime", "cache")]


def test_only_programs_are_ever_thrown_away(tmp_path, monkeypatch):
    """A folder that grew too large was once removed whole, with whatever else lay in it."""
    monkeypatch.setattr(_jax, "BYTES", 10)
    before = jax.config.jax_compilation_cache_dir
    names = [f"jit_f-{'a' * 64}-cache", f"jit_f-{'b' * 64}-atime", "my-thesis", "notes.txt", "my-files/jit-cache"]
    try:
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("years of work")
        jax.config.update("jax_compilation_cache_dir", None)
        _jax.keep_programs(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert [name for name in names if (tmp_path / name).exists()] == names[2:]
