"""Several runs of one file: methods side by side (`compare`), settings and seeds (`sweep`).

    [compare.DRFA]            # a table per method: settings of [algorithm]
    name = "drfa"             # what [algorithm] says and the method knows is inherited
    objective = { name = "agnostic" }
    model = { name = "mlp" }  # and convexify, run: over those of the file; convexify = false leaves it out
    grid = { dual_lr = [0.001, 0.01] }    # of this method, for `sweep`; "objective.rho" = [...] works too

    [sweep]
    seeds = [0, 1, 2]         # each with its own division of the data
    tune = [100]              # seeds on which the best setting is chosen; default: the same
    measure = "worst20"       # by which it is chosen
    show = ["mean", "worst20"]    # columns of the table, see `measures.py`
    [sweep.over]              # reported apart
    "partition.alpha" = [0.01, 0.1]
    [sweep.grid]              # chosen from, for every method that knows the key and does not say it itself
    "algorithm.local_lr" = [0.01, 0.1]

Each run has a folder of its own, called after exactly what it is; finished ones are not run again, stopped ones go on.
"""

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
from pydantic import Field, ValidationError

from equipoise import artifact
from equipoise.errors import InputError, nearest, require
from equipoise.experiment import choice, config, folders, measures, mistakes, origin, reading, records, run
from equipoise.experiment.batch import data_of, is_done, run_batch
from equipoise.experiment.chosen import settle
from equipoise.experiment.config import Config, Section, Seed
from equipoise.experiment.convexify.stages import network_config
from equipoise.experiment.mistakes import shown
from equipoise.experiment.personal import alone
from equipoise.experiment.problems import Problem, build_problem, data_set_kept, precision
from equipoise.experiment.run import RunSpec, Shared

OWN_SECTIONS = ("model", "convexify", "privacy", "run")  # a method may have its own, and its objective
# What leads from the average to the worst client, from large numbers to small ones, and where a path goes unless told.
ALONG = {"chi2": "rho", "kl": "rho", "cvar": "alpha"}
WAY = {"rho": (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01), "alpha": (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)}

T = TypeVar("T")
Settings = Mapping[str, Any]
Point = dict[str, object]  # of a grid: values by "section.key"
Chosen = Mapping[tuple[str, str], Point]  # by the place of a federation and the label of a method
Watch = Callable[["PlannedRun", int, int, records.Row | None], None]


class Sweep(Section):
    """[sweep]; what a measure may be, `measures.py` says."""

    seeds: tuple[Seed, ...] = Field((0,), min_length=1)
    tune: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    measure: str = "worst20"
    show: tuple[str, ...] = ("mean", "worst20", "best20", "min", "std")
    over: dict[str, list] = Field({})
    grid: dict[str, list] = Field({})


class PlannedRun(NamedTuple):
    """One run of a plan."""

    label: str  # the method
    place: str  # its folder, below the plan's
    config: Config
    over: Point  # where it is reported
    chosen: Point  # of the grid
    seed: int


class Cell(NamedTuple):
    """One line of a sweep's table: a method on a federation, with its best setting, over the seeds."""

    label: str
    over: Point
    chosen: Point
    tried: int  # settings that it was chosen from
    runs: list[records.Run]

    def over_seeds(self, measure: measures.Measure) -> tuple[float, float]:
        """Mean and standard deviation; NaN where a run has no such number."""
        values = [measure.value(run) for run in self.runs]
        spread = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else 0.0
        return statistics.fmean(values), spread


def compare(settings: Settings, *, source: str = "the configuration") -> list[PlannedRun]:
    """A job per [compare.LABEL], in the file's order; without any, the file's own algorithm."""
    jobs = []
    for label, method in _on_the_same_rows(methods(settings, source)).items():
        parsed = config.parse(method.settings, source=_named(source, label))
        jobs.append(PlannedRun(label, folders.name(label), parsed, {}, {}, parsed.run.seed))
    return _apart(jobs, source)


