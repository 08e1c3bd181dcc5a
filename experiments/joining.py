"""What owners gain by joining: one model, own intercepts, gains instead of losses, own slopes. Prints Markdown.

    python experiments/joining.py                          # exam, contraception, insteval, adult
    python experiments/joining.py exam --splits 1

Logistic regression on federations whose owners exist (with 40 rows or more, and two of each class). Of each owner 30%
of the rows are held out, in three random splits, and every number is of these. All objectives are trained to their
optimum. Log loss, accuracy and AUC: mean over the owners / their worst-served fifth; gain: in log loss, over the
owner's own model (an intercept and slopes of its own rows alone, its l2 by folds); lose: owners whose own model is
better. Adult is read from $EQUIPOISE_DATA (or ./data).
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment.personal.baselines import OwnFit, own_fits
from equipoise.experiment.personal.offers import best_of_each
from equipoise.objectives.gains import of_gains

L2, STEPS, ROUNDS = 1e-3, 10, 40
AVERAGE = 1e6  # a penalty of the weights that leaves them equal
FEWEST = 40, 2  # rows, and rows of each class, that an owner has at least
ADULT = {"by": "education", "exclude": ["education", "education-num", "fnlwgt", "native-country"]}

# Of each: the own part of the model, rho of chi2, whether it is of gains.
METHODS = {
    "average": ("none", AVERAGE, False),
    "chi2 0.1 of losses": ("none", 0.1, False),
    "chi2 0.01 of losses": ("none", 0.01, False),
    "chi2 0.1 of gains": ("none", 0.1, True),
    "own intercept, average": ("intercept", AVERAGE, False),
    "own intercept, chi2 0.1 of gains": ("intercept", 0.1, True),
}
OFFERED, SLOPES, ALONE = "own intercept, chi2 0.1 of gains", "and the best for each owner", "each alone"
COLUMNS = ("loss", "its worst", "accuracy", "its worst", "AUC", "its worst", "gain", "its worst", "lose")

Rows = tuple[np.ndarray, np.ndarray]  # inputs, labels


class Split(NamedTuple):
    train: list[Rows]
    test: list[Rows]


class Scores(NamedTuple):
    """Of every owner."""

    loss: np.ndarray
    accuracy: np.ndarray
    auc: np.ndarray


class Federation(NamedTuple):
    """The tasks are made once, so that all splits run the same programs."""

    owners: list[Rows]
    tasks: dict[str, Any]  # by the own part


def federation(name: str) -> Federation:
    data = eq.data.load(name, **(ADULT if name == "adult" else {}))
    assert data.groups is not None
    each = [data.groups == g for g in range(len(data.group_names))]
    owners = [(data.inputs[rows].astype(float), data.labels[rows].astype(np.int32)) for rows in each]
    least, of_a_class = FEWEST
    kept = [(a, y) for a, y in owners if len(y) >= least and of_a_class <= y.sum() <= len(y) - of_a_class]
    plain = eq.tasks.softmax_regression(kept[0][0].shape[1], 2, l2=2 * L2)  # two outputs, w and -w: half the |w|^2
    return Federation(kept, {"none": plain, "intercept": eq.tasks.own_part(plain)})


def split(owners: list[Rows], seed: int) -> Split:
    rng, parts = np.random.default_rng(seed), Split([], [])
    for a, y in owners:
        order = rng.permutation(len(y))
        cut = int(0.7 * len(y))
        parts.train.append((a[order[:cut]], y[order[:cut]]))
        parts.test.append((a[order[cut:]], y[order[cut:]]))
    return parts


def trained(task: Any, train: Any, rho: float, base: Any) -> Any:
    dual = of_gains(eq.objectives.chi2(train.n, rho), base)

    def build(task: Any) -> Any:
        return eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(train.n), steps=STEPS)

    found = eq.metric.in_metric(build, task, train)
    end = eq.simulate(found.algorithm, jnp.zeros(task.size), found.data, 0, rounds=ROUNDS)
    return found.algorithm.model(end.server)


def scores(task: Any, x: Any, train: Any, tests: list[Rows]) -> Scores:
    """Of every owner's held-out rows, in NumPy; `x` is one model [d] or each owner's [n, d]."""
    models = np.broadcast_to(x, (train.n, task.size))
    parts = np.zeros((train.n, 2, 1)) if task.own is None else np.asarray(fitted(task.own, jnp.asarray(models), train))
    found = []
    for model, part, (a, y) in zip(models, parts, tests, strict=True):
        z = a @ model[: 2 * a.shape[1]].reshape(2, -1).T + model[-2:] + part[:, 0]
        log_odds = z[:, 1] - z[:, 0]
        loss = np.mean(np.logaddexp(0, log_odds) - y * log_odds)
        found.append((loss, np.mean((log_odds > 0) == y), auc(log_odds, y)))
    return Scores(*np.array(found).T)


@partial(jax.jit, static_argnums=0)
def fitted(own: Any, models: Any, train: Any) -> Any:
    """Every owner's part, of its training rows."""
    return jax.lax.map(lambda i: own.fit(models[i], train.client(i)), jnp.arange(train.n))


