"""The shapes and types that the core's annotations promise hold in every algorithm and every objective.

In a process of its own, whose import of the package checks them (jaxtyping and beartype). Programs are traced, not
compiled. Factories are given what their annotations say; elsewhere they also take traced numbers and whole ones.
"""

import subprocess
import sys
from pathlib import Path
from typing import Generic, get_args, get_origin

import pytest

CODE = """
import sys

from jaxtyping import install_import_hook

import tests.test_annotations  # its typechecker

CORE = ("protocol", "cohorts", "local", "certificates", "objectives", "steps", "tasks", "algorithms", "engines.kernel")
install_import_hook([f"equipoise.{name}" for name in CORE], "tests.test_annotations.checked")

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.engines import kernel
from equipoise.objectives import DUALS
from tests.problems import KINDS, build, start, unequal

data, checked = unequal(), []
for name in ALGORITHMS:
    every = sys.argv[1] == "all"
    plain = [build(name)] if every or name not in KINDS else []
    drawn = [build(name, batch=2)] if every or name in KINDS else []
    for algorithm in (*plain, *drawn):
        state = kernel.init(algorithm, start())
        round = lambda state, data: kernel.step(algorithm, state, kernel.prepare(algorithm, data), jax.random.key(0))
        jax.eval_shape(round, state, data)
    checked.append(name)
for name, record in DUALS.items():
    dual, losses = record(5, **record.example), jnp.linspace(0.1, 0.5, 5)
    weights = dual.best_response(losses)
    dual.prox(weights, 0.5), dual.value(losses), dual.penalty(weights)
    checked.append(name)
task = eq.tasks.ridge(4, 0.1)
eq.certificates.certify(task, eq.objectives.chi2(5, 0.1), data, start(), None)
try:
    eq.cohorts.everyone("five")
except Exception as error:
    checked.append(type(error).__name__)  # so that a hook that checks nothing is noticed
print(*checked)
"""


def checked(function):
    """beartype, to which a generic NamedTuple, which it does not know, is a tuple."""
    from beartype import beartype

    def plain(hint):
        kind = get_origin(hint) or hint
        if kind is tuple and hint is not tuple:
            return tuple[*map(plain, get_args(hint))]
        return tuple if isinstance(kind, type) and issubclass(kind, tuple) and issubclass(kind, Generic) else hint

    function.__annotations__ = {name: plain(hint) for name, hint in function.__annotations__.items()}
    return beartype(function)


LATER = pytest.mark.thorough(witness="::test_what_annotations_promise_holds[a few]")


@pytest.mark.parametrize("minibatches", ["a few", pytest.param("all", marks=LATER)])
def test_what_annotations_promise_holds(minibatches):
    """Of all algorithms: with minibatches where it is one of each kind, in `make test-all` both with and without."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", CODE, minibatches.split()[-1]]
    out = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert out.returncode == 0, out.stderr[-3000:]
    names = out.stdout.split()
    assert names[-1] == "TypeCheckError"
    assert len(names) > 25
