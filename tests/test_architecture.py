"""Imports point one way, from the protocol up to the command line (DESIGN: the map)."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import equipoise
from equipoise.errors import not_none

ROOT = Path(equipoise.__file__).parent
LEVELS = [
    {"_jax", "errors", "extensions", "files", "leaves", "linear_algebra", "tensors"},
    {"protocol"},
    {"data"},
    {"cohorts", "tasks", "objectives", "steps", "local", "models"},
    {"algorithms", "certificates", "artifact"},
    {"engines", "privacy"},
    {"evaluation", "metric"},
    {"experiment", "report", "estimator", "sklearn"},
    {"deploy", "pytorch", "bench"},
    {"cli", "__init__", "__main__"},
]
LEVEL = {name: k for k, names in enumerate(LEVELS) for name in names}


def part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def nodes_of(path):
    return [*ast.walk(ast.parse(path.read_text()))]


def imported(path):
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "equipoise":
            names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            yield from (name for name in names if name in LEVEL)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("equipoise."))


FILES = sorted(ROOT.rglob("*.py"))


def test_imports_point_one_way():
    above = [
        f"{path.relative_to(ROOT)} imports {name}, which stands above it"
        for path in FILES
        for name in imported(path)
        if LEVEL[name] > LEVEL[part(path)]
    ]
    assert above == []


def test_importing_is_light():
    """What only some commands need is not loaded by `import equipoise`."""
    heavy = ("polars", "jinja2", "sklearn", "flwr", "torch", "PIL", "typer")
    code = f"import equipoise, sys; print(*[m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_commands_load_what_they_need():
    """The command line itself, and the process of a site, which waits for another that works."""
    heavy = ("jax", "numpy", "polars", "pydantic", "flwr", "cryptography")
    modules = ["launch", *(["processes"] if importlib.util.find_spec("psutil") else [])]
    loaded = "".join(f", equipoise.deploy.operations.{module}" for module in modules)
    code = f"import sys, equipoise.cli{loaded}; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_jax_has_not_begun_when_a_command_asks_for_all_cores():
    """Reading a configuration starts no device; afterwards their number could not be chosen any more."""
    code = """
from jax._src import xla_bridge
from equipoise.cli.experiments import _settings
from equipoise.experiment import plan
plan.compare(_settings(None, None, None, None, default="compare.toml"), source="defaults")
plan.sweep(_settings(None, None, None, None, default="sweep.toml"), source="defaults")
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_private_name_of_another_package_is_imported():
    private = [
        f"{path.relative_to(ROOT)} imports {alias.name} of {node.module}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise.")
        for alias in node.names
        if alias.name.startswith("_") and not_none(node.module).split(".")[1] != part(path)
    ]
    assert private == []


def test_algorithms_are_built_where_one_looks_for_them():
    calls = [
        str(path.relative_to(ROOT))
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Algorithm"
    ]
    assert {path.split("/")[0] for path in calls} == {"algorithms"}


FACTORS = {"cholesky", "eigh", "eigvalsh", "inv", "solve", "svd", "cho_factor", "lu_factor"}


def test_jax_factors_matrices_in_one_file_only():
    """Elsewhere a batch of them could make a program stand still (`linear_algebra.py`)."""
    calls = [
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for path in FILES
        if path.name != "linear_algebra.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in FACTORS
    ]
    jax_s = [(path, call) for path, call in calls if call.startswith(("jnp.linalg.", "jax.")) and ".linalg." in call]
    assert jax_s == []


DEPLOY = ROOT / "deploy"


def test_deploy_has_few_files_and_every_folder_says_what_is_in_it():
    assert len([*DEPLOY.rglob("*.py")]) <= 30
    folders = {path.parent for path in DEPLOY.rglob("*.py")} | {ROOT / "pytorch"}
    assert {folder.name for folder in folders} >= {"server", "site", "wire", "operations"}
    for folder in folders:
        words = not_none(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())))
        others = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
        assert [name for name in others if name not in words] == [], f"{folder.name}/__init__.py does not name them"


# Names that say nothing of what they hold, and sentences that have to be read twice; both have come back before.
FUNCTION_WORDS = {"found", "known", "told", "once", "of", "at"}
RIDDLES = (
    "as if it had never been",
    "fair shall it be",
    "of which that is known",
    "To do it again",
    "key is none",
    "numbers that are none",
    "texts that are none",
    "goes along with",
)


def names_of(path):
    """Every name that a file gives: of functions, classes, arguments, variables and fields."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def test_names_say_what_they_hold():
    lines = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in FILES
        for name, line in names_of(path)
        if name in FUNCTION_WORDS
    ]
    assert lines == [], "give these a name that says what they hold"


def test_one_class_of_a_name_among_those_that_were_three():
    classes = [n.name for path in FILES for n in nodes_of(path) if isinstance(n, ast.ClassDef)]
    assert [name for name in ("Known", "Setup", "Method") if classes.count(name) > 1] == []


def test_sentences_are_read_once():
    root = Path(__file__).parents[1]
    files = [*ROOT.rglob("*.py"), *ROOT.rglob("*.html"), *root.glob("*.md"), *root.glob("docs/**/*.md")]
    lines = [f"{path.name}: {riddle}" for path in files for riddle in RIDDLES if riddle in path.read_text()]
    assert lines == [], "say these plainly"
