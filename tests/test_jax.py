import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import _jax
from equipoise.steps import measure

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


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder, and where JAX kept the programs of a process that was told to keep them there."""
    folder = tmp_path_factory.mktemp("kept") / "a"
    return folder, python(folder)


def test_programs_are_kept_where_it_is_said_unless_the_user_says_otherwise(kept, tmp_path):
    folder, place = kept
    assert place == str(folder)
    assert any(folder.iterdir())
    assert python(tmp_path / "b", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == str(tmp_path / "mine")
    assert not (tmp_path / "b").exists()


def test_a_program_that_is_half_written_is_compiled_again_without_a_word(kept):
    """By another process at this moment, or before a kill: JAX writes its programs in place."""
    folder, _ = kept
    programs = list(folder.glob("*-cache"))
    assert programs
    for program in programs:
        program.write_bytes(program.read_bytes()[:-7])
    assert python(folder) == str(folder)


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


def test_devices_wait_for_each_other_unless_the_user_says_otherwise(monkeypatch):
    """In a process of its own: JAX reads these flags once, and dies of those that XLA does not know."""
    code = "import equipoise, os, jax; equipoise.use_all_cores(); jax.devices(); print(os.environ['XLA_FLAGS'])"

    def flags(given):
        env = {**os.environ, "XLA_FLAGS": given}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout

    known = jax.__version_info__[:2] in _jax.PATIENCE_TRIED_WITH
    assert flags("--xla_cpu_use_fusion_emitters=false").strip() == (
        f"--xla_cpu_use_fusion_emitters=false {_jax.PATIENCE}" if known else "--xla_cpu_use_fusion_emitters=false"
    )
    own = "--xla_cpu_collective_call_terminate_timeout_seconds=7"
    monkeypatch.setenv("XLA_FLAGS", own)
    eq.use_all_cores()
    assert os.environ["XLA_FLAGS"] == own


def test_xlas_settings_are_for_gpus_and_left_out_where_xla_does_not_know_them(monkeypatch):
    _jax.compiler_options.cache_clear()
    assert _jax.compiler_options("cpu") is None
    assert _jax.compiler_options("gpu") == _jax.ON_GPUS
    _jax.compiler_options.cache_clear()
    monkeypatch.setattr(_jax, "ON_GPUS", {"xla_of_another_time": False})
    assert _jax.compiler_options("gpu") is None
    _jax.compiler_options.cache_clear()


def test_only_a_cpu_compiles_quickly_and_only_where_xla_knows_how(monkeypatch):
    _jax.compiler_options.cache_clear()
    known = _jax.compiler_options("cpu", True)
    assert known is not None
    assert known.items() <= _jax.QUICKLY.items()
    assert known == _jax.QUICKLY or jax.__version_info__ >= (0, 11)  # which has one of the two
    assert _jax.compiler_options("gpu", True) == _jax.ON_GPUS
    assert _jax.compiles_quickly() == (jax.default_backend() == "cpu")
    _jax.compiler_options.cache_clear()
    monkeypatch.setattr(_jax, "QUICKLY", {"xla_of_another_time": False})
    assert not _jax.compiles_quickly()
    _jax.compiler_options.cache_clear()
    monkeypatch.setattr(_jax, "QUICKLY", {"xla_backend_optimization_level": 0, "xla_of_another_time": False})
    assert _jax.compiler_options("cpu", True) == {"xla_backend_optimization_level": 0}
    _jax.compiler_options.cache_clear()


def test_no_program_that_gets_them_is_called_by_another(monkeypatch):
    """Which JAX refuses, and only where there are any."""
    monkeypatch.setattr(_jax, "compiler_options", lambda *kind: _jax.ON_GPUS)
    data = eq.data.synthetic.regression(n=3, dim=2, samples=5, key=jax.random.key(0))
    task, x, everyone = eq.tasks.ridge(2, 0.1), jnp.zeros(2), eq.cohorts.everyone(3)
    measured = measure._measurement(measure._settle.__wrapped__)
    assert jnp.all(jnp.isfinite(measured(task, 2, data, x, 0.1)))
    algorithm = eq.algorithms.fedavg(task, everyone, steps=2, local_lr=0.1)
    alone = eq.simulate(algorithm, x, data, 0, rounds=2)
    (together,) = eq.sweep(eq.grid(algorithm, x, data), rounds=2)
    np.testing.assert_allclose(together.server.x, alone.server.x, rtol=1e-12)
    assert np.all(np.isfinite(eq.evaluation.evaluate(task, alone.server.x, data, scores={}).scores["loss"]))
