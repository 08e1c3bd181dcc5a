import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.data.silos import Options
from equipoise.errors import InputError
from equipoise.experiment import config
from equipoise.experiment.methods import known_saddle
from equipoise.experiment.problems import build_problem, precision
from tests.experiment.test_run import prices

QUADRATICS = {
    "data": {"name": "quadratics", "options": {"gradient": 10.0}},
    "model": {"l2": 0.0},
    "objective": {"name": "average"},
}


def test_quadratics_start_away_from_their_known_solution():
    told = config.parse(QUADRATICS)
    this = build_problem(told)
    assert this.n == 2
    np.testing.assert_array_equal(this.x, [1.0])
    x = known_saddle(told, this)
    slopes = [this.task.grad(x, this.train.client(i)) for i in range(2)]
    np.testing.assert_allclose(slopes, [[10.0], [-10.0]])  # of the mean, none
    assert known_saddle(config.parse(QUADRATICS | {"objective": {"name": "chi2"}}), this) is None


def test_quadratics_refuse_what_they_have_no_place_for():
    with pytest.raises(InputError, match=r"model.l2 is 0.01.*set model.l2 = 0"):
        build_problem(config.parse(QUADRATICS | {"model": {}}))
    with pytest.raises(InputError, match="known: gradient, hessian, beta"):
        build_problem(config.parse(QUADRATICS | {"data": {"name": "quadratics", "options": {"shift": 1.0}}}))


@pytest.mark.parametrize(("share", "fewest", "most"), [(0.0, 1, 3), (0.5, 8, 10), (1.0, 8, 10)])
def test_similarity_is_a_share(share, fewest, most):
    told = {"partition": {"kind": "similarity", "clients": 10, "similarity": share}}
    train = build_problem(config.parse(told)).train
    sizes = np.asarray(train.sizes)
    classes = [len(np.unique(train.client(i).labels[: sizes[i]])) for i in range(10)]
    assert min(classes) >= fewest
    assert max(classes) <= most


def test_every_option_of_silo_files_has_a_key(tmp_path):
    """Among them min_count, which keeps rare values at home."""
    rows = ["age,town,label", *(f"{i},{'oslo' if i else 'rome'},{i * 1.5}" for i in range(6)), "-,oslo,2"]
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    keys = {"missing": ["-"], "min_count": 2, "indicators": True, "scale_label": False, "max_categories": 5}
    given = config.parse({"data": {"silos": str(tmp_path), "test": 0.0, "task": "regression", **keys}})
    assert set(Options._fields) <= set(config.DataSettings.model_fields)
    assert given.data.silo_options == Options(task="regression", **keys | {"missing": ("-",)})
    encoding = build_problem(given).encoding
    assert encoding.inputs == ("age", "age is missing", "town=oslo")
    assert (encoding.target.mean, encoding.target.scale) == (3.5, 1)
    assert config.parse(tomllib.loads(given.toml())) == given


def test_a_regression_in_single_precision_after_one_in_double_is_in_single(tmp_path):
    """The same shape makes the same task, and its model's parameters have the type that they were made with."""
    prices(tmp_path / "shops")
    told = {"data": {"silos": str(tmp_path / "shops"), "label": "price"}, "personal": {"kind": "none"}}
    told |= {"model": {"own": "none", "metric": "none", "l2": 0.1}, "objective": {"of": "losses"}}
    for name in ("float64", "float32"):
        asked = config.parse({**told, "run": {"rounds": 1, "precision": name}})
        with precision(asked):
            problem = build_problem(asked)
            shard = jax.tree.map(jnp.asarray, problem.train).client(0)
            shard = problem.plain_task.prepare(shard)
            assert problem.plain_task.loss(problem.x, shard).dtype == name
