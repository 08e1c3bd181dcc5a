"""scikit-learn's own checks, and what its users do with estimators."""

from unittest import SkipTest

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import equipoise as eq
from equipoise.errors import InputError
from tests.problems import few
from tests.searches import tiny

OWNERS = np.repeat(["north", "south", "west"], [30, 40, 50])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3)) + (OWNERS == "west")[:, None]
Y = np.where(X @ [1.0, -2.0, 0.5] > 0, "ill", "well")


PLAIN = {"model": {"own": "none", "metric": "none"}, "objective": {"of": "losses"}}


def classifier():
    return eq.EquipoiseClassifier(rounds=6, l2=0.01, settings=PLAIN)


@pytest.mark.parametrize("engine", few(["stand-in"], ["stand-in", "real"], "test_estimator.py::test_it_predicts"))
def test_owners_in_a_pipeline(engine, monkeypatch):
    """It is the model that `eq.fit` trains on the same tables, with labels as they were given."""
    if engine == "stand-in":
        tiny.use(monkeypatch)
    model = make_pipeline(StandardScaler(), classifier()).fit(X, Y, equipoiseclassifier__owners=OWNERS)
    if engine == "real":
        assert model.score(X, Y) > 0.9
    assert list(model.classes_) == ["ill", "well"]
    scaled = StandardScaler().fit_transform(X)
    tables = {name: (scaled[name == OWNERS], Y[name == OWNERS]) for name in np.unique(OWNERS)}
    settings = {**PLAIN, "run": {"rounds": 6}, "model": {**PLAIN["model"], "l2": 0.01}, "data": {"test": 0.0}}
    direct = eq.fit(tables, settings=settings)
    np.testing.assert_allclose(model.predict_proba(X), direct.predict_proba(scaled), atol=1e-6)
    own = model[-1].predict_proba(scaled, OWNERS)  # each row with what its owner should use
    for name in tables:
        np.testing.assert_allclose(own[name == OWNERS], direct.predict_proba(tables[name][0], name), atol=1e-6)
    assert model[-1].fitted_.owners == ("north", "south", "west")
    assert clone(model[-1]).get_params() == {"l2": 0.01, "rounds": 6, "settings": PLAIN}


@pytest.mark.thorough(witness="::test_owners_in_a_pipeline")
def test_a_regression_of_a_table_with_texts():
    import polars as pl

    ward = RNG.choice(["A", "B"], 120)
    table = pl.DataFrame({"x": X[:, 0], "ward": ward})
    y = 100 + 3 * X[:, 0] + 2 * (ward == "A")
    model = eq.EquipoiseRegressor(l2=1e-4, rounds=20).fit(table, y, owners=OWNERS)
    assert model.score(table, y) > 0.99
    np.testing.assert_allclose(model.predict(table), y, atol=0.2)


def test_what_is_wrong_is_a_sentence():
    with pytest.raises(InputError, match=r"there are 120 rows and owners of shape \(3,\)"):
        classifier().fit(X, Y, owners=["north", "south", "west"])
    with pytest.raises(InputError, match="one class only"):
        classifier().fit(X, np.full(120, "ill"))


CHEAP = (
    "check_estimator_cloneable",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_complex_data",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_supervised_y_no_nan",
)
MODELS = [
    pytest.param(eq.EquipoiseClassifier(rounds=3, settings=PLAIN), id="classifier"),
    pytest.param(eq.EquipoiseRegressor(rounds=3, settings=PLAIN), id="regressor"),
]
WITNESS = "::test_checks_of_scikit_learn_that_train_nothing[classifier]"
LATER = pytest.param(*MODELS[1].values, id="regressor", marks=pytest.mark.thorough(witness=WITNESS))


def checks(model, cheap):
    for _, check in estimator_checks.estimator_checks_generator(model, legacy=True):
        name = getattr(check, "func", check).__name__
        if (name in CHEAP) == cheap:
            yield name, check


@pytest.mark.parametrize("model", [MODELS[0], LATER])
def test_checks_of_scikit_learn_that_train_nothing(model):
    done = []
    for name, check in checks(model, True):
        check(clone(model))
        done.append(name)
    assert len(done) >= 10


@pytest.mark.thorough(witness="::test_checks_of_scikit_learn_that_train_nothing")
@pytest.mark.parametrize("model", MODELS)
def test_checks_of_scikit_learn_that_train(model):
    failed = {}
    for name, check in checks(model, False):
        try:
            check(clone(model))
        except SkipTest:  # pandas is not installed
            continue
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert not failed, failed
