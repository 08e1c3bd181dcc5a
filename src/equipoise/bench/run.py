"""Runs what is not there yet, and writes an entry of each.

    runs/FEDERATION/METHOD-SOURCE/split-0   run folders, as of `equipoise run`, one program per method where shapes
                                            allow, and one run for all rows of the same settings
    results/...                             what is left of them (`entries.py`)

Everything that is finished stays: a benchmark that was stopped goes on where it was. What is made of other settings, of
another version of Equipoise, or of a file that was changed meanwhile is made anew.
"""

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import equipoise
from equipoise import artifact, extensions
from equipoise._jax import compiled, number_of_cores
from equipoise.bench import entries, federations
from equipoise.bench.entries import Entry, Outputs
from equipoise.bench.federations import Split
from equipoise.bench.methods import ALONE, FIXED, METHODS, Method
from equipoise.data import ClientData
from equipoise.errors import InputError, require
from equipoise.experiment import config, folders, plan, records
from equipoise.experiment.chosen import settle
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Problem, build_problem, data_set_kept, precision
from equipoise.protocol import Vector
from equipoise.tasks import Task

RUNS = "runs"
Watch = Callable[[str, str], None]  # a federation, and what is done with it
Check = Callable[[str, Method, str], None]  # of a method's name, the method and a federation: raises an InputError


class Job(NamedTuple):
    """A method on a split of a federation."""

    federation: str
    method: str
    split: int


def run(
    folder: Path,
    chosen: Sequence[str],
    methods: Mapping[str, Method],
    splits: Sequence[int],
    watch: Watch = lambda *_: None,
    *,
    check: Check = lambda *_: None,
    workers: int = 1,
    begin: Callable[[], None] | None = None,
) -> list[Entry]:
    """All entries of these federations, methods and splits; `alone` is always among them, as gains are over it.

    `check` is asked about each method that is entered, on each federation, before it has an entry there. With more
    workers than one, so many federations are run at a time, each in a process of its own that calls `begin` first;
    functions are then found by their names there.
    """
    methods = {ALONE: METHODS[ALONE], **methods}
    folders.check(folder, "plan", overwrite=False)
    with folders.writing(folder, "plan"):
        workers = min(workers, len(chosen))
        if workers > 1:
            _side_by_side(workers, begin, [(folder, name, methods, splits, watch, check) for name in chosen])
        else:
            for k, name in enumerate(chosen):
                if k > 0:
                    jax.clear_caches()  # of the one before, whose shapes were others
                _of_federation(folder, name, methods, splits, watch, check)
    paths = [entries.path_of(folder, name, method, s) for name in chosen for method in methods for s in splits]
    return [records.read_record(path, Entry) for path in paths if path.is_file()]


def _side_by_side(workers: int, begin: Callable[[], None] | None, jobs: Sequence[tuple[object, ...]]) -> None:
    """A mistake, or Ctrl-C, ends what has not begun; what runs is waited for, or has saved where it was."""
    # JAX must not be forked, and a federation's programs, a gigabyte or two, are of no use to the next one.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), begin, max_tasks_per_child=1)
    try:
        for done in as_completed([pool.submit(_until_stopped, *job) for job in jobs]):
            if not done.result():
                raise KeyboardInterrupt("stopped; the same command goes on where it was")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _until_stopped(*job: Any) -> bool:
    """Whether it came to its end: what stops a run does not cross from one process to another."""
    try:
        _of_federation(*job)
    except KeyboardInterrupt:
        return False
    return True


