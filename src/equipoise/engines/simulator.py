"""Runs an algorithm on one machine, as one compiled program: clients under vmap, rounds in a loop on the device."""

import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec
from jax.tree_util import Partial, PyTreeDef
from jaxtyping import PyTree

from equipoise._jax import cached_program, compiled, compiles_quickly, numbers_in
from equipoise.data.shards import ClientData
from equipoise.engines import checks, kernel, stream
from equipoise.engines.client_data import PreparedData, SpreadData, StackedData, as_given, by_client, padding, prepare
from equipoise.engines.kernel import Lost, State, Tally
from equipoise.engines.layout import Layout, lay_out, on_device
from equipoise.engines.made_from import MadeFrom, differs, made_from
from equipoise.errors import LostReplies, Stopped, one_of, require
from equipoise.leaves import numbers_of
from equipoise.protocol import Algorithm, Client, Data, RandomKey, Server, Vector, as_key, nbytes

Products = Literal["float32", "tf32", "bf16"]
PRODUCTS = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}  # JAX's names
Given = ParamSpec("Given")
Made = TypeVar("Made")
Model = TypeVar("Model")  # a flat vector, or a tree
Progress = Callable[[int, int, PyTree], None]
CHUNK_SECONDS = 0.25  # how long the device runs between two looks at the clock and at Ctrl-C
RECORDED = 1 << 22  # bytes of records that stay on the device before they are fetched
MOST_RECORDED = 1024  # rounds of them
# Over little data the first rounds run in a program that compiles in a third of the time (`compiled(quickly=True)`):
# many runs have no others. How many depends on sizes only, so that who stops and resumes gets the same numbers.
QUICK_WORK = 1 << 25  # numbers of data times those of the model, in all these rounds: what they lose by it is small
PAIRS_OF_CLIENTS = 1 << 6  # what a pair of clients counts, which servers that keep what each says may multiply
FEWEST_QUICK, MOST_QUICK = 16, 128  # rounds: for fewer, another program is not worth while; more are seldom asked for


class Result(NamedTuple, Generic[Server, Client, Model]):
    """Where a run ended, and what `record` saw of every round."""

    server: Server
    clients: Client
    history: PyTree[np.ndarray]  # leading axis: rounds
    rounds: int
    tally: Tally
    seconds: float  # running, without compiling
    compile_seconds: float
    algorithm: str = ""  # its name
    key: tuple[int, ...] = ()  # the words of the run's random key
    origin: MadeFrom = MadeFrom()  # of its algorithm and data; nothing: not known
    # What was trained, in the form of the start: a flat vector or a tree.
    model: Model = None  # type: ignore[assignment]


