"""Many runs, settings or seeds or both: one compiled program for all algorithms of one structure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial, PyTreeDef
from jax.typing import ArrayLike
from jaxtyping import PyTree

from equipoise._jax import cached_program, compiled
from equipoise.data.shards import ClientData
from equipoise.engines import checks, kernel, simulator
from equipoise.engines.client_data import PreparedData, as_given, prepare
from equipoise.engines.kernel import Lost, State, Tally
from equipoise.engines.layout import SMALL, Layout, lay_out
from equipoise.engines.made_from import made_from
from equipoise.engines.simulator import Advanced, Inputs, Outline, Products, Result, Run, in_precision
from equipoise.errors import InputError, Stopped, require
from equipoise.leaves import numbers_of
from equipoise.protocol import Algorithm, RandomKey, Vector, as_key, nbytes

KEEP_NOTHING = simulator.as_operand(simulator.nothing_recorded)
Key = TypeVar("Key")
Value = TypeVar("Value")
SHARE = 0.25  # of the memory there is, for runs side by side


class Trial(NamedTuple):
    """One run of a sweep."""

    algorithm: Algorithm
    x: Vector
    data: ClientData
    key: RandomKey | int
    lost: Lost | None = None


def grid(
    algorithms: Algorithm | Sequence[Algorithm],
    x: Vector | Sequence[Vector],
    data: ClientData | Sequence[ClientData],
    seeds: RandomKey | int | Sequence[RandomKey | int] = 0,
) -> list[Trial]:
    """A trial for every algorithm and seed, seeds within algorithms; lists of x and data have one for each seed."""
    methods: list[Algorithm] = [algorithms] if isinstance(algorithms, Algorithm) else list(algorithms)
    keys = list(seeds) if isinstance(seeds, Sequence) else [seeds]
    starts: list[PyTree] = list(x) if isinstance(x, list | tuple) else [x] * len(keys)
    shared = isinstance(data, ClientData) or not isinstance(data, list | tuple)
    divisions: list[PyTree] = [data] * len(keys) if shared else [*data]  # type: ignore[misc]
    require(
        len(starts) == len(divisions) == len(keys),
        f"there are {len(keys)} seeds, {len(starts)} starts and {len(divisions)} divisions of the data; "
        "give one start and one division, or as many as seeds",
    )
    return [Trial(method, *each) for method in methods for each in zip(starts, divisions, keys, strict=True)]


def sweep(
    trials: Sequence[Trial],
    *,
    rounds: int,
    record: Callable[[PyTree], PyTree] | None = None,
    at_once: int | None = None,
    clients_per_batch: int | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    resume: Sequence[Result | None] | None = None,
    callback: Callable[[int, Result], None] | None = None,
    every: int = 1,
    products: Products | None = None,
) -> list[Result]:
    """Runs every trial for `rounds` rounds; the results are those of `simulate` one by one, up to rounding.

    Args:
        trials: from `grid`, or made by hand. Algorithms of one structure (`equipoise.leaves`) share a program, in which
            their numbers are operands. Data may differ in size (it is padded), not in number of clients.
        rounds: how many rounds, those of `resume` included.
        record: what to keep of the server after every round; comes back as each result's `history`.
        at_once: how many trials run side by side (None: as many as fit into memory; one by one where a CPU is busy
            enough with one). All use the same program, whatever their number.
        clients_per_batch: as in `simulate`.
        progress: called now and then with (trials done, the rounds of those that run, rounds in all).
        resume: earlier results to continue, one for each trial or None.
        callback: called after every `every` rounds and after the last with (trial, its result so far without history).
        every: how many rounds lie between two calls of `callback`.
        products: as in `simulate`.

    A trial that diverges loses its own replies only. Ctrl-C raises `Stopped`, whose `result` is a list: a result for
    every trial that has begun.
    """
    require(len(trials) > 0, "there are no trials; give at least one")
    checks.check_every(every)
    for trial in trials:
        checks.check_outside(
            "sweep", trial.algorithm, made_from(trial.algorithm).settings, trial.x, trial.data, trial.key
        )
    forms = [checks.as_vector(t.x) for t in trials]
    lost = [None if t.lost is None else simulator.as_operand(t.lost) for t in trials]
    flat = [t._replace(x=x, key=as_key(t.key), lost=l) for t, (x, _), l in zip(trials, forms, lost, strict=True)]
    trials = with_data_alike(flat)
    for trial in trials:
        checks.check_start(trial.algorithm, trial.x, rounds)
    structures = [jax.tree.structure(t.algorithm) for t in trials]
    programs: dict[PyTreeDef, Program] = {}
    keep = simulator.as_operand(record or simulator.nothing_recorded)
    for structure, of_it in _grouped(structures, trials):
        first = of_it[0]
        for data in {id(t.data): t.data for t in of_it}.values():
            checks.check_data(first.algorithm, first.x, data)
        outline = _outline(first, keep)
        checks.check_memory(outline.state, first.algorithm)
        layout = lay_out(outline.shard, len(outline.largest), 1, clients_per_batch)
        together = max(Counter(id(trial.data) for trial in of_it).values())  # those with other data come after
        width = at_once or side_by_side(first, together)
        programs[structure] = Program(structure, layout, keep, rounds, every, products, width)
    before = [None] * len(trials) if resume is None else list(resume)
    results: list[Result | None] = list(before)
    done = 0
    with simulator.interrupts_deferred() as interrupted:
        for structure, slice_ in _slices(structures, trials, before, programs):
            if interrupted:
                break

            def watch(reached: int, done: int = done) -> None:
                if progress is not None:
                    progress(done, reached, rounds)

            chosen, old = [trials[i] for i in slice_], [before[i] for i in slice_]
            final = _run(programs[structure], chosen, old, slice_, watch, callback, interrupted)
            for i, result in zip(slice_, final, strict=False):
                results[i] = result
            done += len({*slice_})
    if interrupted:
        raise Stopped(results)
    return [r._replace(model=form(r.model)) for r, (_, form) in zip(results, forms, strict=True) if r is not None]


class Program(NamedTuple):
    """What all slices of trials of one structure share."""

    structure: PyTreeDef
    layout: Layout
    keep: Partial
    rounds: int
    every: int
    products: Products | None
    width: int  # how many run side by side


def _grouped(keys: Sequence[Key], values: Sequence[Value]) -> Iterable[tuple[Key, list[Value]]]:
    """The values of each key, keys in the order in which they first come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    return groups.items()


