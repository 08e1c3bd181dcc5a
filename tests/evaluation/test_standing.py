import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.evaluation import PerClient, evaluate, standing
from tests.problems import few

RNG = np.random.default_rng(0)


def made(values, sizes, score="accuracy", resampled=None) -> PerClient:
    return PerClient(np.array(sizes), {score: np.array(values)}, resampled or {}, {})


def test_the_standing_of_accuracies():
    table = made([0.5, 1.0, 0.9, np.nan, 0.8], [10, 20, 30, 0, 5])
    found = standing(table, k=0.25)
    assert found.summary["mean"] == pytest.approx(0.8)
    assert found.summary["worst25"] == found.summary["min"] == 0.5
    assert found.left_out == (3,)
    known = [0, 1, 2, 4]
    assert (found.low[known] < table.scores["accuracy"][known]).all()
    assert (found.high[known] >= table.scores["accuracy"][known]).all()
    assert np.isnan(found.low[3])
    assert found.worst.low < 0.5 <= found.worst.estimate < found.worst.high  # four of unequal sizes: nothing to learn
    assert found.mean.low < 0.8 < found.mean.high
    with pytest.raises(eq.errors.InputError, match="no score 'acuracy'; did you mean 'accuracy'"):
        standing(table, "acuracy")


@pytest.mark.parametrize("draws", few([0], [0, 300], "::test_the_bounds_of_an_rmse_are_those_of_its_error[0]"))
def test_the_bounds_of_an_rmse_are_those_of_its_error(draws):
    """Clients with normal errors: an RMSE's interval is about that of the chi distribution, for two at once."""
    errors = [RNG.normal(0, s, 400) for s in (1.0, 2.0)]
    shards = eq.data.stack([(e[:, None], np.zeros(400)) for e in errors])
    table = evaluate(lambda x, inputs: inputs * x[0], jnp.ones(1), shards, draws=draws)
    found = standing(table, "rmse")
    for i, s in enumerate((1.0, 2.0)):
        assert found.low[i] < table.scores["rmse"][i] < found.high[i]
        assert found.high[i] - found.low[i] == pytest.approx(2 * 2.24 * s / np.sqrt(800), rel=0.2)
    assert found.worst.low < found.summary["max"] < found.worst.high
    few = eq.data.stack([(np.ones((2, 1)), np.zeros(2))] * 2)
    assert np.isnan(standing(evaluate(lambda x, a: a * x[0], jnp.ones(1), few, draws=10), "rmse").low).all()


def test_scores_that_are_no_means_are_resampled():
    """AUROC has bounds only if each client scored resampled rows; they are about those of DeLong."""
    labels = np.tile([0, 1], 100).astype(np.int32)
    shards = eq.data.stack([(RNG.normal(size=(200, 1)) + labels[:, None], labels) for _ in range(3)])

    def predict(x, inputs):
        return jnp.concatenate([jnp.zeros_like(inputs), inputs], axis=1)

    assert np.isnan(standing(evaluate(predict, jnp.ones(1), shards), "auroc").worst).all()
    table = evaluate(predict, jnp.ones(1), shards, draws=100)
    found = standing(table, "auroc")
    assert (found.low < table.scores["auroc"]).all()
    assert (found.high > table.scores["auroc"]).all()
    assert (found.high - found.low).mean() == pytest.approx(2 * 1.96 * 0.034, rel=0.3)
    assert found.worst.low < found.worst.estimate < found.worst.high