def simulate(
    algorithm: Algorithm[Server, Client],
    x: Model,
    data: ClientData,
    key: RandomKey | int,
    *,
    rounds: int,
    record: Callable[[Server], PyTree] | None = None,
    clients_per_batch: int | None = None,
    devices: int | None = None,
    progress: Progress | None = None,
    lost: Lost | None = None,
    resume: Result[Server, Client, Any] | None = None,
    callback: Callable[[Result[Server, Client, Model]], None] | None = None,
    until: Callable[[Result[Server, Client, Model]], bool] | None = None,
    every: int = 1,
    products: Products | None = None,
) -> Result[Server, Client, Model]:
    """Runs `algorithm` from x for `rounds` rounds over the clients of `data`.

    Args:
        algorithm: from `equipoise.algorithms`, or one of your own. Its leaves are operands: with other numbers (step
            sizes, a penalty) it is another run of the same compiled program, see `equipoise.leaves`.
        x: the first model, a flat vector of `algorithm.size` or any tree with as many numbers, such as an equinox
            module; its dtype is the precision of the run, and `result.model` is of the same form.
        data: Shards, a Pool, or a pytree of your own (see `equipoise.data.ClientData`), of NumPy or JAX arrays. Shards
            of memory-mapped arrays stay in their files: only the rows of those who are asked are read, round by round.
        key: a jax.random key, or an integer seed.
        rounds: how many rounds, those of `resume` included.
        record: what to keep of the server after every round; comes back as `history`.
        clients_per_batch: how many clients of a cohort run side by side on a device (None: chosen for the device).
            Less takes less memory and gives the same result up to the order of sums.
        devices: over how many devices to spread a cohort (None: all, where that pays); the cores of a CPU count.
        progress: called now and then with (rounds done, rounds in all, the last record).
        lost: which clients' replies get lost: lost(round, exchange, ids) -> [m]; for studies of drop-out.
        resume: an earlier result to continue; the end is that of an uninterrupted run, bit for bit. A result of another
            algorithm, other numbers, another key or other data (its sizes and a few rows are compared) is refused.
        callback: called after every `every` rounds and after the last with the result so far (without its history),
            whose arrays are gone when it returns: for evaluation and checkpoints.
        until: asked at the same times, with the same result; once it says True, the run ends there, with its history.
        every: how many rounds lie between two calls of `callback` and `until`.
        products: the precision of matrix products on an accelerator, whose sums are of the precision of x in any case:
            "tf32" and "bf16" are faster and less exact. None: what JAX is set to, float32 where it is not set.

    Ctrl-C raises `Stopped`, whose `result` holds all rounds finished until then.

    A program is compiled once for the structure of an algorithm, the shapes of its arguments, `record` and `lost`; the
    number of rounds, the numbers in `data` and `resume` do not matter. `record` and `lost` may be a
    jax.tree_util.Partial, whose arrays do not matter either.
    """
    checks.check_outside("simulate", algorithm, x, data, key)
    key, (flat, in_given_form) = as_key(key), checks.as_vector(x)
    checks.check_start(algorithm, flat, rounds)
    checks.check_data(algorithm, flat, data)
    checks.check_every(every)
    origin = made_from(algorithm, data)
    checks.check_outside("simulate", origin.settings)  # numbers in closures are no leaves
    numbers, structure = numbers_of(algorithm, flat.dtype), jax.tree.structure(algorithm)
    keep, lose = as_operand(record or nothing_recorded), None if lost is None else as_operand(lost)
    outline = jax.eval_shape(outline_of(structure), numbers, flat, data, key, keep)
    checks.check_memory(outline.state, algorithm)
    quick = 0 if stream.is_mapped(data) else quick_rounds(data, flat.size, algorithm.n)
    layout = lay_out(outline.shard, len(outline.largest), devices, clients_per_batch, padding=padding(data))
    # What a method leaves to its task does not depend on the numbers: one program for all such methods.
    shared = algorithm.prepare if outline.preparation.func is algorithm.prepare else None
    state, source = begin(structure, numbers, flat, data, shared, layout, products, quickly=quick > 0)
    mapped = stream.rounds(structure, data) if stream.is_mapped(data) else None
    del data
    start, words = Run(state, Tally.nothing(algorithm), []), words_of(key)
    if resume is not None:
        check_resume(resume, algorithm.name, words, outline, rounds, origin)
        start = resumed(resume, state)
    inputs, numbers = layout.place((Inputs(None, key, keep, lose), numbers))
    inputs = inputs._replace(source=source)
    if not layout.spread or resume is not None:
        start = start._replace(state=placed(start.state, layout))
    most = longest_history(outline.row)

    def result(run: Run, history: PyTree = None) -> Result:
        clients = layout.gathered(run.state.clients, algorithm.n)
        took = (run.seconds, run.compile_seconds)
        model = in_given_form(algorithm.model(run.state.server))
        return Result(
            run.state.server, clients, history, run.reached, run.tally, *took, algorithm.name, words, origin, model
        )

    def program(quickly: bool) -> Advance:
        many = in_precision(products, partial(mapped or rounds_of(structure, layout, quickly), numbers, length=most))
        return lambda state, stop: many(state, inputs, stop)

    stages = ((partial(program, True), min(quick, rounds)), (partial(program, False), rounds))
    halts = every if callback is not None or until is not None else None
    run = start
    with interrupts_deferred() as interrupted:
        for run in in_chunks(stages, start, rounds, most, halts, interrupted):
            if callback is not None and run.halted:
                callback(result(run))
            ended = until is not None and run.halted and bool(until(result(run)))
            if progress is not None:
                progress(run.reached, rounds, jax.tree.map(lambda a: a[-1], run.rows[-1]))
            if ended:
                break
    final = result(run, history_of(run.rows, outline.row))
    if interrupted:
        raise Stopped(final)
    if sentence := broken_replies(final.tally):
        warnings.warn(sentence, LostReplies, stacklevel=2)
    return final