def _of_federation(
    folder: Path, name: str, methods: Mapping[str, Method], splits: Sequence[int], watch: Watch, check: Check
) -> None:
    missing = [Job(name, m, s) for m in methods for s in splits if not _is_there(folder, Job(name, m, s), methods[m])]
    if not missing:
        return
    watch(name, "reading data")
    computed: dict[int, tuple[Problem, Split, Outputs]] = {}
    with data_set_kept():
        for s in dict.fromkeys(job.split for job in missing):
            problem = federations.problem_of(name, s)
            split = federations.split_of(name, problem)
            computed[s] = problem, split, _alone(folder, name, s, split)
        labels = dict.fromkeys(job.method for job in missing if job.method != ALONE)
        for label in (label for label in labels if methods[label].fit is not None):
            watch(name, label)
            jobs = [job for job in missing if job.method == label]
            _enter(folder, [_fit(job, methods[label], *computed[job.split][1:])[0] for job in jobs], methods, check)
        # Ours in one go, as those of the same data share more than their programs; what is entered may fail by itself.
        trained = [label for label in labels if methods[label].settings is not None]
        ours = [label for label in trained if methods[label].kind != "entered"]
        for part in [ours, *([label] for label in trained if label not in ours)]:
            jobs = [job for job in missing if job.method in part]
            _enter(folder, _trained(folder, name, methods, jobs, computed, watch), methods, check)


def source_of(job: Job, method: Method) -> str:
    """A digest of what an entry is made of, but for its rows: settings, versions, and files of the user's own."""
    if extensions.is_reference(job.federation):
        extensions.load(job.federation)  # another process has not yet
    parts = [equipoise.__version__, method.code, extensions.digest(job.federation)]
    if method.settings is not None:
        parts.append(_parsed(job, method).toml())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _parsed(job: Job, method: Method) -> Config:
    settings = federations.settings(job.federation, job.split, method.settings)
    return config.parse(settings, source=f"'{job.method}' on {job.federation}")


def _is_there(folder: Path, job: Job, method: Method) -> bool:
    path = entries.path_of(folder, *job)
    return path.is_file() and records.read_record(path, Entry).source == source_of(job, method)


def _enter(folder: Path, made: Sequence[Entry], methods: Mapping[str, Method], check: Check) -> None:
    """Writes entries of a federation, once what is entered was looked at."""
    for name, label in dict.fromkeys((entry.federation, entry.method) for entry in made):
        if methods[label].kind == "entered":
            check(label, methods[label], name)
    for entry in made:
        path = entries.path_of(folder, entry.federation, entry.method, entry.split)
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_record(path, entry)


def fitted_outputs(method: Method, name: str, split: Split) -> Outputs:
    """Of a function that fits a model; whatever it raises is said in a sentence that names it."""
    assert method.fit is not None
    try:
        predict = method.fit(split.federation)
        require(callable(predict), f"'{name}' returns {type(predict).__name__}; return a function (owner, inputs)")
        return entries.outputs_of(predict, split, name)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # of somebody else's code
        said = " ".join(str(error).split())
        failed = f"'{name}' fails on {split.federation.name}: {type(error).__name__}: {said}"
        raise InputError(f"{failed}; correct it, or leave it out") from error


def _alone(folder: Path, name: str, split: int, rows: Split) -> Outputs:
    """The losses of every owner's own model, row by row; kept beside its entry, for those of other methods."""
    job, method = Job(name, ALONE, split), METHODS[ALONE]
    path = entries.path_of(folder, *job).with_suffix(".npz")
    if _is_there(folder, job, method) and path.is_file():
        with np.load(path) as kept:
            if str(kept["rows"]) == rows.rows:
                return tuple(np.split(kept["losses"], np.cumsum([len(y) for y in rows.test_labels])[:-1]))
    entry, outputs = _fit(job, method, rows, None)
    losses = entries.losses_of(outputs, rows)
    _enter(folder, [entry], METHODS, lambda *_: None)
    np.savez_compressed(path, rows=rows.rows, losses=np.concatenate(losses).astype(np.float32))
    return losses


def _fit(job: Job, method: Method, split: Split, alone: Outputs | None) -> tuple[Entry, Outputs]:
    start = time.perf_counter()
    outputs = fitted_outputs(method, job.method, split)
    return _entry(job, method, outputs, split, alone, seconds=time.perf_counter() - start), outputs


