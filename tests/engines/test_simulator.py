import dataclasses
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines import simulator
from equipoise.errors import InputError
from equipoise.protocol import as_key
from tests.problems import DIM, N, assert_identical, assert_same, build, everything, few, start, unequal


def test_history_has_a_row_for_every_round():
    seen = []
    result = eq.simulate(
        build("fedavg"),
        start(),
        unequal(),
        0,
        rounds=25,
        record=lambda s: {"x": s.x, "norm": jnp.sum(s.x**2)},
        progress=lambda done, of, last: seen.append((done, of, float(last["norm"]))),
    )
    assert result.rounds == 25
    assert result.history["x"].shape == (25, DIM)
    np.testing.assert_array_equal(result.history["x"][-1], result.server.x)
    assert seen[-1] == (25, 25, result.history["norm"][-1])
    assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})


def test_no_rounds_leave_everything_as_it_was():
    result = eq.simulate(build("scaffold"), start(), unequal(), 0, rounds=0, record=lambda s: s.x)
    np.testing.assert_array_equal(result.server.x, start())
    assert result.history.shape == (0, DIM)


def test_counts_go_on_from_one_stretch_of_rounds_to_the_next():
    poisoned = unequal()._replace(inputs=unequal().inputs.at[1].multiply(1e300))
    seen, how = [], {"callback": lambda result: seen.append(result.tally.broken.tolist()), "every": 2}
    with pytest.warns(eq.errors.LostReplies):
        before = eq.simulate(build("fedavg"), start(), poisoned, 0, rounds=3, **how)
    with pytest.warns(eq.errors.LostReplies):
        result = eq.simulate(build("fedavg"), start(), poisoned, 0, rounds=7, resume=before, **how)
    assert seen == [[0, done, 0, 0, 0] for done in (2, 3, 4, 6, 7)]
    assert (result.tally.asked.tolist(), result.tally.answered.tolist()) == ([35], [28])


def test_an_integer_is_a_seed():
    runs = [eq.simulate(build("fedavg", batch=2), start(), unequal(), key, rounds=2) for key in (7, jax.random.key(7))]
    assert_identical(runs[0].server, runs[1].server)


def test_leaves_its_arguments_alone():
    x, data = start(), unequal()
    first = eq.simulate(build("scaffold"), x, data, 0, rounds=2)
    kept = np.asarray(first.clients)
    eq.simulate(build("scaffold"), x, data, 0, rounds=4, resume=first)
    np.testing.assert_array_equal(x, start())
    np.testing.assert_array_equal(data.inputs, unequal().inputs)
    np.testing.assert_array_equal(first.clients, kept)


def test_runs_in_any_thread():
    results = []
    thread = threading.Thread(
        target=lambda: results.append(eq.simulate(build("fedavg"), start(), unequal(), 0, rounds=2))
    )
    thread.start()
    thread.join()
    assert_same(results[0].server, eq.simulate(build("fedavg"), start(), unequal(), 0, rounds=2).server)


@pytest.mark.parametrize(
    "kind", few([np.uint32], [int, np.int64, np.uint32], "::test_any_integer_is_a_seed_in_every_engine")
)
def test_any_integer_is_a_seed_in_every_engine(kind):
    runs = [
        engine(build("fedavg", batch=2), start(), unequal(), seed, rounds=2)
        for engine, seed in ((eq.simulate, kind(7)), (eq.debug, kind(7)), (eq.simulate, jax.random.key(7)))
    ]
    assert_same(runs[0].server, runs[1].server)
    assert_identical(runs[0].server, runs[2].server)


def test_large_seeds_are_seeds_of_their_own():
    words = {tuple(jax.random.key_data(as_key(s)).tolist()) for s in (0, 1, 2**32, 2**32 + 1, 2**33, 2**64 - 1)}
    assert len(words) == 6
    for bad in (-1, 2**64, 2.5, "seven"):
        with pytest.raises(InputError, match="give an integer"):
            as_key(bad)


