"""Runs that take milliseconds: all about the folder is real, the numbers come from NumPy instead of a compiler."""

import os

import jax
import numpy as np

from equipoise import evaluation
from equipoise.engines.simulator import Result, Tally
from equipoise.errors import EquipoiseError
from equipoise.evaluation import PerClient
from equipoise.evaluation.exchange import scored_rows
from equipoise.experiment import batch, choice, methods, problems, records, results, run, writer
from equipoise.experiment.chosen import convexified, settle
from equipoise.experiment.personal import alone, offers, own_parts
from equipoise.experiment.personal.baselines import OwnFit
from equipoise.experiment.results import in_units
from equipoise.protocol import wire_of_rows

# How many times longer the searches look than in `make test`.
LONGER = int(os.environ.get("EQUIPOISE_SEARCH", "1"))
SILOS = {"north": "x,y\n1,yes\n2,no\n3,yes\n4,no\n", "south": "x,y\n5,no\n6,yes\n7,no\n8,yes\n9,no\n"}


def silos(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in SILOS.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def settings(folder, **changes):
    """Those of a run of four rounds over the silo files of `folder`, with a checkpoint after each."""
    return {
        "name": "tiny",
        "data": {"silos": str(folder), "label": "y"},
        "model": {"l2": 0.1, "own": "none", "metric": "none", **changes.pop("model", {})},
        "objective": {"name": "chi2", "of": "losses", **changes.pop("objective", {})},
        "algorithm": {"name": "scaffold", "steps": 1, "local_lr": 0.1, **changes.pop("algorithm", {})},
        "personal": {"kind": "none", **changes.pop("personal", {})},
        "run": {"rounds": 4, "evaluate_every": 1, "checkpoint_seconds": 0, "precision": "float64",
                **changes.pop("run", {})},
        **changes,
    }  # fmt: skip


def simulate(algorithm, x, data, key, *, rounds, resume=None, callback=None, until=None, every=1, **_):
    """Stands for the engine: states that depend on all before, the seed and the round, and nothing else."""
    if resume is None:
        server, client = (jax.eval_shape(init, x) for init in (algorithm.init, algorithm.init_client))
        server = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), server)
        clients = jax.tree.map(lambda a: np.zeros((algorithm.n, *a.shape), a.dtype), client)
        resume = Result(server, clients, None, 0, Tally.nothing(algorithm), 0.0, 0.0)
    server, clients, _, done, tally, *times = resume
    for r in range(done, rounds):
        rng = np.random.default_rng([key, r])

        def moved(leaf, rng=rng):
            leaf = np.asarray(leaf)
            return (0.9 * leaf + rng.normal(size=leaf.shape)).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf

        server, clients = jax.tree.map(moved, (server, clients))
        tally = tally._replace(asked=tally.asked + algorithm.n, answered=tally.answered + algorithm.n)
        if callback is not None and ((r + 1) % every == 0 or r + 1 == rounds):
            callback(now := Result(server, clients, None, r + 1, tally, *times))
            if until is not None and until(now):
                return now
    return Result(server, clients, None, rounds, tally, *times)


def table(x, n):
    """Scores that are different for every model, and the same for the same."""
    x = np.asarray(x, np.float64)
    loss = np.array([float(np.sum((x - i) ** 2)) for i in range(n)])
    return PerClient(np.full(n, 4), {"loss": loss, "accuracy": 1 / (1 + loss)}, {}, {})


def own_fits(task, convex, x, train):
    return OwnFit(np.full(train.n, 0.6), np.zeros((train.n, x.size)), np.zeros((train.n, 5)))


def choose(config, lost=None):
    """What a run leaves open: the penalty, the price of fairness, the work of a round."""
    open_keys = [
        ("model.l2", config.model.l2 == "auto", 0.1),
        ("objective.rho", config.objective_price is not None, 0.1),
    ]
    return settle.Found(
        tuple(
            records.Choice(key=key, value=value, why="it is", runner_up=None, tried=({"value": value},), rounds=1)
            for key, is_open, value in (*open_keys, *((key, True, 1) for key in choice.tried_out(config)))
            if is_open
        )
    )


def best_of_each(task, x, train, alone):
    return offers.Offer(np.stack([np.asarray(x)] * train.n), np.zeros(train.n))


def of_rows(task, x, data, score):
    return np.full(int(np.sum(scored_rows(task, data).sizes)), 0.5)


def parts(problem):
    own, train = problem.plain_task.own, problem.train
    return np.zeros((train.n, *jax.eval_shape(own.fit, problem.x, train.client(0)).shape))


def use(monkeypatch):
    def evaluator(config, problem):
        def evaluate(x, lam):
            found = in_units(problem, table(x, problem.n))
            return writer.Evaluation(found.scores["loss"], float(found.scores["loss"].max()), 0.5, found)

        return evaluate

    monkeypatch.setattr(run, "simulate", simulate)
    monkeypatch.setattr(run, "with_metric", lambda config, problem, lost: problem)  # a program for every shape
    monkeypatch.setattr(run, "local_evaluator", evaluator)
    monkeypatch.setattr(alone, "trained", lambda problem, configs, watch=None: problem.x)
    rows = ("accuracy", "skill")
    monkeypatch.setattr(
        alone, "scored", lambda problem, x: (table(x, problem.n), dict.fromkeys(rows, np.ones(4 * problem.n)))
    )
    monkeypatch.setattr(evaluation, "evaluator", lambda task, data, **_: lambda x: table(x, data.n))
    monkeypatch.setattr(evaluation, "of_rows", of_rows)
    monkeypatch.setattr(problems, "own_fits", own_fits)
    monkeypatch.setattr(offers, "best_of_each", best_of_each)
    monkeypatch.setattr(settle, "choose", choose)
    monkeypatch.setattr(convexified, "may_pay", lambda *_: False)
    monkeypatch.setattr(own_parts, "made", lambda problem, x, seed: (p := parts(problem), p[0]))
    monkeypatch.setattr(own_parts, "of_models", lambda problem, models: parts(problem))
    # What JAX would trace anew for every run, and no file depends on; and two processes for each.
    monkeypatch.setattr(methods, "wire_of_rows", crossing)
    for module in (batch, results):
        monkeypatch.setattr(module, "git_commit", lambda: None)


def crossing(algorithm, x, shard):
    """`protocol.wire_of_rows`, traced once for algorithms of a name, of a federation and a model of the same sizes."""
    key = (algorithm.name, algorithm.n, x.shape, x.dtype)
    if key not in known_crossings:
        known_crossings[key] = wire_of_rows(algorithm, x, shard)
    return known_crossings[key]


known_crossings = {}


def tried(act):
    """(what it gave, None), or (None, the one sentence that it ended in)."""
    try:
        return act(), None
    except EquipoiseError as error:
        said = str(error)
    assert said.strip()
    assert "\n" not in said
    return None, said


def contents(folder):
    """Every file below, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
