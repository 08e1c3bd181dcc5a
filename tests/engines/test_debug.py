import jax.numpy as jnp
import pytest

import equipoise as eq
from equipoise.engines.debug import ExchangeError
from tests.problems import build, start, unequal


def failing(algorithm, part):
    exchange = algorithm.round[-1]

    def fail(*args):
        raise ZeroDivisionError("the sky is falling")

    return algorithm._replace(round=(*algorithm.round[:-1], exchange._replace(**{part: fail})))


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ("open", "round 0, exchange 'improve', open: the sky"),
        ("send", "round 0, exchange 'improve', client 0, send: the sky"),
        ("work", "round 0, exchange 'improve', client 0, work: the sky"),
        ("close", "round 0, exchange 'improve', close: the sky"),
    ],
)
def test_errors_name_round_exchange_and_client(part, where):
    with pytest.raises(ExchangeError, match=where) as caught:
        eq.debug(failing(build("scaffpd"), part), start(), unequal(), 0, rounds=1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_drops_what_is_not_finite_when_asked():
    poisoned = unequal()._replace(inputs=unequal().inputs.at[1].multiply(1e300))
    with pytest.warns(eq.errors.LostReplies):
        result = eq.debug(build("fedavg"), start(), poisoned, 0, rounds=2, strict=False)
    assert result.tally.broken.tolist() == [0, 2, 0, 0, 0]
    assert jnp.all(jnp.isfinite(result.server.x))
