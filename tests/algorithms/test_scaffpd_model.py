"""SCAFF-PD with a model at the server: its description in NumPy, and the rounds and guarantees that it promises."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import equipoise as eq
from equipoise.algorithms import scaffpd_model
from equipoise.certificates import certify
from equipoise.data import synthetic
from equipoise.errors import InputError
from equipoise.protocol import round_keys
from equipoise.steps import client_smoothness
from tests.algorithms.reference_model import model_rounds
from tests.problems import assert_same, few

MU, STEPS = 0.1, 10
D = 30
everyone, uniform = cache(eq.cohorts.everyone), cache(eq.cohorts.uniform)
DUALS = {
    "agnostic": eq.objectives.agnostic(5),
    "chi2": eq.objectives.chi2(5, 0.05),
    "chi2_ball": eq.objectives.chi2_ball(5, 0.5),
    "cvar": eq.objectives.cvar(5, 0.4),
    "kl": eq.objectives.kl(5, 0.05),
    "tv": eq.objectives.tv(5, 0.3),
}


@cache
def easy():
    """The paper's problem with clients a whole unit apart; condition number about 4.

    Features that are always zero are added to its ten: they change nothing, and programs are those of `hard`.
    """
    shards = synthetic.regression(shift=1.0, key=jax.random.key(0))
    return shards._replace(inputs=jnp.asarray(np.pad(shards.inputs, [(0, 0), (0, 0), (0, D - shards.inputs.shape[2])])))


@cache
def hard(dtype=np.float64):
    """Condition number 834."""
    rng = np.random.default_rng(0)
    n, m, d = 5, 100, D
    inputs = rng.normal(size=(n, m, d)) * np.geomspace(1, np.sqrt(9000) / 5, d)
    truth, shift = rng.normal(size=d), 0.3 * rng.normal(size=(n, d))
    labels = np.einsum("nmd,nd->nm", inputs, truth + shift) / np.abs(inputs @ truth).std()
    return eq.data.stack([(a.astype(dtype), b.astype(dtype)) for a, b in zip(inputs, labels, strict=True)])


def quadratics(shards):
    """Hessians, linear terms and constants of ridge regression."""
    a, y = np.asarray(shards.inputs, float), np.asarray(shards.labels, float)
    m = a.shape[1]
    hessians = 2 / m * np.einsum("nmd,nme->nde", a, a) + MU * np.eye(a.shape[2])
    return hessians, 2 / m * np.einsum("nmd,nm->nd", a, y), (y**2).mean(1)


def smoothness(task, shards):
    """Every client's L_i."""
    each = jax.jit(lambda shards: jax.lax.map(lambda shard: client_smoothness(task, jnp.zeros(D), shard), shards))
    return np.asarray(each(shards))


@cache  # the same object for the same settings: its programs are compiled once for all tests
def built(d, dual, sample, steps, repeat=False):
    return scaffpd_model(eq.tasks.ridge(d, MU), dual, sample, steps=steps, repeat=repeat)


def centre_and_weights(server):
    return server.centre.x, server.lam


def solve(shards, dual, x=None, *, rounds, sample=None, steps=STEPS, lost=None, repeat=False):
    d = shards.inputs.shape[2]
    algorithm = built(d, dual, sample or everyone(shards.n), steps, repeat)
    x = jnp.zeros(d, shards.inputs.dtype) if x is None else x
    run = eq.simulate(algorithm, x, shards, 0, rounds=rounds, record=centre_and_weights, lost=lost or NOBODY)
    return eq.tasks.ridge(d, MU), run


def robust(shards, dual, xs):
    hessians, linear, constants = quadratics(shards)
    xs = np.asarray(xs, float)
    f = np.einsum("rd,nde,re->rn", xs, hessians, xs) / 2 - xs @ linear.T + constants
    return np.array([float(dual.value(jnp.asarray(row))) for row in f])


def errors(shards, dual, xs, best):
    """Relative robust errors, from the start on: entry r is after r rounds."""
    values = robust(shards, dual, xs)
    return (values - best) / (values[0] - best)


def rounds_to(error, level):
    return int(np.argmax(error <= level)) if (error <= level).any() else 10**9


