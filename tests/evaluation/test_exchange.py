import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

import equipoise as eq
from equipoise.evaluation import accuracy, evaluate, evaluation, evaluator, of_rows, standing, suited
from tests.problems import DIM, N, rows, start, unequal

RNG = np.random.default_rng(0)


def classes(n: int = 4, k: int = 3, dim: int = 3) -> eq.data.Shards:
    sizes = (9, 4, 30, 13, 6)
    return eq.data.stack([(RNG.normal(size=(m, dim)), RNG.integers(0, k, m).astype(np.int32)) for m in (sizes * n)[:n]])


def test_numbers_are_scored_by_each_client_on_its_own_rows():
    shards, task, x = unequal(), eq.tasks.ridge(DIM, 0.1), start()
    table = evaluate(task, x, shards)
    assert table.sizes.tolist() == np.asarray(shards.sizes).tolist()
    assert set(table.scores) == {"loss", "rmse", "r2"}
    np.testing.assert_allclose(table.scores["loss"], eq.tasks.losses(task, x, shards), rtol=1e-12)
    for i, (inputs, labels) in enumerate(rows(shards)):
        predicted = inputs @ np.asarray(x)
        assert np.isclose(table.scores["rmse"][i], metrics.root_mean_squared_error(labels, predicted))
        if len(labels) > 1:
            assert np.isclose(table.scores["r2"][i], metrics.r2_score(labels, predicted))
    assert np.isnan(table.scores["r2"][4])  # one row has no variance; the client's other scores still arrive


def test_classes_are_scored_by_accuracy_and_two_of_them_by_auroc():
    shards, task = classes(k=2), eq.tasks.softmax_regression(3, 2)
    x = jnp.asarray(RNG.normal(size=task.size))
    table = evaluate(task, x, shards)
    assert set(table.scores) == {"loss", "accuracy", "auroc"}
    for i, (inputs, labels) in enumerate(rows(shards)):
        outputs = np.asarray(task.predict(x, jnp.asarray(inputs)))
        assert np.isclose(table.scores["accuracy"][i], (outputs.argmax(1) == labels).mean())
        if len(set(labels.tolist())) == 2:
            assert np.isclose(table.scores["auroc"][i], metrics.roc_auc_score(labels, outputs[:, 1] - outputs[:, 0]))
    three = eq.tasks.softmax_regression(3, 3)
    assert set(evaluate(three, jnp.zeros(three.size), classes()).scores) == {"loss", "accuracy"}


def test_a_pool_gives_the_same_table():
    shards, task = classes(), eq.tasks.softmax_regression(3, 3)
    x = jnp.asarray(RNG.normal(size=task.size))
    pairs = rows(shards)
    ends = np.cumsum([len(labels) for _, labels in pairs])
    parts = [np.arange(end - len(labels), end) for end, (_, labels) in zip(ends, pairs, strict=True)]
    pool = eq.data.federate(*(np.concatenate(column) for column in zip(*pairs, strict=True)), parts)
    expected = evaluate(task, x, shards)
    for clients_per_batch in (None, 1, 3):
        found = evaluate(task, x, pool, clients_per_batch=clients_per_batch)
        jax.tree.map(np.testing.assert_allclose, found, expected)


def test_a_path_of_models_is_scored_in_one_run():
    shards, task = classes(), eq.tasks.softmax_regression(3, 3)
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(shards.n), steps=2, local_lr=0.5)
    result = eq.simulate(algorithm, task.init(jax.random.key(0)), shards, 0, rounds=4, record=algorithm.model)
    path = evaluate(task, result.history, shards)
    assert path.sizes.shape == path.scores["loss"].shape == (4, shards.n)
    last = evaluate(task, algorithm.model(result.server), shards)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[-1], b), path, last)
    assert np.mean(path.scores["loss"][-1]) < np.mean(path.scores["loss"][0])


def test_one_model_after_the_other_gives_the_same_table():
    shards, task = classes(), eq.tasks.softmax_regression(3, 3)
    x = RNG.normal(size=task.size)
    for draws in (0, 5):
        table = evaluate(task, x, shards, draws=draws, key=3)
        jax.tree.map(np.testing.assert_array_equal, evaluator(task, shards, draws=draws, key=3)(x), table)


