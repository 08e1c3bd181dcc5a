"""Data in memory-mapped files gives what data in memory gives, and only the rows of those asked are read."""

import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import InputError
from tests.problems import DIM, N, assert_identical, assert_same, build, everything, few, sometimes, start, unequal


@pytest.fixture
def mapped(tmp_path):
    def put(name, a):
        np.save(tmp_path / f"{name}.npy", np.asarray(a))
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    return eq.data.Shards(*(put(name, a) for name, a in unequal()._asdict().items()))


@pytest.mark.parametrize(
    "name", few(["drfa"], ["scaffpd_partial", "drfa"], "::test_as_in_memory[drfa]")
)  # of which one guesses right, and one does not always
def test_as_in_memory(name, mapped):
    algorithm = build(name, batch=3, m=3)
    how = {"record": everything, "lost": sometimes}
    memory, files = (eq.simulate(algorithm, start(), d, 3, rounds=6, **how) for d in (unequal(), mapped))
    assert_same(
        (memory.server, memory.clients, memory.history, memory.tally),
        (files.server, files.clients, files.history, files.tally),
    )
    part = eq.simulate(algorithm, start(), mapped, 3, rounds=2, **how)
    again = eq.simulate(algorithm, start(), mapped, 3, rounds=6, resume=part, **how)
    assert_identical((files.server, files.history), (again.server, again.history))


def test_what_is_prepared_is_prepared_for_those_who_are_asked(mapped):
    algorithm = build("fedavg", m=3)  # through Gram matrices
    memory, files = (eq.simulate(algorithm, start(), d, 3, rounds=3).server for d in (unequal(), mapped))
    assert_same(memory, files)


def test_only_the_rows_of_the_cohort_are_read(tmp_path):
    """A file of zeros that takes no room on the disk: reading it whole would take 32 GB."""
    n = 1_000_000
    inputs = np.memmap(tmp_path / "inputs", np.float64, "w+", shape=(n, 1000, DIM))
    labels = np.memmap(tmp_path / "labels", np.float64, "w+", shape=(n, 1000))
    data = eq.data.Shards(inputs, labels, np.full(n, 1000, np.int32))
    task = eq.tasks.ridge(DIM, 0.1, 3)
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.uniform(n, 4), steps=2, local_lr=0.1)
    result = eq.simulate(algorithm, start(), data, 0, rounds=3)
    np.testing.assert_allclose(result.server.x, start() * (1 - 0.01) ** 6)


def test_files_hold_shards(mapped):
    pool = jax.tree.map(lambda a: a, eq.data.federate(np.zeros((N, DIM)), np.zeros(N), [[i] for i in range(N)]))
    odd = eq.data.Pool(**{**vars(pool), "inputs": mapped.inputs[:, 0]})
    with pytest.raises(InputError, match="memory-mapped data has to be Shards"):
        eq.simulate(build("fedavg"), start(), odd, 0, rounds=1)