def optimum(shards, rho=0.0, cap=1.0):
    return synthetic.saddle_point(shards, mu=MU, rho=rho, cap=cap).x


def in_table(table, round, exchange, ids):
    return table[round, exchange][jnp.asarray(ids)]


def losing(lost):
    """A table of what gets lost: an operand, so that all choices share one program."""
    rounds, exchanges, ids = np.ogrid[:40, :2, :5]
    return Partial(in_table, jnp.asarray(np.broadcast_to(lost(rounds, exchanges, ids), (40, 2, 5))))


NOBODY = losing(lambda *_: False)
SOMETIMES = losing(lambda *_: np.random.default_rng(0).random((40, 2, 5)) < 0.3)  # three replies in ten
BY_TURNS = losing(lambda round, exchange, i: (i == (2 * round + exchange) % 5) & (round > 0))  # after the first round


@pytest.mark.parametrize("lost", [NOBODY, BY_TURNS], ids=["everybody answers", "replies get lost"])
def test_follows_its_description(lost):
    """Every centre and all weights as in NumPy, on a hard problem, until rounding takes over."""
    shards, dual = hard(), DUALS["chi2"]
    task, run = solve(shards, dual, rounds=14, lost=lost)

    def answers(round, exchange):
        return None if lost is NOBODY else ~np.asarray(lost(round, exchange, np.arange(5)))

    problem = (*quadratics(shards), smoothness(task, shards), 0.05, np.zeros(D))
    found = list(model_rounds(*problem, rounds=14, steps=STEPS, memory=5, answers=answers))
    x, lam, off = (np.array(column) for column in zip(*found, strict=True))
    early = 9  # rounding grows from round to round
    assert_same(jax.tree.map(lambda a: a[:early], run.history), (x[:early], lam[:early]), rtol=1e-8, atol=1e-8)
    assert_same(run.history, (x, lam), rtol=1e-6, atol=1e-8)
    if lost is NOBODY:
        assert off.max() < 1e-6  # of quadratics the images are exact


def test_follows_its_description_with_a_few_clients_per_round():
    """Whom it asks, every centre and all weights as in NumPy, the same draws of chance given."""
    shards, dual, m, rounds = hard(), DUALS["chi2"], 2, 14
    task, run = solve(shards, dual, rounds=rounds, sample=uniform(5, m))

    def luck(round):
        (opening, _), _ = round_keys(jax.random.key(0), round, 2)
        return np.asarray(jax.random.gumbel(opening, (5,), float))

    problem = (*quadratics(shards), smoothness(task, shards), 0.05, np.zeros(D))
    found = list(model_rounds(*problem, rounds=rounds, steps=STEPS, memory=5, cohort=m, luck=luck))
    x, lam, _ = (np.array(column) for column in zip(*found, strict=True))
    assert_same(run.history, (x, lam), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    few(("chi2",), DUALS, "algorithms/server_model/test_saddle.py::test_no_weights_and_no_point_are_better"),
)
def test_a_millionth_in_six_rounds_never_rising_and_then_at_rest(name):
    shards, dual = easy(), DUALS[name]
    task, run = solve(shards, dual, rounds=16)
    xs, lam = run.history
    values = robust(shards, dual, xs)
    assert (np.diff(values) <= 1e-13 * values[0]).all()
    found = certify(task, dual, shards, xs[-1], jnp.asarray(lam[-1]), mu=MU)
    assert found.gap < 1e-8 * values[0]  # so the end is the optimum, whoever computed it
    assert rounds_to(errors(shards, dual, xs, values[-1]), 1e-6) <= 6
    _, again = solve(shards, dual, jnp.asarray(xs[-1]), rounds=3)
    np.testing.assert_allclose(again.history[0], np.broadcast_to(xs[-1], (3, D)), atol=1e-7)


@pytest.mark.parametrize(("name", "most"), [("chi2", 25), ("agnostic", 25)])
@pytest.mark.thorough(witness="::test_a_millionth_in_six_rounds_never_rising_and_then_at_rest")
def test_a_condition_of_834(name, most):
    shards, dual = hard(), DUALS[name]
    _, run = solve(shards, dual, rounds=40)
    best = optimum(shards, rho=0.05 if name == "chi2" else 0.0)
    error = errors(shards, dual, run.history[0], robust(shards, dual, best[None])[0])
    assert rounds_to(error, 1e-6) <= most
    assert error[-1] < 1e-9


