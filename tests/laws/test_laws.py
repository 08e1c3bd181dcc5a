"""What holds for every algorithm in ALGORITHMS.

All laws about one algorithm run in one process (`xdist_group`) and share its compiled programs (`tests.problems`).
"""

import signal
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.engines.debug import ExchangeError
from equipoise.errors import LostReplies, Stopped
from equipoise.protocol import wire
from tests import programs
from tests.problems import (
    BOUND,
    DIM,
    EVERY,
    KEY,
    N,
    assert_identical,
    assert_same,
    build,
    each_algorithm,
    each_kind,
    play,
    play_sampled,
    start,
    unequal,
)


def seen(run):
    return [run.server, run.history, run.tally, run.clients]


@partial(each_kind, kinds=("scaffold", "drfa", "scaffpd"))
def test_engines_and_slices_agree(name):
    """Compiled at once, in slices, and in plain Python: the same rounds, the same numbers."""
    whole = seen(play_sampled(name))
    assert_same(whole, seen(play_sampled(name, eq.debug, jit=True)))
    assert_same(whole, seen(play_sampled(name, clients_per_batch=2)))


@partial(each_kind, kinds=("scaffpd",))
def test_devices_agree(name):
    """As above, spread over two devices, each with its share of the cohort in slices (tests/engines/test_spread.py).

    SCAFF-PD with a model hears the largest weights: where two are equal up to rounding, the order of sums decides, so
    it hears everyone here.
    """
    m = None if name == "scaffpd_model" else 3
    assert_same(seen(play_sampled(name, m=m)), seen(play_sampled(name, m=m, clients_per_batch=1, devices=2)))


def scaled(name, scale):
    """The algorithm's own numbers, all but the number of steps times `scale`, which is traced."""
    changes = {key: value * scale for key, value in ALGORITHMS[name].example.items() if isinstance(value, float)}
    if "rule" in ALGORITHMS[name].example:
        tau, sigma, theta = ALGORITHMS[name].example["rule"].init(jnp.float64).now
        changes["rule"] = eq.steps.constant(tau=tau * scale, sigma=sigma * scale, theta=theta * scale)
    return changes


@partial(each_kind, kinds=("scaffpd",))
def test_settings_may_be_traced(name):
    """The kernel under vmap over step sizes, inside jit: a run of each setting, as if it were alone."""

    @jax.jit
    @jax.vmap
    def servers(scale):
        dual = eq.objectives.chi2(N, 0.1 * scale)
        algorithm = ALGORITHMS[name].build_example(eq.tasks.ridge(DIM, 0.1), dual, **scaled(name, scale))
        federation, state = eq.kernel.prepare(algorithm, unequal()), eq.kernel.init(algorithm, start())
        return jax.lax.fori_loop(0, 3, lambda _, s: eq.kernel.step(algorithm, s, federation, KEY), state).server

    found = servers(jnp.array([0.7, 1.0]))
    assert_same(jax.tree.map(lambda a: a[1], found), play(name).server)
    first, second = (jax.tree.map(lambda a, i=i: a[i], found) for i in (0, 1))
    assert not np.allclose(build(name).model(first), build(name).model(second))


@each_kind
def test_an_algorithm_compiles_once(name):
    """Whatever the number of rounds, the numbers in the data, who is lost, and whether a run is resumed."""
    chunks = []
    play(name, rounds=2)
    other = unequal(seed=1)
    compiled = programs.count()
    part = play(name, other, rounds=30, gone=(1,), progress=lambda done, *_: chunks.append(done))
    play(name, other, rounds=40, gone=(1,), resume=part)
    assert len(chunks) > 1
    assert programs.count() == compiled


@each_algorithm
def test_absent_clients_change_neither_state_nor_result(name):
    algorithm, data = build(name), unequal()
    other = data._replace(inputs=data.inputs.at[2].multiply(3.0), labels=data.labels.at[2].add(1.0))
    runs = [play(name, d, rounds=4, gone=(2,)) for d in (data, other)]
    assert_identical(runs[0].server, runs[1].server)
    mine = jax.tree.map(lambda table: table[2], runs[0].clients)
    for now, then in zip(jax.tree.leaves(mine), jax.tree.leaves(algorithm.init_client(start())), strict=True):
        np.testing.assert_array_equal(now, then)
    moved = play(name, other, rounds=4)
    assert not np.allclose(algorithm.model(moved.server), algorithm.model(runs[0].server))  # the change does matter


