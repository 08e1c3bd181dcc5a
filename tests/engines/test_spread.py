"""Data and states spread over devices, and over processes: the numbers of one device, a share of the memory each."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines import client_data, layout
from tests.problems import KEY, N, assert_identical, assert_same, build, everything, few, play_sampled, start, unequal

SOME = ("scaffold", "drfa", "scaffpd", "scaffpd_partial")  # states at clients, two exchanges, tables at the server


@pytest.fixture
def apart(monkeypatch):
    """As if the devices of this process had memories of their own."""
    monkeypatch.setattr(layout, "one_memory", lambda: False)


def seen(run):
    return [run.server, run.history, run.tally, run.clients]


@pytest.mark.parametrize("m", few([3], [3, None], "::test_the_numbers_of_one_device"), ids=["sampled", "everyone"])
@pytest.mark.parametrize("name", few(["scaffpd"], SOME, "::test_the_numbers_of_one_device"))
def test_the_numbers_of_one_device(name, m, monkeypatch):
    one = seen(play_sampled(name, m=m, devices=1))
    monkeypatch.setattr(layout, "one_memory", lambda: False)
    assert_same(one, seen(play_sampled(name, m=m, devices=2)))


def pixels(sizes=(4, 3, 2, 4, 4)):
    """A pool of small integers, with a padding of its own."""
    rng, total = np.random.default_rng(0), sum(sizes)
    parts = np.split(np.arange(total), np.cumsum(sizes)[:-1])
    images, labels = rng.integers(0, 256, (total, 3), np.uint8), rng.integers(0, 2, total)
    return eq.data.federate(images, labels, parts, scale=np.array([0.1, 0.2, 0.3]), offset=-1.0)


def on_pixels(m, **how):
    sample = eq.cohorts.everyone(5) if m is None else eq.cohorts.uniform(5, m)
    algorithm = eq.algorithms.scaffold(eq.tasks.softmax_regression(3, 2), sample, steps=2, local_lr=0.1)
    return eq.simulate(algorithm, np.zeros(8), pixels(), KEY, rounds=3, **how)


@pytest.mark.parametrize(
    "m", few([3], [3, None], "::test_a_pool_is_spread_as_it_is_stored"), ids=["sampled", "everyone"]
)
def test_a_pool_is_spread_as_it_is_stored(m, monkeypatch):
    one = seen(on_pixels(m, devices=1))
    monkeypatch.setattr(layout, "one_memory", lambda: False)
    lain = watch(monkeypatch)
    assert_same(one, seen(on_pixels(m, devices=2)))
    assert all(rows == {3} for _, rows in lain), lain
    assert np.dtype(np.uint8) in {dtype for dtype, _ in lain}


def test_the_scores_of_one_device(apart):
    task, data, x = eq.tasks.softmax_regression(3, 2), pixels(), np.linspace(-1, 1, 8)
    want = eq.evaluation.evaluate(task, x, data, devices=1)
    assert_same(eq.evaluation.evaluator(task, data)(x), want)
    assert_same(eq.evaluation.evaluate(task, x, data), want)


@pytest.mark.parametrize(("sizes", "spread"), [((2, 2, 2, 2, 2), True), ((1, 1, 1, 1, 30), False)])
def test_a_pool_is_copied_where_a_share_takes_more(apart, sizes, spread):
    data = pixels(sizes)
    padding = client_data.padding(data)
    assert padding == 5 * max(sizes) / sum(sizes)
    assert layout.lay_out(data.client(0), 5, 2, None, padding=padding).spread == spread


def watch(monkeypatch):
    """Of the clients' arrays that rounds are given: their type, and how many rows lie on a device."""
    lain = []
    rounds_of = eq.engines.simulator.rounds_of

    def watched(*how):
        program = rounds_of(*how)

        def advance(numbers, state, inputs, *rest, **how):
            for array in jax.tree.leaves((state.clients, inputs.source)):  # before the program takes them over
                lain.append((array.dtype, {shard.data.shape[0] for shard in array.addressable_shards}))
            return program(numbers, state, inputs, *rest, **how)

        return advance

    monkeypatch.setattr(eq.engines.simulator, "rounds_of", watched)
    return lain


def test_every_device_holds_its_share(apart, monkeypatch):
    lain = watch(monkeypatch)
    eq.simulate(build("scaffold"), start(), unequal(), KEY, rounds=2, devices=2)
    assert lain
    assert all(rows == {(N + 1) // 2} for _, rows in lain), lain


@pytest.mark.thorough(witness="laws/test_laws.py::test_stopped_and_resumed_is_uninterrupted")
def test_stopped_and_resumed_bit_for_bit(apart):
    run = {"record": everything, "devices": 2}
    algorithm = build("scaffold")
    whole = eq.simulate(algorithm, start(), unequal(), KEY, rounds=6, **run)
    part = eq.simulate(algorithm, start(), unequal(), KEY, rounds=2, **run)
    again = eq.simulate(algorithm, start(), unequal(), KEY, rounds=6, resume=part, **run)
    assert_identical(seen(whole), seen(again))
    assert all(len(table) == N for table in jax.tree.leaves(whole.clients))


PROCESS = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
import numpy as np
import equipoise as eq
from tests.engines.test_spread import on_pixels
from tests.problems import KEY, build, start, unequal

assert jax.device_count() == 2 and jax.local_device_count() == 1
out = {}
for name in sys.argv[4:]:
    algorithm = build(name)
    done = eq.simulate(algorithm, start(), unequal(), KEY, rounds=3)
    out[name] = np.asarray(algorithm.model(done.server))
    if name == "scaffold":
        out["states"] = np.asarray(jax.tree.leaves(done.clients)[0])
out["pixels"] = np.asarray(on_pixels(3).server.x)
if jax.process_index() == 0:
    np.savez(sys.argv[3], **out)
"""


@pytest.mark.thorough(witness="::test_the_numbers_of_one_device")
def test_two_processes(tmp_path):
    """Through jax.distributed, with its own collectives for CPUs."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    names = ("scaffold", "scaffpd")
    root = Path(__file__).parents[2]
    env = {**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict", "PYTHONPATH": str(root)}
    file = tmp_path / "found.npz"
    words = [sys.executable, "-c", PROCESS, str(port)]
    both = [
        subprocess.Popen([*words, str(i), str(file), *names], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for i in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=300)[0].decode() for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    found = np.load(file)
    assert_same(found["pixels"], on_pixels(3, devices=1).server.x)
    for name in names:
        alone = eq.simulate(build(name), start(), unequal(), KEY, rounds=3, devices=1)
        assert_same(found[name], build(name).model(alone.server))
        if name == "scaffold":
            assert_same(found["states"], jax.tree.leaves(alone.clients)[0])
