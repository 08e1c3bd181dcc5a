"""The algorithm of a run that names none, and what the run says of it."""

import pytest

from equipoise.errors import InputError
from equipoise.experiment import config
from equipoise.experiment.choice import best_algorithm, left_open
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem, precision

SECURE = {"federation": {"sites": 3, "secure": True}}


@pytest.mark.parametrize(
    ("settings", "name", "why"),
    [
        ({}, "scaffpd_model", "the model is linear, it has nothing to tune"),
        ({"algorithm": {"cohort": 3}}, "scaffpd_model", "a few clients in a round are enough"),
        ({"objective": {"name": "kl"}}, "scaffpd_model", "nothing to tune"),
        ({"objective": {"name": "average"}}, "scaffpd_model", "nothing to tune"),
        ({"algorithm": {"local_lr": 0.1}}, "scaffpd", "local_lr is given"),
        ({"algorithm": {"rule": {"sigma": 1.0}}}, "scaffpd", "rule is given"),
        ({"model": {"name": "mlp"}}, "scaffpd_minibatch", "a mlp is not convex"),
        ({"objective": {"name": "qffl"}}, "scaffpd", "the weights of 'qffl' need not be shares"),
        ({"federation": {"sites": 3, "clip": 2.0}}, "scaffpd", "are clipped do not fit"),
        ({"federation": {"sites": 3, "clip_gradients": 2.0}}, "scaffpd", "are clipped do not fit"),
        (SECURE | {"objective": {"name": "kl"}}, "scaffpd_sums", "sends the server nothing else"),
        (SECURE | {"objective": {"name": "kl"}, "algorithm": {"local_lr": 0.1}}, "scaffpd_sums", "masks sums"),
        (SECURE | {"objective": {"name": "average"}}, "scaffold", "sends the server nothing else"),
        (SECURE, "scaffpd_secure", "each site's loss beside them; set objective.name = 'kl'"),
        (SECURE | {"algorithm": {"memory": 3}}, "scaffpd_model", "nothing to tune"),
        ({"federation": {"sites": 3, "secure": False}}, "scaffpd_model", "nothing to tune"),
    ],
)
def test_the_best_algorithm_for_the_settings(settings, name, why):
    chosen = best_algorithm(settings)
    assert chosen.name == name
    assert why in chosen.why


def test_a_run_that_names_none_takes_it_and_says_why():
    settings = {"data": {"name": "synthetic"}, "partition": {"clients": 3}}
    told = config.parse(settings)
    assert told.algorithm.name == "scaffpd_model"
    assert told.algorithm.steps == 10
    with precision(told):
        algorithm, notes, *_ = build_method(told, build_problem(told))
    assert algorithm.name == "scaffpd_model"
    assert notes[0].startswith("scaffpd_model is the method of choice: the model is linear")
    named = config.parse(settings | {"algorithm": {"name": "fedavg", "local_lr": 0.1}})
    with precision(named):
        assert build_method(named, build_problem(named))[1] == ()


SILOS = {"data": {"silos": "hospitals"}}


@pytest.mark.parametrize(
    ("settings", "l2", "price"),
    [
        (SILOS, "auto", 0.01),
        ({"partition": {"kind": "natural"}, "data": {"name": "exam"}}, "auto", 0.01),
        (SILOS | {"model": {"l2": 0.1}, "objective": {"rho": 1.0}}, 0.1, None),
        (SILOS | {"objective": {"price": 0.05}}, "auto", 0.05),
        (SILOS | {"objective": {"name": "cvar"}}, "auto", None),
        (SILOS | {"algorithm": {"name": "fedavg"}}, "auto", None),
        (SILOS | {"model": {"name": "mlp"}}, None, None),
        (SILOS | {"privacy": {"epsilon": 1.0}}, None, None),
        (SILOS | {"federation": {"sites": 3}}, "auto", 0.01),
        ({"federation": {"sites": 3}}, "auto", 0.01),
        (SECURE, None, None),
        ({}, None, None),
    ],
)
def test_what_run_leaves_open_of_owners_that_exist(settings, l2, price):
    opened = left_open(settings)
    assert opened.get("model", {}).get("l2") == l2
    assert opened.get("objective", {}).get("price") == price
    assert settings.get("objective", {}).get("rho") == opened.get("objective", {}).get("rho")


def test_masked_runs_say_why_they_take_it_too():
    told = config.parse(SECURE | {"objective": {"name": "kl"}, "data": {"name": "digits"}})
    assert told.algorithm.name == "scaffpd_sums"
    assert config.parse(SECURE).algorithm.name == "scaffpd_secure"


NOISY = {"name": "fedavg", "local_lr": 0.1}


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({}, {"until_gap": 1e-3, "keep_best": False}),
        ({"run": {"rounds": "auto"}}, {"until_gap": 1e-3, "keep_best": False}),
        ({"model": {"l2": 0.0}}, {"until_gap": None, "keep_best": True, "keep_by": "loss", "patience": 10}),
        ({"algorithm": {"name": "fedavg"}}, {"until_gap": None, "keep_best": True, "keep_by": "loss", "patience": 10}),
        ({"algorithm": {"name": "fedavg"}, "federation": {"sites": 3}}, {"until_gap": None, "keep_best": False}),
        ({"federation": {"sites": 3}}, {"until_gap": 1e-3}),
        ({"run": {"until_gap": 0.1}}, {"until_gap": 0.1}),
        ({"run": {"rounds": 100}}, {"until_gap": None, "keep_best": False}),
        ({"privacy": {"epsilon": 1.0}, "algorithm": NOISY}, {"until_gap": None, "keep_best": False}),
        ({"data": {"name": "quadratics"}, "model": {"l2": 0.0}}, {"until_gap": None, "keep_best": False}),
    ],
)
def test_runs_that_end_by_themselves(settings, ends):
    found = config.parse(settings).run
    assert found.rounds == 100
    assert {key: getattr(found, key) for key in ends} == ends


def test_noise_is_for_a_number_of_rounds():
    with pytest.raises(InputError, match="made for a number of rounds"):
        config.parse({"privacy": {"epsilon": 1.0}, "run": {"rounds": "auto"}})
