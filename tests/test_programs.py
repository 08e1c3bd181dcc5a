import os
import subprocess
import sys

CODE = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from equipoise import programs
programs.keep(Path(sys.argv[1]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones(7))
print(jax.config.jax_compilation_cache_dir)
"""


def python(*arguments, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    out = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)], capture_output=True, text=True, check=True, env=clean | env
    )
    return out.stdout.strip()


def test_programs_are_kept_where_it_is_said_unless_the_user_says_otherwise(tmp_path):
    assert python(tmp_path / "a") == str(tmp_path / "a")
    assert any((tmp_path / "a").iterdir())
    assert python(tmp_path / "b", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")
    assert not (tmp_path / "b").exists()