def path(
    settings: Settings, values: Sequence[float] | None = None, *, source: str = "the configuration"
) -> list[PlannedRun]:
    """A run for every rho, or alpha of CVaR, from the one nearest to the average down; for `run_path`.

    Each is trained until its objective is certified to a thousandth, unless `run.until_gap` says otherwise.
    """
    base = {key: value for key, value in settings.items() if key not in ("compare", "sweep")}
    first = config.parse(base, source=source)
    objective = first.objective.name
    wrong = f"{source}: the objective '{objective}' has no rho to go along; give {' or '.join(ALONG)}"
    require(objective in ALONG, wrong)
    name = ALONG[objective]
    values = WAY[name] if values is None else values
    few = f"a path of {len(values)} value of {name} leads nowhere; give two or more, as --{name} 1 --{name} 0.1"
    require(len(values) >= 2, few)
    twice = _twice(values)
    require(not twice, f"{name} {twice[:1]} is given more than once; give each value once")
    jobs = []
    for value in sorted(values, reverse=True):
        mine = reading.override(base, [])
        mine.get("objective", {}).pop("price", None)  # of which the path shows all
        reading.put(mine, f"objective.{name}", value)
        if first.run.until_gap is None:
            reading.put(mine, "run.until_gap", choice.CERTIFIED)
        parsed = config.parse(mine, source=source)
        chosen: Point = {f"objective.{name}": value}
        jobs.append(PlannedRun(f"{name} {value:g}", _place(chosen), parsed, {}, chosen, parsed.run.seed))
    return _apart(jobs, source)


class PlannedMethod(NamedTuple):
    """One [compare.LABEL]."""

    settings: dict[str, Any]  # of its run
    grid: dict[str, list]  # its own
    own: frozenset[str]  # what it says itself, so that a shared grid does not
    knows: frozenset[str] | None  # of a shared grid's [algorithm]; None: all of it, as the only method

    def takes(self, key: str) -> bool:
        """Whether a shared grid's key is for this method."""
        section, _, rest = key.partition(".")
        name = rest.partition(".")[0]
        return section != "algorithm" or self.knows is None or name in self.knows - self.own


def methods(settings: Settings, source: str, first: Mapping[str, object] | None = None) -> dict[str, PlannedMethod]:
    """By their labels. `first` is a point of the grids for all of them, which may decide on the algorithm."""
    base = {key: value for key, value in settings.items() if key not in ("compare", "sweep")}
    compared = settings.get("compare", {})
    wrong = f"{source}: compare is {shown(compared)}; give a table per method, [compare.LABEL]"
    require(isinstance(compared, Mapping), wrong)
    if not compared:
        full = reading.override(base, [])
        for key, value in (first or {}).items():
            reading.put(full, key, value)
        return {config.parse(full, source=source).algorithm.name: PlannedMethod(base, {}, frozenset(), None)}
    out: dict[str, PlannedMethod] = {}
    for label, method in compared.items():
        where = _named(source, label)
        require(isinstance(method, Mapping), f"{where} is {shown(method)}; give a table of settings")
        require("name" in method, f"{where} has no name; give the algorithm's, such as name = 'drfa'")
        own = {key: value for key, value in method.items() if key not in (*OWN_SECTIONS, "objective", "grid")}
        mine = reading.override(base, [])
        reading.put(mine, "algorithm.name", method["name"])
        mine["algorithm"] |= own
        if "objective" in method:
            given, of_all = method["objective"], mine.get("objective")
            wrong = f"{where}.objective is {shown(given)}; give a table, such as objective = {{ name = 'kl' }}"
            require(isinstance(given, Mapping), wrong)
            inherited = {"of": of_all["of"]} if isinstance(of_all, Mapping) and "of" in of_all else {}
            mine["objective"] = {**inherited, **given}
        for section in OWN_SECTIONS:
            given, before = method.get(section, {}), mine.get(section, {})
            if given is False and section in ("convexify", "privacy"):  # leaves out what the file has
                mine.pop(section, None)
                continue
            require(isinstance(given, Mapping), f"{where}.{section} is {shown(given)}; give a table of settings")
            if given and isinstance(before, Mapping):  # what else it may be is a mistake that parsing names
                mine[section] = {**before, **given}
        parsed = config.parse(mine, source=where)
        grid = _checked_grid(f"{where}.grid", method.get("grid", {}))
        out[label] = PlannedMethod(
            mine,
            {key if "." in key else f"algorithm.{key}": values for key, values in grid.items()},
            frozenset(own),
            frozenset(type(parsed.algorithm).model_fields),
        )
    return out


