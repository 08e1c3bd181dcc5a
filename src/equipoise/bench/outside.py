"""Models that are not trained by a federation: every owner alone, and what sees all rows at once.

Each function takes a `Federation` and returns a function (owner's number, inputs) -> probabilities [rows, classes], or
numbers [rows] where a number is predicted. A method from outside the library enters in the same form.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy

from equipoise.bench.federations import Federation
from equipoise.errors import needs

Predict = Callable[[int, np.ndarray], np.ndarray]
FOLDS = 5
L2 = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)  # tried by each owner; with the largest, little but its base rate is left
EMPTY = np.zeros(0)


def alone(federation: Federation) -> Predict:
    """Each owner's linear model of its own rows, with the l2 that its own five folds like best."""
    k = len(federation.classes)
    models = [_chosen(x, y, k) for x, y in zip(federation.inputs, federation.labels, strict=True)]
    return lambda owner, inputs: _outputs(models[owner], inputs, k)


def _chosen(x: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    fold = np.random.default_rng(len(y)).permutation(len(y)) % min(FOLDS, len(y))
    losses = np.zeros(len(L2))
    for j in range(fold.max() + 1):
        model = None
        for place, l2 in enumerate(L2):
            model = _fitted(x[fold != j], y[fold != j], k, l2, model)
            losses[place] += _loss(_outputs(model, x[fold == j], k), y[fold == j], k).sum()
    return _fitted(x, y, k, L2[int(np.argmin(losses))])


def _fitted(x: np.ndarray, y: np.ndarray, k: int, l2: float, start: np.ndarray | None = None) -> np.ndarray:
    """[inputs + 1, outputs]: the least mean loss + l2/2 |slopes|^2, by Newton steps.

    The intercept has the penalty of a row with nothing in it, as the library's own parts have.
    """
    a = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    ridge = np.append(np.full(x.shape[1], l2), (2 if k else 1) / len(x))
    if not k:
        return np.linalg.solve(a.T @ a / len(a) + np.diag(ridge), a.T @ y / len(a))[:, None]
    came = np.eye(k)[y]
    w = np.zeros((a.shape[1], k)) if start is None else start
    value = _objective(w, a, y, ridge)
    for _ in range(50):
        p = scipy.special.softmax(a @ w, axis=1)
        slope = a.T @ (p - came) / len(a) + ridge[:, None] * w
        if np.abs(slope).max() < 1e-7:
            break
        bend = np.empty((a.shape[1], k, a.shape[1], k))
        for c in range(k):
            for d in range(k):
                bend[:, c, :, d] = (a.T * (p[:, c] * ((c == d) - p[:, d]))) @ a / len(a)
            bend[:, c, :, c] += np.diag(ridge)
        step = np.linalg.solve(bend.reshape(w.size, w.size) + 1e-9 * np.eye(w.size), slope.ravel()).reshape(w.shape)
        length = 1.0
        while length > 1e-4 and (after := _objective(w - length * step, a, y, ridge)) > value:
            length /= 2
        if length <= 1e-4:
            break
        w, value = w - length * step, after
    return w


def _objective(w: np.ndarray, a: np.ndarray, y: np.ndarray, ridge: np.ndarray) -> float:
    z = a @ w
    return float(np.mean(scipy.special.logsumexp(z, axis=1) - z[np.arange(len(y)), y]) + (ridge @ w**2).sum() / 2)


def _outputs(w: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    z = np.column_stack([x, np.ones(len(x))]) @ w
    return scipy.special.softmax(z, axis=1) if k else z[:, 0]


def _loss(outputs: np.ndarray, y: np.ndarray, k: int) -> np.ndarray:
    return -np.log(np.maximum(outputs[np.arange(len(y)), y], 1e-12)) if k else (outputs - y) ** 2


def pooled_linear(federation: Federation) -> Predict:
    """scikit-learn's logistic or ridge regression of all rows in one place, owners' names among the inputs."""
    with needs("dev", "the models of scikit-learn"):
        from sklearn.linear_model import LogisticRegression, Ridge
    model = LogisticRegression(C=1.0, max_iter=2000) if federation.classes else Ridge(alpha=1.0)
    return _pooled(model, federation, list(np.eye(len(federation.owners))))


def pooled_boosting(federation: Federation) -> Predict:
    """scikit-learn's gradient boosting of all rows in one place, owners' base rates among the inputs.

    Boosting splits on a number better than on one of many names; the rate is that of the training rows.
    """
    k = len(federation.classes)
    rates = [_rates(y, k) if k else np.array([y.mean()]) for y in federation.labels]
    return _pooled(_boosting(federation), federation, rates)


def boosting_alone(federation: Federation) -> Predict:
    """scikit-learn's gradient boosting, for each owner on its own rows."""
    k = len(federation.classes)
    rates = [_rates(y, k) for y in federation.labels]
    models = [
        None if k and len(np.unique(y)) < 2 else _boosting(federation).fit(x, y)  # scikit-learn makes none of one class
        for x, y in zip(federation.inputs, federation.labels, strict=True)
    ]
    return lambda owner, inputs: _predicted(models[owner], inputs, k, rates[owner])


def _boosting(federation: Federation) -> Any:
    with needs("dev", "the models of scikit-learn"):
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    kind = HistGradientBoostingClassifier if federation.classes else HistGradientBoostingRegressor
    return kind(max_iter=60, learning_rate=0.1, early_stopping=False, random_state=0)


def _pooled(model: Any, federation: Federation, of_owners: Sequence[np.ndarray]) -> Predict:
    """`of_owners` is what the model sees of whose a row is, beside its inputs."""

    def seen(owner: int, inputs: np.ndarray) -> np.ndarray:
        return np.concatenate([inputs, np.tile(of_owners[owner], (len(inputs), 1))], axis=1)

    every = np.concatenate([seen(i, x) for i, x in enumerate(federation.inputs)])
    model.fit(every, np.concatenate(federation.labels))
    return lambda owner, inputs: _predicted(model, seen(owner, inputs), len(federation.classes))


def _rates(labels: np.ndarray, k: int) -> np.ndarray:
    return (np.bincount(labels, minlength=k) + 1 / k) / (len(labels) + 1) if k else EMPTY


def _predicted(model: Any, inputs: np.ndarray, k: int, rates: np.ndarray = EMPTY) -> np.ndarray:
    if model is None:
        return np.tile(rates, (len(inputs), 1))
    if not k:
        return model.predict(inputs)
    chances = np.zeros((len(inputs), k))
    chances[:, model.classes_.astype(int)] = model.predict_proba(inputs)
    return chances
