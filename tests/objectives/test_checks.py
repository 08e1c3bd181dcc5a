"""What cannot be meant is refused in one sentence: what was given, what is allowed."""

import jax.numpy as jnp
import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.objectives import agnostic, chi2, chi2_ball, cvar, kl, propfair, qffl, tv

REFUSED = [
    (lambda: agnostic(0), "n is 0"),
    (lambda: agnostic(2.5), "n is 2.5"),
    (lambda: agnostic(True), "n is True"),
    (lambda: chi2(5, 0), "rho is 0"),
    (lambda: chi2(5, -1.0), "rho is -1"),
    (lambda: chi2(5, float("nan")), "rho is nan"),
    (lambda: chi2(5, float("inf")), "rho is inf"),
    (lambda: chi2(5, "much"), "rho is 'much'"),
    (lambda: chi2_ball(5, 0.0), "radius is 0"),
    (lambda: cvar(5, 0.0), "alpha is 0"),
    (lambda: cvar(5, 1.01), "alpha is 1.01"),
    (lambda: kl(5, 0.0), "rho is 0"),
    (lambda: tv(5, -0.1), "rho is -0.1"),
    (lambda: qffl(5, 0), "q is 0"),
    (lambda: propfair(5, 0.0), "bound is 0"),
    (lambda: propfair(5, 1.0, margin=2.0), "margin is 2"),
    (lambda: propfair(5, 1.0, margin=0.0), "margin is 0"),
    (lambda: kl(2, 1.0, p=[0.5, 0.25, 0.25]), "p has shape"),
    (lambda: kl(2, 1.0, p=[1.0, 0.0]), "p has a weight of 0"),
    (lambda: kl(2, 1.0, p=[np.nan, 1.0]), "p has a weight of nan"),
    (lambda: tv(2, 1.0, p=[1.1, -0.1]), "p has a weight of -0.1"),
    (lambda: qffl(2, 1.0, p=[1.0, 2.0]), "p sums to 3"),
    (lambda: chi2(5, 1.0).prox(jnp.ones(4), 0.1), "chi2 over 5 clients was given a point of shape"),
    (lambda: chi2(5, 1.0).best_response(jnp.ones((5, 1))), "chi2 over 5 clients was given losses of shape"),
    (lambda: chi2(5, 1.0).penalty(jnp.ones(())), "chi2 over 5 clients was given weights of shape"),
    (lambda: cvar(3, 0.5).value(jnp.arange(3)), "cvar was given losses of type int"),
]


@pytest.mark.parametrize(("build", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_a_sentence_says_what_is_wrong(build, says):
    with pytest.raises(InputError) as error:
        build()
    assert says in str(error.value)
    assert "give" in str(error.value) or "divide" in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_work_by_position_and_by_name():
    losses = jnp.asarray([0.3, 1.2, 0.7])
    pairs = [
        (chi2(3, 0.1), chi2(n=3, rho=0.1)),
        (chi2_ball(3, 0.1), chi2_ball(n=3, radius=0.1)),
        (cvar(3, 0.1), cvar(n=3, alpha=0.1)),
        (kl(3, 0.1), kl(n=3, rho=0.1, p=[1 / 3] * 3)),
        (tv(3, 0.1), tv(n=3, rho=0.1, p=[1 / 3] * 3)),
        (qffl(3, 2), qffl(n=3, q=2.0, p=[1 / 3] * 3)),
        (propfair(3, 2), propfair(n=3, bound=2.0, p=[1 / 3] * 3, margin=0.02)),
    ]
    for one, other in pairs:
        assert one.value(losses) == other.value(losses)


def test_numpy_arrays_and_numpy_numbers_are_welcome():
    dual = kl(np.int64(3), np.float32(0.5), p=jnp.asarray([0.2, 0.3, 0.5], jnp.float32))
    assert dual.best_response(np.array([1.0, 2.0, 3.0])).dtype == jnp.float64
    assert dual.prox(np.ones(3, np.float32), np.float64(0.1)).dtype == jnp.float32
    assert isinstance(dual.modulus, float)


def test_rounded_reference_weights_are_made_to_sum_to_one():
    dual = tv(3, 1e6, p=[0.33333, 0.33333, 0.33333])
    assert float(jnp.sum(dual.prox(jnp.zeros(3), 1.0))) == pytest.approx(1, abs=1e-15)