@each_algorithm
def test_nobody_there_changes_nothing_but_stays_finite(name):
    result = play(name, gone=tuple(range(N)))
    np.testing.assert_array_equal(build(name).model(result.server), start())
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(result.server))
    assert result.tally.answered.sum() == 0 < result.tally.asked.sum()


@each_kind
def test_a_reply_that_is_not_finite_is_a_lost_reply(name):
    data = unequal()
    poisoned = data._replace(inputs=data.inputs.at[1].multiply(1e300))  # finite, but its squares are not
    with pytest.warns(LostReplies, match=r"1 clients \(1\)"):
        result = play(name, poisoned)
    assert_same(result.server, play(name, gone=(1,)).server)
    assert result.tally.broken[1] > 0 == result.tally.broken[[0, 2, 3, 4]].sum()
    with pytest.raises(ExchangeError, match=r"round 0, exchange '\w+', client 1: the reply is not"):
        eq.debug(build(name), start(), poisoned, KEY, rounds=3, jit=True)


@each_algorithm
def test_relabelling_clients_relabels_lambda_and_nothing_else(name):
    order = np.array([3, 0, 4, 1, 2])
    plain = play(name, rounds=6).server
    moved = play(name, jax.tree.map(lambda a: a[order], unequal()), rounds=6).server
    for now, then in zip(jax.tree.leaves(moved), jax.tree.leaves(plain), strict=True):
        per_client = then.shape[:1] == (N,)  # DIM is not N
        assert_same(now, then[order] if per_client else then)


@partial(each_kind, kinds=("scaffold", "scaffpd"))
def test_one_client_is_centralised_descent(name):
    data = unequal(1)
    a, y = np.asarray(data.inputs[0]), np.asarray(data.labels[0])

    def gradient(u):
        return 2 / len(y) * a.T @ (a @ u - y) + 0.1 * u

    record = ALGORITHMS[name]
    if record.descent is None:  # its steps are its own; where they lead is not
        algorithm = build(name, n=1)
        x = np.asarray(algorithm.model(eq.simulate(algorithm, start(), data, KEY, rounds=300).server))
        assert np.abs(gradient(x)).max() < 1e-9
        return
    algorithm = record.build_example(eq.tasks.ridge(DIM, 0.1), eq.objectives.chi2(1, 0.1), **record.descent)
    steps, lr = record.example.get("steps", 1), record.example.get("local_lr", record.example.get("lr"))
    u = np.asarray(start())
    for _ in range(4 * steps):
        f = np.mean((a @ u - y) ** 2) + 0.05 * u @ u
        slope = 1 / (BOUND - f) if name == "propfair" else 1  # PropFair descends on -log(BOUND - f)
        u = u - lr * slope * gradient(u)
    result = eq.simulate(algorithm, start(), data, KEY, rounds=4)
    assert_same(algorithm.model(result.server), u)


@each_kind
def test_stopped_and_resumed_is_uninterrupted(name):
    def interrupt(done, rounds, last):
        if done >= 2:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C

    whole = play_sampled(name, rounds=40)
    with pytest.raises(Stopped) as stop:
        play_sampled(name, rounds=40, progress=interrupt)
    part = stop.value.result
    assert 2 <= part.rounds < 40
    assert {len(a) for a in jax.tree.leaves(part.history)} == {part.rounds}
    again = play_sampled(name, rounds=40, resume=part)
    assert again.rounds == 40
    assert_identical((*whole[:3], whole.tally), (*again[:3], again.tally))


@partial(each_kind, kinds=("scaffpd",))
def test_single_precision_stays_single(name):
    m = None if ALGORITHMS[name].cohorts == "by_weight" or name == "scaffpd_partial" else 3
    # by_weight draws others in float32, so these ask everybody.
    result, double = (play_sampled(name, dtype=dtype, m=m) for dtype in (np.float32, np.float64))
    floats = [a for a in jax.tree.leaves((result.server, result.clients)) if jnp.issubdtype(a.dtype, jnp.floating)]
    assert {a.dtype for a in floats} == {np.dtype(np.float32)}
    assert_same(build(name).model(result.server), build(name).model(double.server), rtol=1e-4, atol=1e-5)


