"""`equipoise.fit` as estimators of scikit-learn, for its pipelines, searches and scores; needs `scikit-learn`.

model = EquipoiseClassifier().fit(X, y, owners=hospital)     # the name of the owner of each row
model.predict(X_new)
model.fitted_.report()                                       # how it serves every owner
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from equipoise.errors import InputError, not_none, require
from equipoise.estimator import Fitted, fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise InputError("the estimators need scikit-learn 1.6 or newer; pip install 'scikit-learn>=1.6'") from error

ALL = "all rows"  # the owner where none are named
LABEL = "label"


class _Estimator(BaseEstimator):
    """What both have in common: rows are grouped by their owners and given to `equipoise.fit`.

    Args:
        l2: the penalty; None: the library's own.
        rounds: of communication; None: the library's own.
        settings: others, as in `equipoise.fit`. All rows are trained on unless data.test says how many are held out.
    """

    _task = ""

    def __init__(
        self, *, l2: float | None = None, rounds: int | None = None, settings: Mapping[str, Any] | None = None
    ):
        self.l2 = l2
        self.rounds = rounds
        self.settings = settings

    def _fit(self, X: Any, labels: np.ndarray, owners: Any) -> None:
        owners = _checked_owners(np.full(len(labels), ALL) if owners is None else owners, len(labels))
        settings = {name: dict(section) for name, section in (self.settings or {}).items()}
        for section, name, value in (("model", "l2", self.l2), ("run", "rounds", self.rounds)):
            if value is not None:
                settings[section] = {**settings.get(section, {}), name: value}
        if len(np.unique(owners)) == 1:  # who has nothing to choose
            settings.setdefault("personal", {"kind": "none"})
        settings["data"] = {"test": 0.0, **settings.get("data", {}), "task": self._task}
        tables = {str(name): (_rows(X, owners == name), labels[owners == name]) for name in np.unique(owners)}
        self.fitted_: Fitted = fit(tables, LABEL, settings=settings)

    def _checked(self, X: Any) -> Any:
        """New rows: of as many columns as in training, and of the same names."""
        check_is_fitted(self)
        validated = validate_data(self, X, reset=False, skip_check_array=_is_table(X))
        return X if _is_table(X) else validated

    def _by_owner(self, rows: Any, owners: Any, predict: Callable[..., np.ndarray]) -> np.ndarray:
        if owners is None:
            return predict(rows)
        owners = _checked_owners(owners, len(rows))
        predictions: np.ndarray | None = None
        for name in np.unique(owners):
            mine = owners == name
            part = predict(_rows(rows, mine), str(name) if str(name) in self.fitted_.owners else None)
            predictions = np.empty((len(owners), *part.shape[1:]), part.dtype) if predictions is None else predictions
            predictions[mine] = part
        return not_none(predictions, "there are no rows to predict")


class EquipoiseClassifier(ClassifierMixin, _Estimator):
    """One classifier for all owners of rows, each of whom counts more the worse it is served."""

    _task = "classification"

    def fit(self, X: Any, y: Any, owners: Any = None) -> "EquipoiseClassifier":
        """`owners` [rows]: whose each row is; None: all of one owner."""
        X, y = _training_rows(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"the labels have one class only, {self.classes_[0]!r}; there is nothing to learn")
        self._fit(X, codes, owners)
        return self

    def predict(self, X: Any, owners: Any = None) -> np.ndarray:
        """`owners` [rows]: whose each row is, who has a part of the model of its own; None: of new ones."""
        chances = self.predict_proba(X, owners)
        return self.classes_[chances.argmax(1)]

    def predict_proba(self, X: Any, owners: Any = None) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        return self._by_owner(self._checked(X), owners, self.fitted_.predict_proba)


class EquipoiseRegressor(RegressorMixin, _Estimator):
    """One regression for all owners of rows, each of whom counts more the worse it is served."""

    _task = "regression"

    def fit(self, X: Any, y: Any, owners: Any = None) -> "EquipoiseRegressor":
        """`owners` [rows]: whose each row is; None: all of one owner."""
        X, y = _training_rows(self, X, y, y_numeric=True)
        self._fit(X, column_or_1d(y, warn=True).astype(np.float64), owners)
        return self

    def predict(self, X: Any, owners: Any = None) -> np.ndarray:
        """`owners` [rows]: whose each row is, who has a part of the model of its own; None: of new ones."""
        return self._by_owner(self._checked(X), owners, self.fitted_.predict)


def _training_rows(estimator: BaseEstimator, X: Any, y: Any, **how: Any) -> tuple[Any, np.ndarray]:
    """Checked as scikit-learn does; a table keeps its columns, texts too."""
    if not _is_table(X):
        return validate_data(estimator, X, y, ensure_min_samples=2, **how)
    validate_data(estimator, X, skip_check_array=True)
    labels = np.asarray(y)
    require(len(X) == len(labels), f"there are {len(X)} rows and {len(labels)} labels; give a label for each row")
    return X, labels


def _checked_owners(owners: Any, rows: int) -> np.ndarray:
    owners = np.asarray(owners)
    wrong = f"there are {rows} rows and owners of shape {owners.shape}; give the name of its owner for each row"
    require(owners.shape == (rows,), wrong)
    return owners


def _is_table(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _rows(X: Any, chosen: np.ndarray) -> Any:
    if hasattr(X, "iloc"):
        return X.iloc[np.flatnonzero(chosen)]
    return X.filter(chosen) if hasattr(X, "filter") and _is_table(X) else X[chosen]
