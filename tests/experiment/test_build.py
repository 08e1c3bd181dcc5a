import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.experiment import build, config

QUADRATICS = {
    "data": {"name": "quadratics", "options": {"gradient": 10.0}},
    "model": {"l2": 0.0},
    "objective": {"name": "average"},
}


def test_quadratics_start_away_from_their_known_solution():
    told = config.parse(QUADRATICS)
    this = build.problem(told)
    assert this.n == 2
    np.testing.assert_array_equal(this.x, [1.0])
    x = build.saddle(told, this)
    slopes = [this.task.grad(x, this.train.client(i)) for i in range(2)]
    np.testing.assert_allclose(slopes, [[10.0], [-10.0]])  # of the mean, none
    assert build.saddle(config.parse(QUADRATICS | {"objective": {"name": "chi2"}}), this) is None


def test_quadratics_refuse_what_they_have_no_place_for():
    with pytest.raises(InputError, match=r"model.l2 is 0.01.*set model.l2 = 0"):
        build.problem(config.parse(QUADRATICS | {"model": {}}))
    with pytest.raises(InputError, match="known: gradient, hessian, beta"):
        build.problem(config.parse(QUADRATICS | {"data": {"name": "quadratics", "options": {"shift": 1.0}}}))


@pytest.mark.parametrize(("share", "fewest", "most"), [(0.0, 1, 3), (0.5, 8, 10), (1.0, 8, 10)])
def test_similarity_is_a_share(share, fewest, most):
    told = {"partition": {"kind": "similarity", "clients": 10, "similarity": share}}
    train = build.problem(config.parse(told)).train
    sizes = np.asarray(train.sizes)
    classes = [len(np.unique(train.client(i).labels[: sizes[i]])) for i in range(10)]
    assert min(classes) >= fewest
    assert max(classes) <= most