AT_THE_CLIENTS = {"scaffpd_sums"}  # where the server knows no weights
OF_A_DUAL = {name for name in EVERY if ALGORITHMS[name].takes_dual} - AT_THE_CLIENTS
OF_THEIR_OWN = {"term", "agnostic_fedavg"}  # weights of another objective than the run's


@each_algorithm
def test_weights_are_of_the_dual_that_was_given(name):
    algorithm = build(name)
    assert (algorithm.dual is not None) == (name in OF_A_DUAL)
    server = play(name).server
    lam = algorithm.weights(server)
    assert (lam is not None) == (name in OF_A_DUAL | OF_THEIR_OWN)
    if lam is not None:
        assert lam.shape == (N,)
        assert float(jnp.sum(lam)) == pytest.approx(1)
        assert np.ptp(lam) > 1e-3
    if name in OF_A_DUAL:
        assert_same(algorithm.dual.prox(lam, 1e-12), lam, atol=1e-9)


D = DIM
# Per exchange: what the server sends to a client, what it gets back (ALGORITHMS.md's message counts); of an algorithm
# that is not here its own test says it.
FLOATS = {
    "fedavg": [(D, D + 1)],
    "sgd": [(D, D + 1)],
    "fedprox": [(D, D + 1)],
    "fedavgm": [(D, D + 1)],
    "fedadam": [(D, D + 1)],
    "fedyogi": [(D, D + 1)],
    "scaffold": [(2 * D, 2 * D + 1)],
    "qfedsgd": [(D, D + 1)],
    "qfedavg": [(D, D + 1)],
    "term": [(D, D + 2)],
    "propfair": [(D, D + 1)],
    "delta_fl": [(D, 2), (D + 1, D + 1)],
    "afl": [(D, D + 1)],
    "agnostic_fedavg": [(D + N + 0.5, D + 2 * N + 1)],  # N domains; a client's number is an integer
    "drfa": [(D + 1.5, 2 * D + 1), (D, 1)],  # t' is an integer of half the size
    "drfa_alternative": [(D, 1), (D + 1, D + 1)],
    "scaffpd": [(D, D + 1), (D + 1, D + 1)],
    "scaffpd_secure": [(D, 1), (1, D + 1), (D + 1, D + 1)],
    "scaffpd_ls": [(D, D + 1), (D + 1 + 1 / 8, D + 1)],  # whether the last trial was kept is one byte
    "scaffpd_model": [(D + 1, D + 2), (D + 1.5, D + 1)],  # points are named by integers of half the size
    "scaffpd_partial": [(D, D + 1), (2 * D + 1, D + 1)],
    "scaffpd_minibatch": [(D, 1), (D, D)],
    "scaffpd_sums": [(D + 4, D + 5), (D, D + 1)],
}


def crossing(name):
    return wire(build(name), start(), jax.eval_shape(build(name).prepare, unequal().client(0)))


@pytest.mark.parametrize("name", FLOATS)
def test_bytes_are_those_of_the_papers(name):
    assert [(w.down / 8, w.up / 8) for w in crossing(name)] == FLOATS[name]


@partial(each_kind, kinds=("fedavg", "drfa", "scaffpd"))
def test_bytes_are_those_of_the_messages(name):
    algorithm, data, exchanges, asked = build(name), unequal(), crossing(name), []
    eq.debug(algorithm._replace(round=tuple(spied(e, asked) for e in algorithm.round)), start(), data, KEY, rounds=1)
    per_client = {w.exchange: (w.down, w.up) for w in exchanges}
    if name != "delta_fl":  # there only those in the tail train
        assert len(asked) == N * len(exchanges)
    assert all(per_client[exchange] == (down, up) for exchange, down, up in asked)


def spied(exchange, asked):
    def work(message, mine, data, key):
        out = exchange.work(message, mine, data, key)
        if not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(message)):
            asked.append(
                (exchange.name, *(sum(np.asarray(a).nbytes for a in jax.tree.leaves(t)) for t in (message, out[1])))
            )
        return out

    return exchange._replace(work=work)
