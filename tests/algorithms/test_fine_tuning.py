import jax
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import Split, fine_tuning
from equipoise.errors import InputError
from tests.algorithms import reference
from tests.algorithms.reference_baselines import train
from tests.problems import DIM, N, assert_same, rows, start, unequal

TASK = eq.tasks.ridge(DIM, reference.MU)
OTHER = unequal(seed=1)
DATA = Split(unequal(), OTHER._replace(labels=OTHER.labels.at[:2].multiply(-3.0)))  # two whose rows mislead them
PULLS = (0.1, 1.0, 10.0)


def test_every_client_keeps_the_best_of_its_models():
    algorithm = fine_tuning(TASK, N, steps=4, lr=0.05)
    run = eq.simulate(algorithm, start(), DATA, 0, rounds=1)
    outcome, kept = run.server.outcome, 0
    for i, (client, held_out) in enumerate(zip(rows(DATA.train), rows(DATA.test), strict=True)):
        x = np.asarray(start())
        models = [x, *(train(x, client, steps=4, lr=0.05, anchor=pull) for pull in PULLS)]
        losses = [reference.loss(v, held_out) for v in models]
        best = int(np.argmin(losses))
        assert_same(run.clients[i], models[best])
        assert_same([a[i] for a in outcome], [losses[0], losses[best], (0, *PULLS)[best]])
        kept += best == 0
    assert 0 < kept < N  # both happen here
    assert_same(run.server, eq.debug(algorithm, start(), DATA, 0, rounds=1).server)
    assert_same(run.server.x, start())


def test_who_does_not_answer_keeps_the_shared_model():
    algorithm = fine_tuning(TASK, N, steps=4, lr=0.05)
    run = eq.simulate(algorithm, start(), DATA, 0, rounds=1, lost=lambda round, exchange, ids: np.asarray(ids) == 2)
    np.testing.assert_array_equal(run.clients[2], start())
    assert jax.tree.map(lambda a: float(a[2]), run.server.outcome) == (0, 0, 0)


@pytest.mark.parametrize(("wrong", "sentence"), [({"pulls": ()}, "no pull"), ({"pulls": (0.0,)}, "a pull is 0.0")])
def test_says_what_is_wrong(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        fine_tuning(TASK, N, steps=1, lr=0.1, **wrong)