def _on_the_same_rows(methods: dict[str, PlannedMethod]) -> dict[str, PlannedMethod]:
    """Where one method needs no validation rows to end by itself, those that would set some aside run for longest."""

    def sets_aside(method: PlannedMethod) -> bool:
        given = method.settings.get("run", {})
        ends = choice.how_long(method.settings) if given.get("rounds", "auto") == "auto" else given
        return bool(ends.get("keep_best"))

    if not all(map(sets_aside, methods.values())):
        for method in filter(sets_aside, list(methods.values())):
            if "keep_best" not in method.settings.get("run", {}):
                reading.put(method.settings, "run.rounds", choice.ROUNDS)
    return methods


def _checked_grid(where: str, grid: Any) -> Mapping[str, list]:
    require(isinstance(grid, Mapping), f"{where} is {shown(grid)}; give a list of values per setting")
    for key, values in grid.items():
        require(isinstance(values, list) and values, f"{where}: {key} is {shown(values)}; give a list of values")
        for value in _twice(map(exact, values)):
            raise InputError(f"{where}: {key} has {value} more than once; give each value once")
        head, _, rest = key.partition(".")
        wrong = f"{where} has '{key}', which is not a setting of a run; give one, such as 'algorithm.local_lr'"
        require(not rest or head in (*config.SECTIONS, "algorithm", "objective"), wrong)
        require(key != "run.seed", f"{where} has 'run.seed'; give the seeds as sweep.seeds")
    return grid


def _twice(values: Iterable[T]) -> list[T]:
    return [value for value, times in Counter(values).items() if times > 1]


def _apart(jobs: list[PlannedRun], source: str) -> list[PlannedRun]:
    """Every run has a folder of its own, also where the file system does not tell upper from lower case."""
    seen: dict[str, PlannedRun] = {}
    for job in jobs:
        other = seen.setdefault(job.place.casefold(), job)
        shared = f"{source}: '{other.label}' and '{job.label}' would share the folder {job.place}; rename one of them"
        require(other is job, shared)
    return jobs


class Study(NamedTuple):
    """A sweep: the runs that choose, and what those with what was chosen are made of."""

    sweep: Sweep
    trials: list[PlannedRun]
    source: str
    settings: Settings


def sweep(settings: Settings, *, source: str = "the configuration") -> Study:
    """All combinations are checked before the first run begins."""
    given = settings.get("sweep", {})
    require(isinstance(given, Mapping), f"{source}: sweep is {shown(given)}; give a table, [sweep]")
    try:
        plan = Sweep.model_validate(given)
    except ValidationError as error:
        keys = list(Sweep.model_fields)
        raise mistakes.mistake(source, error, {"sweep": given}, lambda *_: keys, within=("sweep",)) from None
    for key, values in (("seeds", plan.seeds), ("tune", plan.tune or ())):
        twice = _twice(values)
        require(not twice, f"{source}: sweep.{key} has {twice[:1]} more than once; give each seed once")
    _checked_grid(f"{source}: sweep.over", plan.over)
    _checked_grid(f"{source}: sweep.grid", plan.grid)
    for key, name in (("measure", plan.measure), *(("show", name) for name in plan.show)):
        try:  # before the first run, not after the last
            measures.measure(name)
        except InputError as error:
            raise InputError(f"{source}: sweep.{key}: {error}") from None
    seeds = plan.seeds if plan.tune is None else plan.tune
    return Study(plan, _apart(list(_jobs(settings, plan, seeds, source)), source), source, settings)