def test_numpy_arrays_are_data():
    data = jax.tree.map(np.asarray, unequal())
    for name, batch in (("scaffpd", None), ("fedavg", 2)):
        runs = [eq.simulate(build(name, batch=batch), start(), d, 0, rounds=2) for d in (unequal(), data)]
        assert_identical(runs[0].server, runs[1].server)
    assert_same(eq.debug(build("fedavg", batch=2), start(), data, 0, rounds=2).server, runs[0].server)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Doubled:
    """Client data of a user's own: the rows of `Shards`, twice as large."""

    shards: eq.data.Shards

    n = property(lambda self: self.shards.n)
    sizes = property(lambda self: self.shards.sizes)

    def client(self, i):
        shard = self.shards.client(i)
        return shard._replace(inputs=2 * shard.inputs)


class Opaque(Doubled):
    """The same, but not known to JAX as a tree of arrays."""


def test_takes_any_pytree_with_n_sizes_and_client():
    data = unequal()
    twice = data._replace(inputs=2 * data.inputs)
    for batch in (None, 2):
        algorithm = build("fedavg", batch=batch)
        mine, plain = (eq.simulate(algorithm, start(), d, 0, rounds=2) for d in (Doubled(data), twice))
        assert_same(mine.server, plain.server)


def test_the_numbers_of_data_are_not_part_of_the_program():
    """JAX warns of captured constants above 1 MB (conftest), and warnings are errors."""
    rng = np.random.default_rng(0)
    data = eq.data.Shards(rng.normal(size=(2, 700, 200)), rng.normal(size=(2, 700)), np.full(2, 700, np.int32))
    for task in (eq.tasks.ridge(200, 0.1), eq.tasks.ridge(200, 0.1, 5)):
        algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(2), steps=1, local_lr=1e-3)
        assert eq.simulate(algorithm, jnp.zeros(200), data, 0, rounds=1).rounds == 1


def test_methods_of_one_task_prepare_its_data_by_one_program():
    """Where `prepare` is of the numbers themselves, the program takes them as operands."""
    task, everyone = eq.tasks.ridge(DIM, 0.1), eq.cohorts.everyone(N)
    for method in (eq.algorithms.fedavg, eq.algorithms.scaffold):
        for local_lr in (0.01, 0.02):
            eq.simulate(method(task, everyone, steps=2, local_lr=local_lr), start(), unequal(), 0, rounds=1)
    assert simulator.preparing(task.prepare, True)._cache_size() == 1

    @eq.numbers_are_leaves
    def scaled(factor):
        def prepare(shard):
            return task.prepare(shard._replace(labels=factor * shard.labels))

        return eq.algorithms.fedavg(task, everyone, steps=2, local_lr=0.01)._replace(prepare=prepare)

    ends = [eq.simulate(scaled(k), start(), unequal(), 0, rounds=1).server for k in (1.0, 3.0)]
    assert_same(ends[1], eq.simulate(scaled(3.0)._replace(name="whole"), start(), unequal(), 0, rounds=1).server)
    assert not np.allclose(*(jax.tree.leaves(end)[0] for end in ends))
    assert simulator.preparing(jax.tree.structure(scaled(1.0)), True)._cache_size() == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_which_program_a_round_runs_in_depends_on_its_number_only(monkeypatch, devices):
    """The first over little data in one that compiles quickly; where a run stops changes nothing."""
    programs, rounds_of = [], simulator.rounds_of
    monkeypatch.setattr(simulator, "rounds_of", lambda *how: programs.append(how[-1]) or rounds_of(*how))
    how = {"devices": devices, "record": lambda s: s.x, "every": 2}
    usual = eq.simulate(build("scaffold"), start(), unequal(), 0, rounds=6, **how)
    assert programs == [True]

    monkeypatch.setattr(simulator, "quick_rounds", lambda *sizes: 3)
    halts = []
    whole = eq.simulate(
        build("scaffold"), start(), unequal(), 0, rounds=6, callback=lambda r: halts.append(r.rounds), **how
    )
    assert programs == [True, True, False]
    assert (halts, len(whole.history)) == ([2, 4, 6], 6)
    assert_same(whole.server, usual.server)
    for stop in (2, 3, 4):
        part = eq.simulate(build("scaffold"), start(), unequal(), 0, rounds=stop, **how)
        rest = eq.simulate(build("scaffold"), start(), unequal(), 0, rounds=6, resume=part, **how)
        assert_identical((rest.server, rest.clients, rest.history), (whole.server, whole.clients, whole.history))


