"""What is released: one version, a wheel and an sdist that work elsewhere, types that a user's checker sees."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parents[1]
BUILD = """
import sys
from hatchling import build
print(build.build_sdist(sys.argv[1]))
print(build.build_wheel(sys.argv[1]))
"""


def run(*words, cwd, **env):
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, env=inherited | env)
    assert done.returncode == 0, (words, done.stdout[-1500:], done.stderr[-3000:])
    return done.stdout


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/equipoise/__init__.py"
    assert f"version: {equipoise.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, of the extra [dev], is not installed")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-c", BUILD, folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_what_the_files_hold(built):
    wheel, sdist = built
    inside = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "py.typed",
        "report/templates/page.css",
        "report/templates/joining.html",
        "experiment/defaults/compare.toml",
    ):
        assert f"equipoise/{name}" in inside
    experiments = {f"equipoise/experiments/{path.name}" for path in (ROOT / "experiments").glob("*.toml")}
    assert experiments
    assert experiments <= inside
    assert not [name for name in inside if "test" in name.split("/")[0] or name.endswith(".pyc")]
    stated = re.search(r"The wheel has ([\d.]+) MB", (ROOT / "docs" / "benchmarks.md").read_text())
    assert wheel.stat().st_size == pytest.approx(1e6 * float(stated[1]), rel=0.2)
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "src/equipoise/py.typed"):
        assert name in packed


@pytest.fixture(scope="module")
def elsewhere(built, tmp_path_factory):
    """An environment with the wheel in it, and the dependencies of this one: no network is needed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, built[0], cwd=folder)
    # Added to the end of the path, without this environment's .pth files: the sources here are not in it.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder, python


@pytest.mark.thorough(witness="::test_what_the_files_hold")
def test_the_wheel_works_in_an_empty_environment(elsewhere):
    folder, python = elsewhere
    where = run(python, "-c", "import equipoise; print(equipoise.__version__, equipoise.__file__)", cwd=folder)
    assert where.startswith(f"{equipoise.__version__} {folder}")
    command = python.with_name("equipoise")
    assert "scaffpd-figure2" in run(command, "reproduce", cwd=folder)
    settings = 'name = "two"\n[compare.A]\nname = "fedavg"\n[compare.B]\nname = "scaffold"\n[run]\nrounds = 2\n'
    (folder / "two.toml").write_text(settings)
    said = run(command, "compare", "two.toml", "--set", "partition.clients=3", cwd=folder)
    assert "page:  runs/two-compare/report.html" in said
    assert "<!DOCTYPE html>" in (folder / "runs/two-compare/report.html").read_text()


USER = """
import equipoise as eq

task = eq.tasks.ridge(dim=10, mu=0.1)
dual = eq.objectives.chi2(n=5, rho=0.1)
algorithm = eq.algorithms.scaffpd_model(task, dual, sample=eq.cohorts.everyone(5), steps=10)
reveal_type(algorithm)
reveal_type(eq.simulate)
reveal_type(eq.fit([{"a": [1.0]}]).report())
eq.objectives.chi2(n="five", rho=0.1)
"""


# Of these packages no type is looked at, and to read them takes most of a checker's time.
MYPY = """
[mypy]
follow_imports = silent
[mypy-jax.*,numpy.*,equinox.*,hypothesis.*,sqlalchemy.*,pydantic.*,watchdog.*,google.*]
follow_imports = skip
"""


@pytest.mark.thorough(witness="::test_what_the_files_hold")
def test_a_users_type_checker_sees_the_types(tmp_path):
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(MYPY)
    words = (sys.executable, "-m", "mypy", "--no-incremental", "mine.py")
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "equipoise.protocol.Algorithm" in said
    assert "equipoise.engines.simulator.Result" in said
    assert "polars" in said
    assert re.search(r'mine.py:10: error: Argument "n" to "chi2" has incompatible type "str"; expected "int"', said)
    assert said.count("error:") == 1


def test_the_time_of_an_import_is_stated():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert "python -m benchmarks.import_time" in text
    assert importlib.util.find_spec("benchmarks.import_time") is not None