def _jobs(
    settings: Settings, plan: Sweep, seeds: Sequence[int], source: str, only: Chosen | None = None
) -> Iterator[PlannedRun]:
    """`only` has the point of the grid to run."""
    first = {key: values[0] for key, values in {**plan.over, **plan.grid}.items()}
    planned = _on_the_same_rows(methods(settings, source, first))
    _check_taken(plan.grid, planned, source)
    for over in _points(plan.over):
        for label, method in planned.items():
            grid = {key: values for key, values in plan.grid.items() if method.takes(key)} | method.grid
            both, where = [key for key in grid if key in over], _named(source, label)
            require(not both, f"{where}: {', '.join(both)} is in sweep.over and in a grid; leave it out of one")
            for point in _points(grid):
                if only is not None and only.get((_place(over), label)) != point:
                    continue
                for seed in seeds:
                    full = reading.override(method.settings, [])
                    for key, value in {**over, **point, "run.seed": seed}.items():
                        reading.put(full, key, value)
                    parsed = config.parse(full, source=where)
                    place = "/".join(filter(None, (_place(over), folders.name(label), _place(point))))
                    yield PlannedRun(label, f"{place}/seed-{seed}", parsed, over, point, seed)


def _check_taken(grid: Mapping[str, list], methods: Mapping[str, PlannedMethod], source: str) -> None:
    """Of the grid for all methods, each key is for one of them at least."""
    for key in grid:
        if any(method.takes(key) for method in methods.values()):
            continue
        names = sorted({f"algorithm.{name}" for method in methods.values() for name in method.knows or ()})
        wrong = f"{source}: sweep.grid has '{key}', which"
        unknown = f"no method of the file has{nearest(key, names)} (known: {', '.join(names)})"
        require(".".join(key.split(".")[:2]) in names, f"{wrong} {unknown}")
        every = "every method that has it sets itself; leave it out of the grid, or out of their tables"
        raise InputError(f"{wrong} {every}")


def check_beside(settings: Settings, source: str) -> None:
    """[compare] and [sweep] make sense, also where a command has no use for them: nothing in a file goes unread."""
    if "compare" in settings or "sweep" in settings:
        sweep(settings, source=source)


def run_study(study: Study, folder: Path, **options: Any) -> list[Cell]:
    """Runs what is not there yet, chooses, and runs the chosen settings on the seeds."""
    plan = study.sweep
    # The runs that choose and those that are shown differ in how many share their data; in turn, one program is theirs.
    options["in_turn"] = plan.tune is not None and jax.default_backend() != "cpu"
    final = _by_setting(study.trials, run_all(study.trials, folder, **options))
    tried: dict[tuple[str, str], list[tuple[Point, list[records.Run]]]] = {}
    for job, runs in final:
        tried.setdefault(_line(job), []).append((job.chosen, runs))
    chosen = {line: _best(settings, plan.measure) for line, settings in tried.items()}
    if plan.tune is not None:
        jobs = list(_jobs(study.settings, plan, plan.seeds, study.source, chosen))
        final = _by_setting(jobs, run_all(jobs, folder, **options))
    best = [(job, runs) for job, runs in final if chosen[_line(job)] == job.chosen]
    return [Cell(job.label, job.over, job.chosen, len(tried[_line(job)]), runs) for job, runs in best]


def _line(job: PlannedRun) -> tuple[str, str]:
    """Of the table, in which a run is reported."""
    return _place(job.over), job.label


def _by_setting(jobs: Sequence[PlannedRun], done: Sequence[records.Run]) -> list[tuple[PlannedRun, list[records.Run]]]:
    """The seeds of one setting together."""
    groups: dict[str, tuple[PlannedRun, list[records.Run]]] = {}
    for job, one in zip(jobs, done, strict=True):
        groups.setdefault(job.place.rpartition("/")[0], (job, []))[1].append(one)
    return list(groups.values())


def _best(tried_settings: list[tuple[Point, list[records.Run]]], measure: str) -> Point:
    """The point with the best mean, of equal ones that with the best average; one without a number only if all are."""

    def rank(read: measures.Measure, runs: list[records.Run]) -> float:
        value = statistics.fmean(map(read.value, runs))
        return -math.inf if math.isnan(value) else value if read.more_is_better(tried_settings[0][1][0]) else -value

    reads = [measures.measure(name) for name in (measure, "mean")]
    return max(tried_settings, key=lambda item: [rank(read, item[1]) for read in reads])[0]


