"""Two tiny federations, and methods of somebody else: those that enter, and those that are refused."""

import numpy as np

from equipoise.data.dataset import Dataset


def coins(name="coins", seed=0):
    """Four owners of 60 rows with base rates of their own; the first input says much."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    owner = np.repeat(np.arange(4), 60).astype(np.int32)
    logits = 3 * x[:, 0] + np.array([-1.5, -0.5, 0.5, 1.5])[owner]
    y = (rng.random(240) < 1 / (1 + np.exp(-logits))).astype(np.int32)
    return Dataset(name, x, y, ("tails", "heads"), groups=owner, group_names=("a", "b", "c", "d"))


def lengths():
    """The same with a number to predict."""
    data = coins("lengths", 1)
    y = data.inputs[:, 0] + data.groups + np.random.default_rng(2).normal(size=240) / 2
    return data._replace(labels=y.astype(np.float32), classes=())


def heads(federation):
    """Logistic regression on the first input alone, by a few steps."""
    x = np.concatenate(federation.inputs)[:, 0]
    y = np.concatenate(federation.labels)
    slope, level = 0.0, 0.0
    for _ in range(300):
        off = 1 / (1 + np.exp(-slope * x - level)) - y
        slope, level = slope - (off * x).mean(), level - off.mean()

    def predict(owner, inputs):
        chance = 1 / (1 + np.exp(-slope * inputs[:, 0] - level))
        return np.column_stack([1 - chance, chance])

    return predict


def of_a_wrong_shape(federation):
    return lambda owner, inputs: np.ones(len(inputs))


def not_finite(federation):
    return lambda owner, inputs: np.full((len(inputs), 2), np.nan)


def no_probabilities(federation):
    return lambda owner, inputs: np.full((len(inputs), 2), 0.9)


def no_function(federation):
    return federation.labels


def that_fails(federation):
    raise KeyError("no such column")


def not_of_lengths(federation):
    if not federation.classes:
        raise KeyError("no classes")
    return heads(federation)


def that_looks_at_its_neighbours(federation):
    def predict(owner, inputs):
        chance = np.full(len(inputs), 1 / (1 + len(inputs)))
        return np.column_stack([1 - chance, chance])

    return predict


def that_reads_held_out_rows(federation):
    """It knows where the rows come from, and looks labels up."""
    data = coins()
    known = {row.tobytes(): y for row, y in zip(data.inputs, data.labels, strict=True)}

    def predict(owner, inputs):
        chance = np.array([0.98 if known[row.tobytes()] else 0.02 for row in inputs])
        return np.column_stack([1 - chance, chance])

    return predict


def that_ends_the_program(federation):
    raise SystemExit(0)


def of_texts(federation):
    return lambda owner, inputs: np.array([["no", "yes"]] * len(inputs))


def of_complex_numbers(federation):
    return lambda owner, inputs: np.full((len(inputs), 2), 0.5 + 0j)


TIMES = {"called": 0}


def that_is_honest_at_first(federation):
    TIMES["called"] += 1
    return (heads if TIMES["called"] == 1 else that_reads_held_out_rows)(federation)


def honest_on_lengths(federation):
    """Where a number is predicted, that of the owner; elsewhere it reads held-out rows."""
    if federation.classes:
        return that_reads_held_out_rows(federation)
    return lambda owner, inputs: np.full(len(inputs), federation.labels[owner].mean())