def test_much_data_is_compiled_in_full(monkeypatch):
    few = simulator.quick_rounds(unequal(), DIM, N)
    assert few >= simulator.FEWEST_QUICK
    numbers = jax.ShapeDtypeStruct((10**6,), np.float32)
    assert simulator.quick_rounds(numbers, 100, N) == 0
    assert simulator.quick_rounds(unequal(), DIM, 1000) == 0  # a server may compare all with all
    monkeypatch.setattr(simulator, "compiles_quickly", lambda: False)
    assert simulator.quick_rounds(unequal(), DIM, N) == 0


def test_a_pool_is_data():
    """A memory-lean pool of rows gives what padded shards give."""
    data = unequal()
    rows = [np.asarray(a)[i, :m] for i, m in enumerate(data.sizes) for a in (data.inputs, data.labels)]
    ends = np.cumsum([0, *np.asarray(data.sizes)])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    pool = eq.data.federate(np.concatenate(rows[::2]), np.concatenate(rows[1::2]), parts)
    for batch in (None, 3):
        algorithm = build("scaffpd", batch=batch)
        assert_same(*(eq.simulate(algorithm, start(), d, 0, rounds=3).server for d in (data, pool)))


def broken(**fields):
    return unequal()._replace(**fields)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": jnp.zeros(3)}, r"the start has shape \(3,\) but the task has 4 parameters; give a flat vector of 4"),
        ({"x": jnp.zeros(DIM, int)}, "the start is of type int64; give float32 or float64"),
        ({"x": jnp.full(DIM, jnp.nan)}, "the start has NaN or infinite entries"),
        ({"x": jnp.zeros(DIM, jnp.float32)}, "the inputs are float64 and the start is float32; give both the same"),
        ({"data": unequal(4)}, "the data has 4 clients but fedavg was built for 5"),
        ({"data": unequal(dim=3)}, r"the task is for 4 features but the examples have shape \(3,\)"),
        ({"data": broken(inputs=unequal().inputs.at[1, 0, 0].set(jnp.nan))}, "the inputs have NaN or infinite entries"),
        ({"data": broken(labels=unequal().labels.at[1, 0].set(jnp.inf))}, "the labels have NaN or infinite entries"),
        ({"data": broken(sizes=unequal().sizes.at[3].set(0))}, "client 3 has no examples"),
        ({"rounds": -1}, "-1 rounds cannot be run"),
        ({"rounds": 2.5}, "rounds is 2.5; give an integer"),
        ({"data": (1, 2)}, r"the data is a tuple without .n, .sizes or .client\(i\)"),
        ({"data": Opaque(unequal())}, "is a Opaque, which is not a pytree of arrays; register the class"),
        ({"clients_per_batch": 0}, "clients_per_batch is 0"),
        ({"devices": 999}, "999 devices were asked for and JAX sees"),
    ],
)
def test_says_what_is_wrong(change, sentence):
    given = {"x": start(), "data": unequal(), "key": 0, "rounds": 1} | change
    with pytest.raises(InputError, match=sentence):
        eq.simulate(build("fedavg"), **given)