def _trained(
    folder: Path,
    name: str,
    methods: Mapping[str, Method],
    jobs: Sequence[Job],
    computed: Mapping[int, tuple[Problem, Split, Outputs]],
    watch: Watch,
) -> list[Entry]:
    planned: dict[str, plan.PlannedRun] = {}
    places = []
    for job in jobs:
        parsed = _parsed(job, methods[job.method])
        # A row whose setting is the usual one repeats that of `fixed`, which is run once for both.
        usual = Job(name, FIXED, job.split)
        label = FIXED if parsed == _parsed(usual, METHODS[FIXED]) else job.method
        places.append(f"{folders.name(label)}-{source_of(job, methods[job.method])}/split-{job.split}")
        planned.setdefault(places[-1], plan.PlannedRun(label, places[-1], parsed, {}, {}, job.split))
    announce = cache(lambda label: watch(name, label))  # at the first of its rows
    runs_folder = folder / RUNS / folders.name(name)
    done = plan.run_all(list(planned.values()), runs_folder, watch=lambda run, *_: announce(run.label))
    runs = dict(zip(planned, done, strict=True))
    made = []
    for job, place in zip(jobs, places, strict=True):
        run, parsed, (_, split, alone) = runs[place], planned[place].config, computed[job.split]
        outputs, row = run_outputs(run, parsed, job.method, split), run.final
        took = 0.0 if run.outcome is None else run.outcome.seconds + run.outcome.compile_seconds
        more = {"rounds": row.round, "megabytes": (row.bytes_down + row.bytes_up) / 1e6, "seconds": took}
        made.append(_entry(job, methods[job.method], outputs, split, alone, settings=parsed.toml(), **more))
    return made


def run_outputs(run: records.Run, parsed: Config, label: str, split: Split, problem: Problem | None = None) -> Outputs:
    """What the model of a run folder says of the held-out rows, with every owner's own part."""
    path, events = run.path / records.MODEL, run.outcome.events if run.outcome else ()
    require(path.is_file(), f"'{label}' has no model of {split.federation.name}: {' '.join(events)}")
    parsed = settle.applied(parsed, settle.read(run.path) or ())
    with precision(parsed):
        problem = build_problem(parsed) if problem is None else problem
        x = problem.starting_from(artifact.load(path)).x
        padded = np.asarray(_predictor(problem.plain_task)(x, problem.with_rows(problem.train, problem.test)))
    k = len(problem.classes)
    rows = [z[: len(y)] if k else z[: len(y)].reshape(-1) for z, y in zip(padded, split.test_labels, strict=True)]
    return tuple(entries.checked(z, len(z), k, label, name) for z, name in zip(rows, problem.names, strict=True))


@lru_cache(maxsize=16)
def _predictor(task: Task) -> Callable[[Vector, ClientData], Array]:
    """Probabilities, or numbers, of every owner's padded held-out rows."""

    def one(x: Vector, rows: ClientData, i: Array) -> Array:
        shard, own = rows.client(i), task.own
        if own is None:
            assert task.predict is not None
            z = task.predict(x, shard.inputs)
        else:
            z = own.outputs(x, own.fit(x, shard.train), shard.test.inputs)
        classes = z.ndim > 1 and z.shape[-1] > 1
        return jax.nn.softmax(z.astype(jnp.float32), axis=-1) if classes else z

    return compiled(lambda x, rows: jax.lax.map(lambda i: one(x, rows, i), jnp.arange(rows.n, dtype=jnp.int32)))


def _entry(job: Job, method: Method, outputs: Outputs, split: Split, alone: Outputs | None, **more: Any) -> Entry:
    return Entry(
        method=job.method,
        about=method.about,
        kind=method.kind,
        split=job.split,
        source=source_of(job, method),
        cores=number_of_cores(),
        equipoise=equipoise.__version__,
        **entries.scores(outputs, split, alone),
        **more,
    )
