"""What a method of somebody else has to be, and to fulfil before it has a row.

A file with one function, named `module:name`, which is one of two:

    def my_method(task, sample, ...) -> Algorithm      an algorithm, as docs/extending.md explains them, or its Record
    def my_model(federation) -> predict                a model of the training rows of all owners (`outside.py`)
"""

import inspect
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise import extensions
from equipoise.algorithms.record import Record
from equipoise.bench import entries, federations
from equipoise.bench.methods import METHODS, Method
from equipoise.bench.run import fitted_outputs, run_outputs
from equipoise.errors import one_of, require
from equipoise.experiment import config, run

MOST, BY_CHANCE = 0.05, 2.0  # of what owners' rates leave open; the second over the root of the rows


def method(name: str) -> Method:
    """One of the benchmark's, or code of the user's own."""
    if name in METHODS or not extensions.is_reference(name):
        one_of("method", name, METHODS)
        return METHODS[name]
    loaded = extensions.load(name)
    about = (inspect.getdoc(loaded) or name).split("\n")[0]
    if isinstance(loaded, Record) or next(iter(inspect.signature(loaded).parameters), "") == "task":
        return Method(about, "entered", {"algorithm": {"name": name}}, code=extensions.digest(name))
    return Method(about, "entered", fit=loaded, code=extensions.digest(name))


def check(name: str, method: Method, federation: str) -> None:
    """A method from outside knows no held-out row: what it learns from shuffled labels predicts nothing.

    Whoever predicts held-out labels nevertheless has seen them. All owners' labels are shuffled together, and what
    counts is only which rows of an owner are told apart, so that knowing its base rate is no offence. `run` asks this
    on every federation, after the models of the true labels are made and before they have a row, so that behaving well
    at first, or on another federation, is of no use. The tables are public all the same: a method that knows them by
    heart, and gives up where it sees that labels were shuffled, is found by people who read its file.
    """
    split, outputs = shuffled(name, method, federation)
    level = tuple(np.broadcast_to(out.mean(0), out.shape) for out in outputs)
    loss, level_loss = (np.concatenate(entries.losses_of(made, split)).mean() for made in (outputs, level))
    share = float(1 - loss / level_loss)  # of what owners' means leave open
    rows = sum(map(len, split.federation.labels))
    require(
        share < MOST + BY_CHANCE / math.sqrt(rows),
        f"'{name}' predicts held-out labels of {federation} although it was given shuffled ones (it explains "
        f"{share:.0%} of what its owners' rates leave open): it has read held-out rows, and is not entered",
    )


def shuffled(name: str, method: Method, federation: str) -> tuple[federations.Split, entries.Outputs]:
    """What the method says of the held-out rows of split 0, when the labels of its training rows are shuffled."""
    problem = federations.problem_of(federation, 0)
    order = np.random.default_rng(0).permutation(len(problem.train.labels))
    problem = replace(problem, train=replace(problem.train, labels=problem.train.labels[order]))
    split = federations.split_of(federation, problem)
    if method.fit is not None:
        return split, fitted_outputs(method, name, split)
    parsed = config.parse(federations.settings(federation, 0, method.settings), source=f"'{name}'")
    with tempfile.TemporaryDirectory() as place:
        done = run.run(parsed, Path(place) / "run", problem=problem)
        return split, run_outputs(done, parsed, name, split, problem)