def run_all(
    jobs: Sequence[PlannedRun],
    folder: Path,
    *,
    watch: Watch | None = None,
    overwrite: bool = False,
    in_turn: bool = False,
    beside_alone: bool = False,
) -> list[records.Run]:
    """Every job's run; finished ones are read, stopped ones go on. A folder of other settings is refused.

    `in_turn`: none side by side. `beside_alone`: also what clients get from models of their own rows (`alone.py`).
    """
    check(jobs, folder, overwrite)
    with ExitStack() as held:
        held.enter_context(data_set_kept())
        problems: dict[str, Problem] = {}  # neighbours often have the same data
        since_cleared = 0
        begin = cache(lambda: held.enter_context(folders.writing(folder, "plan")))  # once the first data makes sense
        batches: dict[tuple[str, object], list[RunSpec]] = {}
        numbers = list(jobs)  # with what was chosen for what they leave open
        for where, stage in _networks(jobs, folder, watch, overwrite):
            batches.setdefault(("", where), []).append(stage)
        earlier: dict[str, settle.Found] = {}
        for k, job in enumerate(jobs):
            spec = run.with_choices(_spec(job, folder, watch, overwrite), earlier)
            numbers[k] = job._replace(config=spec.config)
            batches.setdefault((job.label, _apart_on_this_device(job)), []).append(spec)
        for specs in batches.values():
            if not all(is_done(spec) for spec in specs):
                since_cleared += run_batch(specs, problems, begin, in_turn=in_turn)
            if since_cleared >= 100:
                since_cleared = 0
                jax.clear_caches()  # of methods that share no programs, which JAX would keep for ever
        if beside_alone:
            begin()
            _beside_alone(numbers, folder, problems, watch)
    return [records.read(folder / job.place) for job in jobs]


def _spec(job: PlannedRun, folder: Path, watch: Watch | None, overwrite: bool) -> RunSpec:
    seen = None if watch is None else partial(watch, job)
    return RunSpec(job.config, folder / job.place, job.label, seen, overwrite, _network(job.config, folder))


def _beside_alone(
    jobs: Sequence[PlannedRun], folder: Path, problems: Mapping[str, Problem], watch: Watch | None
) -> None:
    """What clients get alone, where it is not yet known: once for all jobs on the same data and model."""
    # Of [convexify], the network itself: its features are made together, and an owner alone has none of them.
    plain = [job._replace(config=_plain_network(job.config)) if job.config.convexify else job for job in jobs]
    missing: dict[str, list[PlannedRun]] = {}
    for job in plain:
        if not (folder / job.place / records.ALONE).is_file():
            missing.setdefault(data_of(job.config), []).append(job)
    for data, runs_on_it in missing.items():
        config, shown = runs_on_it[0].config, runs_on_it[0]._replace(label="each alone")
        seen = None if watch is None else lambda done, total, _, job=shown: watch(job, done, total, None)
        with precision(config):
            problem = problems.get(data) or build_problem(config)
            alone.write([folder / job.place for job in runs_on_it], problem, [job.config for job in plain], seen)


def _plain_network(parsed: Config) -> Config:
    """The network of [convexify], on all rows that the convex model is trained on."""
    stage = network_config(parsed)
    kept = {key: getattr(parsed.run, key) for key in ("keep_best", "keep_by", "patience")}
    return stage.model_copy(update={"run": stage.run.model_copy(update=kept)})


def _networks(
    jobs: Sequence[PlannedRun], folder: Path, watch: Watch | None, overwrite: bool
) -> list[tuple[str, RunSpec]]:
    """The runs that train the networks of [convexify], each once; those of one federation compile once."""
    networks: dict[Path, tuple[str, RunSpec]] = {}
    for job in jobs:
        if (place := _network(job.config, folder)) is not None and place not in networks:
            seen = None if watch is None else partial(watch, job)
            stage = RunSpec(network_config(job.config), place, "network", seen, overwrite)
            networks[place] = (_apart_on_this_device(job), stage)
    return list(networks.values())