def test_every_engine_can_evaluate():
    shards, task = classes(), eq.tasks.softmax_regression(3, 3)
    x = jnp.asarray(RNG.normal(size=task.size))
    algorithm = evaluation(task, eq.cohorts.everyone(shards.n), x[None], scores={"accuracy": accuracy})
    ends = [engine(algorithm, x, shards, 0, rounds=1).server for engine in (eq.simulate, eq.debug)]
    jax.tree.map(np.testing.assert_allclose, ends[0].heard, ends[1].heard)
    np.testing.assert_array_equal(algorithm.model(ends[0]), x)


def test_some_clients_may_be_asked_or_lost():
    shards, task = unequal(), eq.tasks.ridge(DIM, 0.1)
    whole = evaluate(task, start(), shards)
    table = evaluate(task, start(), shards, lost=lambda r, k, ids: jnp.asarray(ids) == 2)
    assert table.sizes.tolist() == [7, 3, 0, 5, 1]
    assert np.isnan(table.scores["loss"][2])
    kept = [0, 1, 3, 4]
    np.testing.assert_array_equal(table.scores["loss"][kept], whole.scores["loss"][kept])
    assert standing(table).left_out == (2,)
    some = evaluation(task, eq.cohorts.uniform(N, 2), start()[None], scores={})
    heard = eq.simulate(some, start(), shards, 0, rounds=1).server.heard
    assert np.count_nonzero(heard.sizes) == np.isfinite(heard.scores["loss"]).sum() == 2


def test_a_loss_that_is_not_finite_is_a_lost_reply():
    shards, task = unequal(), eq.tasks.ridge(DIM, 0.1)
    with pytest.warns(eq.errors.LostReplies):
        table = evaluate(task, start() * 1e200, shards)
    assert not table.sizes.any()
    with pytest.raises(eq.errors.InputError, match="no client has a score 'rmse'"):
        standing(table)


def test_a_function_and_scores_of_ones_own():
    shards = classes()

    def predict(x, inputs):
        return inputs @ x.reshape(3, 3)

    def share_of_class_0(outputs, labels, real):
        return jnp.mean(jnp.argmax(outputs, 1) == 0, where=real)

    table = evaluate(predict, jnp.zeros(9), shards, scores={"zero": share_of_class_0})
    assert {name: v.tolist() for name, v in table.scores.items()} == {"zero": [1.0] * 4}
    assert evaluate(predict, jnp.zeros(9), shards).scores.keys() == {"accuracy"}


def test_a_task_without_predictions_has_losses():
    shards = eq.data.stack([(np.eye(2)[None], np.ones((1, 2)))] * 3)
    assert evaluate(eq.tasks.quadratic(2), jnp.zeros(2), shards).scores.keys() == {"loss"}
    assert suited(None, jnp.zeros(2), None) == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": jnp.zeros((2, 2, 4))}, "give a model"),
        ({"x": jnp.zeros((0, 4))}, "no models"),
        ({"x": jnp.zeros(5)}, "a model has 5 parameters but the task has 4"),
        ({"draws": -1}, "draws is -1"),
        ({"task": eq.tasks.ridge(3), "x": jnp.zeros(3)}, "the task is for 3 features"),
    ],
)
def test_what_cannot_be_evaluated(change, sentence):
    given = {"task": eq.tasks.ridge(DIM), "x": start(), "data": unequal()} | change
    with pytest.raises(eq.errors.InputError, match=sentence):
        evaluate(**given)
    with pytest.raises(eq.errors.InputError, match="makes no predictions"):
        evaluation(eq.tasks.quadratic(2), eq.cohorts.everyone(2), jnp.zeros((1, 2)), scores={"accuracy": accuracy})


def test_what_each_row_adds_to_a_score():
    shards, task = classes(), eq.tasks.softmax_regression(3, 3)
    x = jnp.asarray(RNG.normal(size=task.size))
    hits = np.split(of_rows(task, x, shards, "accuracy"), np.cumsum(shards.sizes)[:-1])
    np.testing.assert_allclose([h.mean() for h in hits], evaluate(task, x, shards).scores["accuracy"])
    assert of_rows(task, x, shards, "auroc") is None
    assert of_rows(eq.tasks.quadratic(2), x, shards, "accuracy") is None

    numbers, ridge = unequal(), eq.tasks.ridge(DIM, 0.1)
    table = evaluate(ridge, start(), numbers)
    errors = np.split(of_rows(ridge, start(), numbers, "rmse"), np.cumsum(numbers.sizes)[:-1])
    np.testing.assert_allclose([np.sqrt(e.mean()) for e in errors], table.scores["rmse"])
    np.testing.assert_allclose([np.mean(e**2) for e in errors], table.squares["rmse"])