def test_three_replies_in_ten_lost():
    shards, dual = hard(), DUALS["chi2"]
    best = robust(shards, dual, optimum(shards, rho=0.05)[None])[0]
    _, run = solve(shards, dual, rounds=40, lost=SOMETIMES)
    assert rounds_to(errors(shards, dual, run.history[0], best), 1e-6) <= 35


@pytest.mark.thorough(witness="::test_three_replies_in_ten_lost")
def test_what_is_said_twice_makes_up_for_lost_replies():
    """And changes nothing where none is lost."""
    shards, dual = hard(), DUALS["agnostic"]
    best = robust(shards, dual, optimum(shards)[None])[0]
    reached = {}
    for repeat in (False, True):
        whole = solve(shards, dual, rounds=10, repeat=repeat)[1].history
        lossy = solve(shards, dual, rounds=40, lost=SOMETIMES, repeat=repeat)[1].history
        reached[repeat] = whole, rounds_to(errors(shards, dual, lossy[0], best), 1e-6)
    assert_same(reached[True][0], reached[False][0], rtol=1e-8, atol=1e-8)
    assert reached[True][1] < reached[False][1]


@pytest.mark.thorough(witness="::test_follows_its_description_with_a_few_clients_per_round")
def test_two_of_five_clients_in_a_round():
    shards, dual = hard(), DUALS["chi2"]
    best = robust(shards, dual, optimum(shards, rho=0.05)[None])[0]
    _, run = solve(shards, dual, rounds=120, sample=uniform(5, 2))
    error = errors(shards, dual, run.history[0], best)
    assert rounds_to(error, 1e-3) <= 60
    assert error[-1] < 1e-4
    asked = run.tally.asked
    assert asked.tolist() == [5 + 119 * 2, 120 * 2]  # everybody in the first round


@pytest.mark.thorough(
    witness="algorithms/server_model/test_saddle.py::test_double_precision_inside_a_program_of_single_precision"
)
def test_single_precision_goes_beyond_single_precision():
    """Double precision at the server: the error ends far below what a float32 loss can tell."""
    shards, dual = hard(np.float32), DUALS["chi2"]
    best = robust(shards, dual, optimum(hard(), rho=0.05)[None])[0]
    _, run = solve(shards, dual, rounds=60)
    assert run.history[0].dtype == np.float32
    error = errors(hard(), dual, run.history[0], best)
    assert rounds_to(error, 1e-6) <= 30
    assert np.abs(error[-1]) < 1e-7


@pytest.mark.thorough(witness="::test_follows_its_description")
def test_one_client_and_one_step_are_conjugate_gradients():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(100, 10)) * np.geomspace(1, 2, 10)
    shards = eq.data.stack([(inputs, inputs @ rng.normal(size=10))])
    dual = eq.objectives.agnostic(1)
    _, run = solve(shards, dual, rounds=13, steps=1)
    hessians, linear, _ = quadratics(shards)
    best = robust(shards, dual, np.linalg.solve(hessians[0], linear[0])[None])[0]
    assert errors(shards, dual, run.history[0], best)[12] < 1e-12


def test_rotating_the_features_rotates_the_models():
    shards, dual = easy(), DUALS["chi2"]
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0]
    turned = shards._replace(inputs=shards.inputs @ jnp.asarray(turn))
    plain, other = (solve(s, dual, rounds=4)[1].history[0] for s in (shards, turned))
    np.testing.assert_allclose(other @ turn.T, plain, atol=1e-6)