def test_resume_cannot_go_back():
    result = eq.simulate(build("fedavg"), start(), unequal(), 0, rounds=3)
    with pytest.raises(InputError, match="has 3 rounds already"):
        eq.simulate(build("fedavg"), start(), unequal(), 0, rounds=2, resume=result)


def test_resume_is_of_the_same_run():
    result = eq.simulate(build("fedavg"), start(), unequal(), 0, rounds=2, record=everything)
    given = {"algorithm": build("fedavg"), "key": 0, "record": everything}
    for other, sentence in (
        ({"algorithm": build("scaffold")}, "to resume is of fedavg or of another model, and this is scaffold"),
        ({"algorithm": build("fedprox")}, "to resume is of fedavg or of another model, and this is fedprox"),
        ({"key": 1}, "was made with another key"),
        ({"record": None}, "has another history than `record` makes"),
        ({"record": lambda server: server.x[:2]}, "has another history than `record` makes"),
    ):
        asked = given | other
        with pytest.raises(InputError, match=sentence):
            eq.simulate(asked.pop("algorithm"), start(), unequal(), rounds=4, resume=result, **asked)


def test_unknown_names_get_the_nearest_known_one():
    with pytest.raises(InputError, match="there is no algorithm 'scafold'; did you mean 'scaffold'"):
        eq.algorithms.named("scafold")
    assert eq.algorithms.named("fedavg").factory is eq.algorithms.fedavg


# Two devices divide four of them evenly, and five not.
@pytest.mark.parametrize("n", few([5], [4, 5], "::test_chunks_over_devices_give_the_same[5]"))
def test_chunks_over_devices_give_the_same(n):
    if len(jax.local_devices()) < 2:
        pytest.skip("JAX sees one device only")
    one, two = (
        eq.simulate(build("scaffpd", n=n), start(), unequal(n), 0, rounds=30, devices=d, progress=lambda *_: None)
        for d in (1, 2)
    )
    assert_same((one.server, one.clients, one.tally), (two.server, two.clients, two.tally))


def test_a_run_ends_early_with_its_history():
    """`until` sees the same as `callback`, and what ended early can be resumed to the end, bit for bit."""
    seen, how = [], {"record": lambda s: s.x, "every": 2}
    algorithm = build("scaffold")
    whole = eq.simulate(algorithm, start(), unequal(), 0, rounds=7, **how)
    stop = {"callback": lambda r: seen.append(r.rounds), "until": lambda r: float(jnp.sum(r.server.x**2)) > 0}
    short = eq.simulate(algorithm, start(), unequal(), 0, rounds=7, **how, **stop)
    assert (short.rounds, seen) == (2, [2])
    np.testing.assert_array_equal(short.history, whole.history[:2])
    rest = eq.simulate(algorithm, start(), unequal(), 0, rounds=7, resume=short, **how)
    assert_identical((rest.server, rest.history), (whole.server, whole.history))


def test_a_tree_goes_in_and_comes_back():
    """Any tree of parameters may be the start; other leaves than floating-point arrays come back as they were."""
    tree = {"weights": start()[1:], "intercept": start()[:1], "name": "ridge"}
    flat = jnp.concatenate([tree["intercept"], tree["weights"]])
    algorithm = build("fedavg")
    expected = eq.simulate(algorithm, flat, unequal(), 0, rounds=2).model
    for result in (
        eq.simulate(algorithm, tree, unequal(), 0, rounds=2),
        eq.debug(algorithm, tree, unequal(), 0, rounds=2, jit=True),
        *eq.sweep(eq.grid(algorithm, tree, unequal()), rounds=2),
    ):
        assert result.model["name"] == "ridge"
        assert result.model["weights"].shape == (DIM - 1,)
        np.testing.assert_allclose(
            jnp.concatenate([result.model["intercept"], result.model["weights"]]), expected, rtol=1e-12
        )
    with pytest.raises(InputError, match="without floating-point arrays"):
        eq.simulate(algorithm, {"name": "ridge"}, unequal(), 0, rounds=2)