def begin(
    structure: PyTreeDef,
    numbers: list[Array | np.ndarray],
    x: Vector,
    data: ClientData,
    shared: Callable[[Data], Data] | None,
    layout: Layout,
    products: Products | None,
    *,
    quickly: bool,
) -> tuple[State, PreparedData | None]:
    """The state before the first round, and the clients' data prepared, by `shared` unless that depends on the numbers;
    rows in files are prepared as they are read."""
    if stream.is_mapped(data):
        return in_precision(products, starting(structure))(numbers, x), None
    if layout.spread:
        apart = in_precision(products, beginning_apart(structure, layout, quickly))
        state, source, finite = apart(*layout.place((numbers, x)), layout.of_clients(by_client(data)))
        checks.require_finite(finite)
        return state, source
    data = on_device(data)
    state = in_precision(products, starting(structure))(numbers, x)
    preparation, given = (shared, []) if shared else (structure, numbers)
    source, finite = in_precision(products, preparing(preparation, quickly))(given, data)
    checks.require_finite(finite)
    return state, layout.place_shared(as_given(data) if source is None else source)


class Inputs(NamedTuple):
    """What rounds read and leave as it is; of several runs side by side there is a key and a `lose` for each."""

    source: PreparedData | None  # None: rows are read from files
    key: RandomKey
    keep: Partial
    lose: Partial | None


class Run(NamedTuple):
    """How far a run is, or several side by side, whose arrays then have an axis for them."""

    state: State
    tally: Tally
    rows: list[PyTree[np.ndarray]]  # what was recorded, in as many pieces
    reached: int = 0  # rounds done
    seconds: float = 0.0
    compile_seconds: float = 0.0
    halted: bool = False  # at a multiple of `every`, or at the end


Advanced = tuple[State, PyTree]  # the state after some rounds, and what was recorded on the way
Advance = Callable[[State, np.int32], Advanced]  # to a round


def in_chunks(
    stages: Iterable[tuple[Callable[[], Advance], int]],
    run: Run,
    rounds: int,
    most: int,
    every: int | None,
    interrupted: list,
) -> Iterator[Run]:
    """The loop of every driver: all that is left of `rounds`, in chunks of CHUNK_SECONDS.

    Each of `stages` is a program and the round up to which it runs; it is compiled before its rounds are timed. A chunk
    has at most `most` rounds, and none goes beyond a multiple of `every`.
    """
    for program, end in stages:
        if interrupted or run.reached >= end:
            continue
        advance, clock = program(), time.perf_counter()
        state, _ = jax.block_until_ready(advance(run.state, np.int32(run.reached)))
        run = run._replace(state=state, compile_seconds=run.compile_seconds + time.perf_counter() - clock)
        chunk, begun = 1, False
        while run.reached < end and not (interrupted and begun):
            halt = rounds if every is None else min(rounds, run.reached - run.reached % every + every)
            stop, clock = min(run.reached + min(chunk, most), halt, end), time.perf_counter()
            state, seen = advance(run.state, np.int32(stop))
            counts = jax.tree.map(np.asarray, state.tally)  # waits for the device
            elapsed, done = time.perf_counter() - clock, stop - run.reached
            records = jax.tree.map(lambda a, done=done: np.array(np.asarray(a)[:done]), seen)
            chunk, begun = max(1, min(10 * chunk, int(done / max(elapsed, 1e-9) * CHUNK_SECONDS))), True
            run.rows.append(records)
            run = run._replace(
                state=state,
                tally=jax.tree.map(np.add, run.tally, counts),
                reached=stop,
                seconds=run.seconds + elapsed,
                halted=stop == halt,
            )
            yield run


def history_of(rows: list[PyTree[np.ndarray]], row: PyTree[jax.ShapeDtypeStruct]) -> PyTree[np.ndarray]:
    """All that was recorded, of shapes like `row`."""
    blank = jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), row)
    return jax.tree.map(lambda *a: np.concatenate(a), blank, *rows)


def quick_rounds(data: ClientData, parameters: int, n: int) -> int:
    """How many rounds run in the program that compiles sooner."""
    rounds = QUICK_WORK // (numbers_in(data) * parameters + PAIRS_OF_CLIENTS * n**2)
    return min(rounds, MOST_QUICK) if rounds >= FEWEST_QUICK and compiles_quickly() else 0