def auc(outputs: np.ndarray, labels: np.ndarray) -> float:
    """How often a row of the second class is above one of the first; NaN without one of each."""
    above, below = outputs[labels == 1], np.sort(outputs[labels == 0])
    if not len(above) or not len(below):
        return np.nan
    ranks = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
    return float(ranks.mean() / (2 * len(below)))


def summary(found: Scores, alone: Scores) -> list[float]:
    """In the order of COLUMNS."""
    gain, numbers = alone.loss - found.loss, []
    for values, up in [(found.loss, False), (found.accuracy, True), (found.auc, True), (gain, True)]:
        known = values[np.isfinite(values)]
        numbers += [float(known.mean()), float(worst_mean(known, up))]
    return [*numbers, float(np.mean(gain < 0))]


def of_split(told: Federation, seed: int) -> dict[str, list[float]]:
    """Every row's numbers, in the order of COLUMNS."""
    parts = split(told.owners, seed)
    train, n = eq.data.stack(parts.train), len(parts.train)
    own = told.tasks["intercept"]
    fits: OwnFit = own_fits(own, True, jnp.zeros(own.size), train)
    alone = scores(own, fits.model, train, parts.test)
    table = {}
    for name, (part, rho, gains) in METHODS.items():
        task = told.tasks[part]
        x = trained(task, train, rho, fits.loss if gains else jnp.zeros(n))
        table[name] = summary(scores(task, x, train, parts.test), alone)
        if name == OFFERED:
            offers = best_of_each(task, x, train, fits)
            table[SLOPES] = summary(scores(task, offers.model, train, parts.test), alone)
    table[ALONE] = summary(alone, alone)
    return table


def averaged(told: Federation, splits: int) -> dict[str, np.ndarray]:
    tables = [of_split(told, seed) for seed in range(splits)]
    return {name: np.mean([table[name] for table in tables], axis=0) for name in tables[0]}


def line(name: str, found: np.ndarray) -> str:
    loss, worst, accuracy, hard, auc, lowest, gain, least, lose = found
    cells = [f"{loss:.3f} / {worst:.3f}", f"{accuracy:.1%} / {hard:.1%}", f"{auc:.1%} / {lowest:.1%}"]
    cells += ["", ""] if name == ALONE else [f"{gain:+.3f} / {least:+.3f}".replace("-", "−"), f"{lose:.0%}"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of.add_argument("data_sets", nargs="*", default=["exam", "contraception", "insteval", "adult"])
    of.add_argument("--splits", type=int, default=3)
    given = of.parse_args()
    jax.config.update("jax_enable_x64", True)
    eq.use_all_cores()
    eq.keep_programs()
    for name in given.data_sets:
        jax.clear_caches()  # of the one before, whose shapes were others
        told = federation(name)
        print(f"\n| {name} ({len(told.owners)}) | log loss | accuracy | AUC | gain | lose |\n|---|---|---|---|---|---|")
        for row, numbers in averaged(told, given.splits).items():
            print(line(row, numbers), flush=True)


if __name__ == "__main__":
    main()
