"""One run: from a configuration to a folder with a model, a history and a result. `records.py` says what is in it."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from equipoise import evaluation, files
from equipoise.engines import kernel
from equipoise.engines.checks import check_memory
from equipoise.engines.simulator import Lost, Result, broken_replies, simulate
from equipoise.engines.sweep import Trial, sweep
from equipoise.errors import LostReplies, Stopped, require
from equipoise.experiment import folders, origin, records, results
from equipoise.experiment.chosen import convexified, settle
from equipoise.experiment.conditioning import with_metric
from equipoise.experiment.config import Config, parse
from equipoise.experiment.convexify.stages import Trained, convexify, given_network, network_config, trained_network
from equipoise.experiment.methods import BuiltMethod, baselines_of, build_method, training_rows
from equipoise.experiment.personal import models as personal
from equipoise.experiment.personal import own_parts
from equipoise.experiment.personal.baselines import OwnFit
from equipoise.experiment.problems import Problem, Sent, build_problem, precision
from equipoise.experiment.reading import read
from equipoise.experiment.writer import RunWriter, Watch, local_evaluator, validator, weights_of
from equipoise.protocol import Algorithm, RandomKey, as_key

NOT_CHOSEN = (
    "what each owner should use was not chosen: five folds at every owner of so many, of so large a model, would take "
    "hours; personal.kind = 'fine_tuning' tunes the shared model instead"
)
DRAWS = 200  # of each client's rows, for the bounds of a score that was asked for


class RunSpec(NamedTuple):
    """A run that is asked for."""

    config: Config
    folder: Path
    label: str
    watch: Watch | None = None
    overwrite: bool = False  # whatever run is in the folder
    network: Path | None = None  # where the network of [convexify] is trained; None: in the folder
    asked: Config | None = None  # as it was given, where `config` has numbers for what it left open
    chosen: tuple[records.Choice, ...] = ()  # these numbers
    fits: OwnFit | None = None  # the owners' own models, if they were made for it


class Shared(NamedTuple):
    """What runs on the same data share instead of building it again."""

    problem: Problem
    method: BuiltMethod | None = None
    git: str | None = None  # see `results.git_commit`, which is asked where nothing is given


class Session(NamedTuple):
    """A run whose folder this process holds: begun, or about to be resumed."""

    spec: RunSpec
    problem: Problem
    algorithm: Algorithm
    writer: RunWriter
    start: Result | None  # where to resume, or to begin; None: with the first model


def run(
    config: Config,
    folder: Path,
    *,
    label: str | None = None,
    watch: Watch | None = None,
    overwrite: bool = False,
    problem: Problem | None = None,
) -> records.Run:
    """Runs `config` into `folder`, which must not hold a run yet, unless `overwrite` says so.

    `problem` saves reading the data again where several runs share it. Ctrl-C raises `Stopped` after a checkpoint.
    """
    spec = RunSpec(config, folder, label or config.name, watch, overwrite)
    return to_its_end(begun(spec, None if problem is None else Shared(problem)))


def resume(
    folder: Path, *, label: str | None = None, watch: Watch | None = None, problem: Problem | None = None
) -> records.Run:
    """Resumes from the last checkpoint, bit for bit as if the run had never stopped."""
    return to_its_end(resumed(folder, label, watch, None if problem is None else Shared(problem)))


def to_its_end(opened: AbstractContextManager[Session]) -> records.Run:
    """What the run leaves in its folder."""
    with opened as session:
        run_alone(session)
        _offer_convexified(session)
    return records.read(session.spec.folder)


def _offer_convexified(session: Session) -> None:
    """Beside a network that has ended, the convex model made of it, where that may be better."""
    (config, folder, label, watch, *_), problem = session.spec, session.problem
    best, inside = session.writer.best, folder / records.CONVEXIFIED
    if best is None or not convexified.may_pay(config, problem) or not (folder / records.MODEL).is_file():
        return
    with begun(RunSpec(convexified.config_of(config, folder), inside, f"{label}, convexified", watch, True)) as convex:
        run_alone(convex)
        end = convex.writer.best
        if end is None:
            return
        pairs = (problem, best.x), (convex.problem, end.x)
        choice = convexified.judged(*pairs, records.read(inside).rows, inside)
    about = records.read_record(folder / records.FEDERATION, records.FederationRecord)
    choices = records.Choices(settings=(*(settle.read(folder) or ()), choice))
    records.write_record(folder / records.CHOSEN, choices)
    about = about.model_copy(update={"notes": (*about.notes, choice.sentence)})
    records.write_record(folder / records.FEDERATION, about)


def with_choices(spec: RunSpec, earlier: dict[str, settle.Found] | None = None) -> RunSpec:
    """With numbers for what the settings leave open: those in its folder, or chosen now; `earlier` is of other runs."""
    if spec.asked is not None or not settle.is_open(spec.config):
        return spec
    there = None if spec.overwrite else settle.read(spec.folder)
    if there is None:
        outcome = settle.chosen_for(spec.config, {} if earlier is None else earlier, _lost(spec.config))
    else:
        outcome = settle.Found(there)
    config = settle.applied(spec.config, outcome.choices)
    return spec._replace(config=config, asked=spec.config, chosen=outcome.choices, fits=outcome.fits)


def problem_of(spec: RunSpec, begin: Callable[[], None]) -> Problem:
    """The problem of a run; with [convexify], once its network is trained.

    `begin` is called before anything is written, when the data and the settings of the network make sense.
    """
    config = spec.config
    problem = build_problem(config)
    if spec.fits is not None:
        vars(problem)["own_fits"] = spec.fits
    if config.convexify is None:
        return with_metric(config, problem, _lost(config))
    trained = given_network(config, problem.model, lambda: problem.model.init(jax.random.key(config.run.seed)))
    if trained is None:
        stage = network_config(config)
        build_method(stage, problem)  # a mistake in it leaves no folder behind
        begin()
        trained = _trained_here(spec, stage, problem)
    return with_metric(config, convexify(config, problem, trained), _lost(config))


def _trained_here(spec: RunSpec, stage: Config, problem: Problem) -> Trained:
    """Stage 1: trained, resumed, or only read, where a plan has trained it."""
    folder = spec.network or spec.folder / records.STAGE_1
    network = RunSpec(stage, folder, stage.name, spec.watch, spec.overwrite and spec.network is None)
    own_rows = stage.run.keep_best != spec.config.run.keep_best  # validation rows of its own
    if network.overwrite or not (records.finished(folder) and (folder / records.CONFIG).is_file()):
        to_its_end(opened(network, None if own_rows else Shared(problem)))
    return trained_network(folder, stage, problem.model)


def opened(spec: RunSpec, shared: Shared | None = None) -> AbstractContextManager[Session]:
    """Begun, or resumed where it was stopped."""
    if not spec.overwrite and (spec.folder / records.CONFIG).is_file():
        return resumed(spec.folder, spec.label, spec.watch, shared)
    return begun(spec, shared)


@contextmanager
def begun(spec: RunSpec, shared: Shared | None = None) -> Iterator[Session]:
    """A new run, in its precision. A mistake in the settings leaves no folder behind."""
    folders.check(spec.folder, "run", overwrite=spec.overwrite)
    spec = with_choices(spec)
    asked = spec.asked or spec.config
    with precision(spec.config), ExitStack() as held:

        @cache
        def begin() -> None:
            settings = origin.digest_of_settings(asked)
            held.enter_context(folders.writing(spec.folder, "run", overwrite=spec.overwrite, settings=settings))
            files.write_whole(spec.folder / records.CONFIG, asked.toml())

        yield held.enter_context(_session(spec, shared, begin))


@contextmanager
def resumed(
    folder: Path, label: str | None = None, watch: Watch | None = None, shared: Shared | None = None
) -> Iterator[Session]:
    """A run that was stopped, with the settings of its folder, in its precision."""
    with folders.resuming(folder) as marker:
        file, command = folder / records.CONFIG, "equipoise flower server"
        require(not records.finished(folder), f"{folder} is finished; there is nothing to resume")
        machines = f"the clients of {folder} are machines: resume it with `{command} {file} --out {folder}`"
        require(not (folder / records.AGREEMENT).is_file(), machines)
        config = parse(read(file), source=str(file))
        # With a checkpoint what was changed is said in detail, see `checkpoint.load`.
        as_begun = (folder / records.CHECKPOINT).is_file() or marker.settings == origin.digest_of_settings(config)
        changed = f"{file} is not what the run was begun with: it was changed or is damaged"
        require(as_begun, f"{changed}; restore it, or start over with --overwrite")
        spec = with_choices(RunSpec(config, folder, label or config.name, watch))
        with precision(config), _session(spec, shared, lambda: None) as session:
            yield session


@contextmanager
def _session(spec: RunSpec, shared: Shared | None, begin: Callable[[], None]) -> Iterator[Session]:
    config, folder = spec.config, spec.folder
    problem, method, git = shared or Shared(problem_of(spec, begin))
    algorithm, notes, chosen, beginning = method or build_method(config, problem)
    source = origin.origin_of(config, problem)
    check_memory(jax.eval_shape(partial(kernel.init, algorithm), problem.x), algorithm)
    begin()
    evaluate, judge = local_evaluator(config, problem), validator(problem, config.run.keep_by)
    weights = weights_of(algorithm, problem.x.dtype)
    writer = RunWriter(config, folder, problem, algorithm, source, spec.watch, evaluate, judge, weights)
    chosen = (*spec.chosen, *chosen)
    down, up = (sum(getattr(choice, name) for choice in chosen) for name in ("bytes_down", "bytes_up"))
    writer.sent = Sent(problem.sent.down + down, problem.sent.up + up)
    try:
        start = writer.start()  # before anything is written: a run that is not this one is left as it is
        notes = (*(choice.sentence for choice in spec.chosen), *notes)
        about = results.federation_record(problem, algorithm, notes, baselines_of(config, problem))
        if chosen:
            records.write_record(folder / records.CHOSEN, records.Choices(settings=chosen))
        environment = results.environment_record(config, source.files, git or results.git_commit())
        records.write_record(folder / records.ENVIRONMENT, environment)
        records.write_record(folder / records.FEDERATION, about)
        if start is None:
            writer.begin(problem.x if beginning is None else beginning.model)
        yield Session(spec, problem, algorithm, writer, start or beginning)
    finally:
        writer.close()


def run_alone(session: Session) -> None:
    config = session.spec.config
    with warnings.catch_warnings(action="ignore", category=LostReplies):  # they are among the result's events
        try:
            result = simulate(
                session.algorithm,
                session.problem.x,
                training_rows(config, session.problem, session.problem.compiled_for),
                config.run.seed,
                rounds=config.run.rounds,
                clients_per_batch=config.run.clients_per_batch,
                devices=config.run.devices,
                lost=_lost(config),
                resume=session.start,
                callback=session.writer.callback,
                until=session.writer.is_done,
                every=session.writer.every,
            )
        except Stopped as stop:
            session.writer.save(stop.result)
            raise
    complete(session, result)


def run_together(sessions: Sequence[Session], width: int) -> None:
    """Runs them to their ends as one compiled program, `width` side by side, up to rounding as if each were alone.

    They are of one family, with data of one shape and as many rounds, see `plan`.
    """
    settings = sessions[0].spec.config.run
    trials = [
        Trial(s.algorithm, s.problem.x, rows, s.spec.config.run.seed, _lost(s.spec.config))
        for s, rows in ((s, training_rows(s.spec.config, s.problem, s.problem.compiled_for)) for s in sessions)
    ]

    def callback(place: int, result: Result) -> None:
        writer = sessions[place].writer
        writer.callback(result)
        if result.rounds == settings.rounds:
            writer.save(result)  # it is completed when all others have ended

    try:
        ends = sweep(
            trials,
            rounds=settings.rounds,
            at_once=width,
            clients_per_batch=settings.clients_per_batch,
            resume=[s.start for s in sessions],
            callback=callback,
            every=sessions[0].writer.every,
        )
    except Stopped as stop:
        for session, result in zip(sessions, stop.result, strict=True):
            if result is not None:
                session.writer.save(result)
        raise
    for session, result in zip(sessions, ends, strict=True):
        complete(session, result)


def complete(session: Session, result: Result) -> None:
    """Scores the model where a run ended, and writes what it leaves behind."""
    (config, folder, label, *_), problem = session.spec, session.problem
    best = session.writer.best
    x = session.algorithm.model(result.server) if best is None else jnp.asarray(best.x)
    table = results.in_units(problem, problem.scorer(x))
    name = "" if problem.score is None else problem.score.name
    if name in problem.scores:
        task, rows, scores = problem.plain_task, problem.judged, {name: problem.scores[name]}
        resample = evaluation.evaluator(task, rows, scores=scores, draws=DRAWS, key=config.run.seed)
        table = table._replace(resampled=results.in_units(problem, resample(x)).resampled)
    results.write_row_scores(folder, problem, x, problem.judged, problem.main_score(table).name)
    part, finite = None, bool(np.isfinite(np.asarray(x)).all())
    if problem.plain_task.own is not None and finite:
        parts, part = own_parts.made(problem, x, config.run.seed)
        own_parts.write(folder, problem, parts)
    events = [sentence] if (sentence := broken_replies(result.tally)) else []
    chosen_by_folds = config.own_models is not None and config.own_models.kind == "best"
    if chosen_by_folds and not problem.folds_pay:
        events.append(NOT_CHOSEN)
    elif config.own_models is not None and finite:
        if chosen_by_folds:
            own, models = personal.offered(folder, problem, x)
        else:
            own, models = personal.made(config, problem, x)
        of_them = None if part is None else own_parts.of_models(problem, models)
        personal.write(folder, problem, own, models, of_them)
    files.sync(folder / records.HISTORY)  # before there is a result that counts on it
    more: dict[str, Any] = {"best_round": None if best is None else best.round, "part": part}
    more["calibration"] = results.calibration_of(problem, x, problem.judged) if finite else ()
    results.write_result(config, folder, problem, x, result, table, label, events, **more)


def _lost(config: Config) -> Lost | None:
    """Every reply is lost with the chance that the configuration gives."""
    if not config.run.lost:
        return None
    return Partial(_gone, as_key(config.run.seed), jnp.asarray(config.run.lost))


def _gone(key: RandomKey, fraction: Array, round: Array, exchange: int, ids: Array) -> Array:
    key = jax.random.fold_in(jax.random.fold_in(key, round), exchange)
    return jax.random.bernoulli(jax.random.fold_in(key, 1), fraction, jnp.shape(ids))