def products_in(products: Products | None) -> AbstractContextManager[None]:
    """In it, matrix products have that precision on an accelerator; a CPU has but one."""
    if products is not None:
        one_of("precision of products", products, PRODUCTS)
    if products is None and (jax.config.jax_default_matmul_precision or jax.default_backend() == "cpu"):  # type: ignore[attr-defined]
        return nullcontext()
    return jax.default_matmul_precision(PRODUCTS[products or "float32"])


def in_precision(products: Products | None, program: Callable[Given, Made]) -> Callable[Given, Made]:
    """`program` with matrix products of that precision."""

    def call(*args: Given.args, **options: Given.kwargs) -> Made:
        with products_in(products):
            return program(*args, **options)

    return call


@cached_program
def starting(structure: PyTreeDef) -> Callable:
    """The state before the first round."""
    return compiled(lambda numbers, x: kernel.init(structure.unflatten(numbers), x), quickly=False)


@cached_program
def preparing(preparation: Callable[[Data], Data] | PyTreeDef, quickly: bool) -> Callable:
    """Every client's data, prepared before the first round, and which arrays are finite; by a function or, where that
    depends on the numbers, by an algorithm of that structure."""

    def prepared(numbers: list[Array], data: ClientData) -> tuple[PreparedData | None, dict[str, Array]]:
        by = preparation.unflatten(numbers).prepare if isinstance(preparation, PyTreeDef) else preparation
        return prepare(by, data), checks.all_finite(data)

    return compiled(prepared, quickly=quickly)


@cached_program
def beginning_apart(structure: PyTreeDef, layout: Layout, quickly: bool) -> Callable:
    """As `starting` and `preparing`, where every device holds and prepares its share of the clients."""

    def begin(numbers: list[Array], x: Vector, data: ClientData) -> tuple[State, PreparedData, dict[str, Array]]:
        algorithm, spread = structure.unflatten(numbers), PartitionSpec("clients")
        state = kernel.init(algorithm, x)

        def prepared_here(local: ClientData) -> Data:
            prepared = prepare(algorithm.prepare, StackedData(local))
            return local if prepared is None else prepared.source.tree

        prepared = jax.shard_map(prepared_here, mesh=layout.mesh, in_specs=spread, out_specs=spread, check_vma=False)(
            data
        )
        state = state._replace(clients=jax.tree.map(layout.filled, state.clients))
        return state, PreparedData(SpreadData(prepared)), checks.all_finite(data)

    return compiled(begin, quickly=quickly, out_shardings=(states_apart(layout), layout.by_client, layout.whole))


def states_apart(layout: Layout) -> State:
    return State(layout.whole, layout.whole, layout.by_client, layout.whole)  # type: ignore[arg-type]


def placed(state: State, layout: Layout) -> State:
    clients = layout.of_clients(state.clients) if layout.spread else layout.place(state.clients)
    return layout.place(state._replace(clients=None))._replace(clients=clients)


@cached_program
def rounds_of(structure: PyTreeDef, layout: Layout, quickly: bool) -> Callable:
    """The program of rounds: up to `stop`, at most `length` of them, and a row of each. It counts from zero."""

    def advance(numbers: list[Array], state: State, inputs: Inputs, stop: Array, *, length: int) -> Advanced:
        algorithm = structure.unflatten(numbers)
        source, key, keep, lose = inputs
        assert source is not None

        def step(state: State) -> State:
            return kernel.step(algorithm, state, source, key, lost=lose, layout=layout)

        return all_rounds(step, keep, state, state.round, stop, length)

    shardings = (states_apart(layout), layout.whole) if layout.spread else layout.whole
    return compiled(advance, quickly=quickly, donate_argnums=1, static_argnames="length", out_shardings=shardings)


def all_rounds(
    step: Callable[[State], State],
    keep: Callable[[Server], PyTree],
    state: State,
    start: Array,
    stop: Array,
    length: int,
) -> Advanced:
    """The state after the rounds from `start` to `stop`, whose tally is of these, and `length` rows of records."""
    rows = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), jax.eval_shape(keep, state.server))

    def body(r: Array, carry: Advanced) -> Advanced:
        state, rows = carry
        state = step(state)
        rows = jax.tree.map(lambda table, row: table.at[r - start].set(row), rows, keep(state.server))
        return state, rows

    state = state._replace(tally=jax.tree.map(jnp.zeros_like, state.tally))
    return jax.lax.fori_loop(start, stop, body, (state, rows))