@pytest.mark.thorough(witness="::test_a_millionth_in_six_rounds_never_rising_and_then_at_rest")
def test_softmax_regression_of_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.argsort(digits.target, kind="stable")[:1500]
    inputs, labels = digits.data[order] / 16, digits.target[order].astype(np.int32)
    parts = np.array_split(np.arange(1500), 10)  # about one class each
    shards = eq.data.stack([(inputs[part], labels[part]) for part in parts])
    task, dual = eq.tasks.softmax_regression(64, 10, l2=1e-2), eq.objectives.chi2(10, 0.05)
    algorithm = scaffpd_model(task, dual, eq.cohorts.everyone(10), steps=STEPS)
    run = eq.simulate(
        algorithm,
        jnp.zeros(task.size),
        shards,
        0,
        rounds=60,
        record=lambda s: (dual.value(jnp.sum(s.centre.f, axis=-1)), s.centre.x, s.lam),
    )
    values, xs, lam = run.history
    assert (np.diff(values) <= 1e-12).all()
    assert certify(task, dual, shards, xs[-1], jnp.asarray(lam[-1]), mu=1e-2).gap < 1e-4 * values[0]
    error = (values - values[-1]) / (values[0] - values[-1])
    assert rounds_to(error, 1e-3) <= 30


def test_its_cuts_are_what_the_clients_said():
    """At the last points, by those who were heard there; what they prove is below the optimum."""
    from equipoise.algorithms.server_model import heard

    shards, dual, rounds = easy(), DUALS["chi2"], 22
    algorithm = built(D, dual, everyone(5), STEPS)
    lost = losing(lambda round, exchange, i: (i == 2) & (round % 3 == 0) & (exchange == 0))
    server = eq.simulate(algorithm, jnp.zeros(D), shards, 0, rounds=rounds, lost=lost).server
    cuts, k = algorithm.cuts(server), heard.MOST_TANGENTS // 5
    hessians, linear, constant = quadratics(shards)
    x = cuts.points
    assert len(x) == k < rounds == int(server.heard.points)
    f = np.einsum("kd,nde,ke->kn", x, hessians, x) / 2 - x @ linear.T + constant
    C = np.einsum("nde,ke->knd", hessians, x) - linear
    np.testing.assert_allclose(np.where(cuts.present, cuts.losses - f, 0), 0, atol=1e-10)
    np.testing.assert_allclose(np.where(cuts.present[:, :, None], cuts.gradients - C, 0), 0, atol=1e-10)
    absent = np.zeros((rounds, 5), bool)
    absent[::3, 2] = True
    order = np.arange(rounds)[-k:][np.argsort(np.arange(rounds)[-k:] % k)]  # the oldest gave way
    np.testing.assert_array_equal(cuts.present, ~absent[order])

    best = robust(shards, dual, optimum(shards, rho=0.05)[None])[0]
    bound = eq.certificates.bound_of_cuts(dual, cuts, MU, np.asarray(server.centre.x))
    assert best - 1e-6 * best < bound <= best * (1 + 1e-12)

    assert heard.room(5, D) == k == 19
    assert heard.room(1, D) == heard.MOST_POINTS
    assert heard.room(13, D) == 0  # fewer than eight points of so many clients
    assert heard.room(5, 10**5) == 0
    assert heard.noted(heard.nothing(13, D, float), x[0], absent[0], f[0], C[0]) is None
    assert heard.cuts(None, cuts.weights[0]) is None
    changed = eq.algorithms.clip_losses(algorithm, factor=3.0)  # of other words nothing is proven
    assert changed.cuts(server) is None


def test_what_it_cannot_do_is_said():
    task, everyone = eq.tasks.ridge(3, MU), eq.cohorts.everyone(4)
    with pytest.raises(InputError, match="'qffl' are not shares, which SCAFF-PD with a model needs; give an objective"):
        scaffpd_model(task, eq.objectives.qffl(4, 1.0), everyone, steps=2)
    with pytest.raises(InputError, match="drawn from 4 clients but the dual is for 5"):
        scaffpd_model(task, eq.objectives.chi2(5, 1.0), everyone, steps=2)
    with pytest.raises(InputError, match="may draw a client twice"):
        scaffpd_model(task, eq.objectives.chi2(4, 1.0), eq.cohorts.by_weight(2), steps=2)
    with pytest.raises(InputError, match="memory is 1; give the number of directions, at least 2"):
        scaffpd_model(task, eq.objectives.chi2(4, 1.0), everyone, steps=2, memory=1)