def _network(parsed: Config, folder: Path) -> Path | None:
    """Where a network of [convexify] is trained, once for all runs that begin with the same; None: it needs none."""
    settings = parsed.convexify
    if settings is None or settings.network is not None or settings.rounds == 0:
        return None
    return folder / records.STAGE_1 / origin.digest_of_settings(network_config(parsed))[:10]


def _apart_on_this_device(job: PlannedRun) -> str:
    """Equal for federations that are filled up to one shape, so that a method is compiled once for all of them.

    A GPU compiles for longer than it computes. On a CPU it pays for seeds only, which are alike in size.
    """
    run = job.config.run
    return _place(job.over) if jax.default_backend() == "cpu" else f"{run.precision} {run.products}"


def run_path(
    jobs: Sequence[PlannedRun], folder: Path, *, watch: Watch | None = None, overwrite: bool = False
) -> list[records.Run]:
    """As `run_all`, of jobs on the same data, one after the other: each starts from the model of the one before.

    Beside them, what clients get from models of their own rows.
    """
    check(jobs, folder, overwrite)
    done: list[records.Run] = []
    first: Problem | None = None
    chosen = run.with_choices(_spec(jobs[0], folder, None, overwrite)).chosen
    asked = [job.config for job in jobs]
    jobs = [job._replace(config=settle.applied(job.config, chosen)) for job in jobs]
    with ExitStack() as held:
        begin = cache(lambda: held.enter_context(folders.writing(folder, "plan")))
        for job, given in zip(jobs, asked, strict=True):
            place = folder / job.place
            if not overwrite and records.finished(place):
                done.append(records.read(place))
                continue
            with precision(job.config):
                if first is None:
                    for _, stage in _networks(jobs, folder, watch, overwrite):
                        run_batch([stage], {}, begin)
                    first = run.problem_of(_spec(job, folder, None, overwrite=False), begin)
                    begin()
                model = done[-1].path / records.MODEL if done else None
                problem = first if model is None or not model.is_file() else first.starting_from(artifact.load(model))
            spec = _spec(job, folder, watch, overwrite)._replace(asked=given if chosen else None, chosen=chosen)
            done.append(run.to_its_end(run.opened(spec, Shared(problem))))
        begin()
        _beside_alone(jobs, folder, {} if first is None else {data_of(jobs[0].config): first}, watch)
    return done


def check(jobs: Sequence[PlannedRun], folder: Path, overwrite: bool) -> None:
    """Nothing is begun where something would be mixed up."""
    folders.check(folder, "plan", overwrite=overwrite)
    remedy = "give another --out, or --overwrite to replace it"
    digests: dict[str | None, dict[str, str]] = {}
    for job in jobs:
        place = folder / job.place
        if overwrite or not (place / records.CONFIG).is_file():
            continue
        there = config.parse(reading.read(place / records.CONFIG), source=str(place / records.CONFIG))
        changed = list(origin.of_settings(origin.flat(there), origin.flat(job.config)))
        require(not changed, f"{place} holds a run with other settings ({'; '.join(changed[:3])}); {remedy}")
        silos = job.config.data.silos
        if records.finished(place) and silos is not None and Path(silos).is_dir():
            if silos not in digests:
                digests[silos] = origin.digests_of_silos(job.config)
            before = records.read_record(place / records.ENVIRONMENT, records.Environment).files
            moved = list(origin.of_files(before, digests[silos]))
            require(not moved, f"{place} was trained on other files ({'; '.join(moved[:3])}); {remedy}")


def _points(grid: Mapping[str, list]) -> Iterator[Point]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _place(point: Mapping[str, object]) -> str:
    """The folder of a point of a grid; another point, however near, has another."""
    if not point:
        return ""
    readable = "_".join(f"{key.rpartition('.')[2]}-{_short(value)}" for key, value in point.items())
    return folders.digested(readable, exact(point))


def exact(value: object) -> str:
    """A text that no other value of a configuration has."""
    return json.dumps(value, sort_keys=True)


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return "_".join(f"{k}-{_short(v)}" for k, v in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(source: str, label: str) -> str:
    return f"{source}, [compare.{label}]" if label else source