class Outline(NamedTuple):
    """The shapes of a run."""

    state: State
    shard: Data  # of one client, prepared
    largest: Array  # the ids of the largest cohort
    row: PyTree  # what is kept of a round
    preparation: Partial  # how it prepares data


@cached_program
def outline_of(structure: PyTreeDef) -> Callable[..., Outline]:
    """Traced once for its shapes, never run."""

    def outline(numbers: list[Array], x: Vector, data: ClientData, key: RandomKey, keep: Partial) -> Outline:
        algorithm = structure.unflatten(numbers)
        state = kernel.init(algorithm, x)
        cohorts = [exchange.open(state.server, key)[1].ids for exchange in algorithm.round]
        shard, row = algorithm.prepare(data.client(0)), keep(state.server)
        return Outline(state, shard, max(cohorts, key=len), row, Partial(algorithm.prepare))

    return jax.jit(outline)


def as_operand(function: Callable) -> Partial:
    """A function as an argument of a compiled program: the arrays of a Partial are operands."""
    if isinstance(function, Partial):
        return function
    try:
        hash(function)
    except TypeError:
        return Partial(lambda *args: function(*args))
    return Partial(function)


def nothing_recorded(server: Server) -> tuple:
    return ()


def words_of(key: RandomKey) -> tuple[int, ...]:
    return tuple(map(int, np.ravel(jax.random.key_data(key))))


def longest_history(row: PyTree) -> int:
    """How many rounds' records are kept on the device: the same for every run, so that it compiles once."""
    return max(1, min(MOST_RECORDED, RECORDED // max(nbytes(row), 1)))


def check_resume(
    resume: Result, name: str, words: tuple[int, ...], outline: Outline, rounds: int, origin: MadeFrom
) -> None:
    """`resume` is of this run: the same algorithm, data, record and key, and not beyond its end."""
    require(resume.rounds <= rounds, f"the result to resume has {resume.rounds} rounds already; ask for more than that")
    require(
        resume.algorithm in ("", name)
        and _shapes((resume.server, resume.clients)) == _shapes((outline.state.server, outline.state.clients)),
        f"the result to resume is of {resume.algorithm or 'another algorithm'} or of another model, and this is "
        f"{name}; resume with the algorithm, start and data that it came from",
    )
    require(
        resume.key in ((), words),
        "the result to resume was made with another key; resume with the same key, or start over",
    )
    other = differs(resume.origin, origin)
    require(
        other is None, f"the result to resume was made with other {other}; resume with the same ones, or start over"
    )
    row = jax.tree.map(lambda rows: rows[:0], resume.history)
    require(
        row is None or _shapes(row) == _shapes(jax.tree.map(lambda s: np.zeros((0, *s.shape), s.dtype), outline.row)),
        "the result to resume has another history than `record` makes; resume with the same record",
    )


def resumed(before: Result, state: State) -> Run:
    """From where a result ended."""
    # A copy, because the loop takes over the buffers that it is given.
    server, clients = jax.tree.map(np.array, (before.server, before.clients))
    rows = [] if before.history is None else [before.history]
    state = state._replace(round=jax.device_put(np.int32(before.rounds)), server=server, clients=clients)
    return Run(state, before.tally, rows, before.rounds, before.seconds, before.compile_seconds)


def _shapes(tree: PyTree) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(a.shape, a.dtype) for a in leaves]


@contextmanager
def interrupts_deferred() -> Iterator[list]:
    """Ctrl-C in here fills the list instead of breaking off a step; a second one breaks off after all."""
    seen: list = []

    def remember(*signal_and_frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(signal_and_frame)

    try:
        before = signal.signal(signal.SIGINT, remember)
    except ValueError:  # only the main thread hears signals
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def broken_replies(tally: Tally) -> str | None:
    """A sentence about replies that were not finite, if there were any."""
    broken = np.flatnonzero(tally.broken)
    if not broken.size:
        return None
    names = ", ".join(map(str, broken[:8])) + (", ..." if broken.size > 8 else "")
    return (
        f"{tally.broken.sum()} replies of {broken.size} clients ({names}) were not finite and were left out; "
        "if there are many, the step sizes are too large"
    )