def _slices(
    structures: Sequence[PyTreeDef],
    trials: Sequence[Trial],
    before: Sequence[Result | None],
    programs: Mapping[PyTreeDef, Program],
) -> Iterator[tuple[PyTreeDef, list[int]]]:
    """Trials that share a program and data and have come equally far; the last one stands in for those missing."""
    kinds = [
        (structure, id(trial.data), 0 if result is None else result.rounds)
        for structure, trial, result in zip(structures, trials, before, strict=True)
    ]
    for (structure, _, _), places in _grouped(kinds, range(len(trials))):
        width = programs[structure].width
        for k in range(0, len(places), width):
            chosen = places[k : k + width]
            yield structure, chosen + chosen[-1:] * (width - len(chosen))


def _run(
    program: Program,
    trials: Sequence[Trial],
    before: Sequence[Result | None],
    places: Sequence[int],
    watch: Callable[[int], None],
    callback: Callable[[int, Result], None] | None,
    interrupted: list,
) -> list[Result]:
    structure, layout, keep, rounds, every, products, _ = program
    first, real = trials[0], len({*places})
    algorithm, dtype = first.algorithm, first.x.dtype
    columns = zip(*(jax.tree.leaves(t.algorithm) for t in trials), strict=True)
    numbers = [jnp.asarray(np.array([np.asarray(v) for v in column]), dtype) for column in columns]
    xs, keys = jnp.stack([t.x for t in trials]), jnp.stack([t.key for t in trials])
    lose = None if first.lost is None else jax.tree.map(lambda *a: jnp.stack(a), *[t.lost for t in trials])
    data = jax.device_put(first.data)
    states, source, finite = in_precision(products, beginnings(structure))(xs, numbers, data)
    checks.require_finite(finite)
    source = as_given(data) if source is None else source
    outline = _outline(first, keep)
    words = [simulator.words_of(as_key(t.key)) for t in trials]
    origins = [made_from(t.algorithm, t.data) for t in trials]
    start = Run(states, _stacked([Tally.nothing(algorithm)] * len(trials)), [])
    old = [result for result in before if result is not None]
    if old:
        for one, word, origin in zip(old, words, origins, strict=True):
            simulator.check_resume(one, algorithm.name, word, outline, rounds, origin)
        server, clients, tally = (_stacked([getattr(r, name) for r in old]) for name in ("server", "clients", "tally"))
        done = jax.device_put(np.full(len(trials), old[0].rounds, np.int32))
        states = jax.device_put(states._replace(round=done, server=server, clients=clients))
        rows = [] if old[0].history is None else [_stacked([r.history for r in old], axis=1)]
        took = sum(r.seconds for r in old[:real]), sum(r.compile_seconds for r in old[:real])
        start = Run(states, tally, rows, old[0].rounds, *took)
    most = simulator.longest_history(outline.row)
    many = in_precision(products, partial(rounds_of_many(structure, layout), numbers, length=most))

    def advance(states: State, stop: np.int32) -> Advanced:
        return many(states, Inputs(source, keys, keep, lose), stop)

    def result(run: Run, t: int, history: PyTree = None) -> Result:
        server, clients = one_of((run.state.server, run.state.clients), t)
        tally, took = jax.tree.map(lambda a: a[t], run.tally), (run.seconds / real, run.compile_seconds / real)
        model = trials[t].algorithm.model(server)
        return Result(server, clients, history, run.reached, tally, *took, algorithm.name, words[t], origins[t], model)

    run, halts = start, None if callback is None else every
    for run in simulator.in_chunks([(lambda: advance, rounds)], start, rounds, most, halts, interrupted):
        if callback is not None and run.halted:
            for t in range(real):
                callback(places[t], result(run, t))
        watch(run.reached)
    row = jax.tree.map(lambda s: jax.ShapeDtypeStruct((len(trials), *s.shape), s.dtype), outline.row)
    history = simulator.history_of(run.rows, row)
    return [result(run, t, jax.tree.map(lambda a, t=t: np.array(a[:, t]), history)) for t in range(real)]