def test_owners_of_few_rows_may_not_have_met_the_rare_losses_that_larger_ones_have():
    """Log losses where 4% of the rows are of the other class: eight rows mostly have none of it, and looked certain."""
    rng, sizes = np.random.default_rng(0), np.repeat([8, 200], [5, 15])
    truth = np.repeat([1.5, 0.6], [5, 15])
    told = []
    for seed in range(40):
        rows = [of * np.where(rng.random(m) < 0.04, 12.5, 0.5208) for m, of in zip(sizes, truth, strict=True)]
        means, squares = (np.array([(r**power).mean() for r in rows]) for power in (1, 2))
        found = standing(PerClient(sizes, {"loss": means}, {}, {"loss": squares}), "loss", key=seed)
        told += [b.low <= t <= b.high for b, t in ((found.mean, 0.825), (found.worst, 1.5)) if np.isfinite(b.low)]
        known = np.isfinite(found.low)
        told.append(bool(((found.low <= truth) & (truth <= found.high))[known].all()))
    assert np.mean(told) > 0.93


def test_bounds_of_clients_that_have_not_met_a_rare_class_are_wide_or_not_given():
    """Five owners of 20 rows, one of twenty of which is of the other class: most owners have met none or one of it."""
    rows, false = np.full(5, 20), 0
    for seed in range(60):
        positive = np.random.default_rng(seed).random((5, 20)) < 0.05
        losses = -np.log(np.where(positive, 0.05, 0.95))
        table = PerClient(rows, {"loss": losses.mean(1)}, {}, {"loss": (losses**2).mean(1)})
        found = standing(table, "loss")
        false += bool(((found.low > 0.1985) | (found.high < 0.1985)).any())
    assert false <= 5


def test_rows_that_count_as_fewer_leave_more_open():
    table = made([0.8, 0.9, 0.7, 0.9], [50] * 4)
    each, by_unit = standing(table), standing(table, counted=np.full(4, 10.0))
    assert (by_unit.high - by_unit.low > 1.5 * (each.high - each.low)).all()
    assert by_unit.mean.high - by_unit.mean.low > 1.5 * (each.mean.high - each.mean.low)
    assert by_unit.worst.high - by_unit.worst.low > each.worst.high - each.worst.low


def test_a_bound_that_says_nothing_is_not_given():
    """Squared errors of five rows, for 50 clients together: it may be a thousand times as large."""
    values = RNG.exponential(size=(50, 5))
    table = PerClient(np.full(50, 5), {"rmse": np.sqrt(values.mean(1))}, {}, {"rmse": (values**2).mean(1)})
    found = standing(table, "rmse")
    known = np.isfinite(found.high)
    assert not known.all()
    assert (found.high[known] <= 10 * table.scores["rmse"][known]).all()
    assert np.isfinite(found.mean).all()
    one = PerClient(np.array([3, 500]), {"rmse": np.array([2.0, 1.0])}, {}, {"rmse": np.array([48.0, 3.0])})
    assert np.isnan(standing(one, "rmse").worst).all()  # three rows of the worst one: it may be a hundred times as bad


def test_a_small_client_takes_the_bounds_of_an_unknown_score_from_nobody_else():
    """Ten rows, drawn again, say too little about it; the others keep theirs, and the mean of all has none."""
    values, sizes = np.array([0.02, 0.1, -0.3]), [10, 40, 200]
    drawn = values[:, None] + RNG.normal(size=(3, 100)) / np.sqrt(np.array(sizes))[:, None]
    found = standing(made(values, sizes, "agreement", {"agreement": drawn}), "agreement", up=True)
    assert np.isnan([found.low[0], found.high[0], *found.mean, *found.worst]).all()
    assert (found.low[1:] < values[1:]).all()
    assert (found.high[1:] > values[1:]).all()


def test_six_rows_of_a_regression_have_bounds():
    """Of 30 rows of which a fifth is scored, at three owners; one row far off leaves no more open above."""
    errors = np.random.default_rng(3).normal(size=(3, 6)) ** 2
    errors[0, 0] = 25.0
    table = PerClient(np.full(3, 6), {"rmse": np.sqrt(errors.mean(1))}, {}, {"rmse": (errors**2).mean(1)})
    found = standing(table, "rmse")
    assert (found.low < table.scores["rmse"]).all()
    assert (found.high > table.scores["rmse"]).all()
    assert (found.high < 8 * table.scores["rmse"]).all()