def _stacked(trees: Sequence[PyTree], axis: int = 0) -> PyTree:
    return jax.tree.map(lambda *a: np.stack([np.asarray(v) for v in a], axis), *trees)


@jax.jit
def one_of(many: PyTree, place: ArrayLike) -> PyTree:
    return jax.tree.map(lambda a: a[place], many)


@cached_program
def beginnings(structure: PyTreeDef) -> Callable:
    """The program before the first round: every trial's state, the prepared data, and which arrays are finite."""

    def begin(xs: Array, numbers: list[Array], data: ClientData) -> tuple[State, PreparedData | None, dict[str, Array]]:
        states = jax.vmap(lambda x, numbers: kernel.init(structure.unflatten(numbers), x))(xs, numbers)
        if not numbers:  # the trials differ in their seeds only
            return states, prepare(structure.unflatten([]).prepare, data), checks.all_finite(data)
        try:
            source = jax.vmap(lambda numbers: prepare(structure.unflatten(numbers).prepare, data), out_axes=None)(
                numbers
            )
        except ValueError as error:
            raise InputError(
                "what clients prepare depends on a setting, so the trials cannot share it; run them one by one"
            ) from error
        return states, source, checks.all_finite(data)

    return compiled(begin)


@cached_program
def rounds_of_many(structure: PyTreeDef, layout: Layout) -> Callable:
    """The program of rounds of all trials: up to `stop`, at most `length` of them, and a row of each."""

    def advance(numbers: list[Array], states: State, inputs: Inputs, stop: Array, *, length: int) -> Advanced:
        source, keys, keep, lose = inputs
        assert source is not None

        def one(state: State, key: RandomKey, numbers: list[Array], lose: Partial | None) -> State:
            return kernel.step(structure.unflatten(numbers), state, source, key, lost=lose, layout=layout)

        def step(states: State) -> State:
            return jax.vmap(one)(states, keys, numbers, lose)

        return simulator.all_rounds(step, jax.vmap(keep), states, states.round[0], stop, length)

    return compiled(advance, quickly=False, donate_argnums=1, static_argnames="length")


def with_data_alike(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with data of one shape; those that share data share it still."""
    from equipoise.data.pool import alike  # which imports what reads files

    distinct = {id(t.data): t.data for t in trials}
    padded = dict(zip(distinct, alike([*distinct.values()]), strict=True))
    return [t._replace(data=padded[id(t.data)]) for t in trials]


def side_by_side(trial: Trial, trials: int) -> int:
    """How many of `trials` like this one fit into memory together; one where a CPU is busy enough with one."""
    outline = _outline(trial)
    if jax.default_backend() == "cpu" and nbytes(outline.shard) > SMALL:
        return 1
    # A state and its successor; of every client in the cohort its rows, and a few vectors of the model's size.
    state = outline.state.server, outline.state.clients
    each = 2 * nbytes(state) + len(outline.largest) * (nbytes(outline.shard) + 6 * nbytes(trial.x))
    return max(1, min(trials, int(SHARE * checks.total_memory() / max(each, 1))))


def _outline(trial: Trial, keep: Partial = KEEP_NOTHING) -> Outline:
    structure, numbers = jax.tree.structure(trial.algorithm), numbers_of(trial.algorithm, trial.x.dtype)
    return jax.eval_shape(simulator.outline_of(structure), numbers, trial.x, trial.data, as_key(trial.key), keep)
