"""`eq.fit`: tables in memory, as scikit-learn's users expect them."""

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import InputError
from equipoise.experiment import records
from equipoise.report import numbers, wording
from tests.searches import tiny

QUICK = {
    "run": {"rounds": 8, "score": "accuracy"},
    "model": {"l2": 0.01, "own": "none", "metric": "none"},
    "objective": {"of": "losses"},
}


def tables(n=3, rows=60):
    rng = np.random.default_rng(0)
    for i in range(n):
        age = rng.normal(60 + 2 * i, 10, rows)
        ward = rng.choice(["A", "B"], rows)
        yield pl.DataFrame({"age": age, "ward": ward, "ill": (age + 5 * (ward == "A") > 64)})


@pytest.fixture(scope="module")
def fitted():
    return eq.fit(dict(zip(("north", "south", "west"), tables(), strict=True)), label="ill", settings=QUICK)


def test_it_predicts(fitted):
    new = next(tables(rows=300)).drop("ill")
    truth = next(tables(rows=300))["ill"].to_numpy()
    predicted = fitted.predict(new)
    assert (predicted == np.where(truth, "true", "false")).mean() > 0.9
    chances = fitted.predict_proba(new)
    assert chances.shape == (300, 2)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert fitted.classes_ == ("false", "true")
    assert (np.array(fitted.classes_)[chances.argmax(1)] == predicted).all()


def test_an_owner_predicts_with_what_it_should_use(fitted):
    new = next(tables()).drop("ill")
    assert tuple(fitted.own) == fitted.owners
    chances = {owner: fitted.predict_proba(new, owner) for owner in (None, *fitted.owners)}
    np.testing.assert_array_equal(chances["west"], fitted.own["west"].predict(new)[:, 1:].to_numpy())
    assert not np.allclose(chances["west"], chances[None], atol=1e-4)
    assert (fitted.predict(new, "west") == np.array(fitted.classes_)[chances["west"].argmax(1)]).all()
    with pytest.raises(InputError, match="owner is 'east', of whom there was no table; give north, south, west"):
        fitted.predict(new, "east")


def test_every_owner_has_a_row_the_worst_served_first(fitted):
    report = fitted.report()
    assert sorted(report["owner"]) == ["north", "south", "west"]
    assert report["accuracy"].to_list() == sorted(report["accuracy"])
    assert (report["low"] <= report["accuracy"]).all()
    assert report["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert report["train_rows"].to_list() == [48, 48, 48]


def test_arrays_mappings_and_other_tables_are_the_same(monkeypatch, fitted, tmp_path):
    """With the stand-in for the engine: the rows, not the training, are looked at."""
    tiny.use(monkeypatch)
    frames = list(tables())
    kept = [eq.fit(frames, "ill", settings=QUICK, out=tmp_path / "a")]
    kept.append(eq.fit([frame.to_dict(as_series=False) for frame in frames], "ill", settings=QUICK))
    kept.append(eq.fit([frame.lazy() for frame in frames], "ill", settings=QUICK))
    for other in kept[1:]:
        assert other.model.encoding.to_json() == kept[0].model.encoding.to_json()
        assert other.run.federation.members == kept[0].run.federation.members
    assert records.finished(tmp_path / "a")
    assert kept[0].owners == ("owner 0", "owner 1", "owner 2")
    pairs = [(frame.select("age").to_numpy(), frame["ill"].to_numpy()) for frame in frames]
    from_arrays = eq.fit(pairs, settings=QUICK)
    assert from_arrays.predict(pairs[0][0]).shape == (60,)
    assert from_arrays.predict(pairs[0]).shape == (60,)


def test_pandas(monkeypatch):
    pd = pytest.importorskip("pandas")
    tiny.use(monkeypatch)
    frames = [pd.DataFrame(frame.to_dict(as_series=False)) for frame in tables()]
    frames[0].loc[0, "ward"] = None
    done = eq.fit(frames, "ill", settings=QUICK)
    assert done.predict(frames[1].drop(columns="ill")).shape == (60,)
    assert any("ward" in feature for feature in done.model.encoding.inputs)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "there are no tables"),
        ([pl.DataFrame({"a": [1]})], "the table of owner 0 has no column 'ill', the label"),
        ([(np.zeros((3, 2)), np.zeros(2))], "owner 0 has 3 rows and labels of shape"),
        ([(np.zeros((3, 2, 2)), np.zeros(3))], "give numbers [rows, columns]"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, sentence):
    with pytest.raises(InputError) as error:
        eq.fit(given, "ill")
    assert sentence in str(error.value)


def test_settings_are_a_mapping():
    table = (np.zeros((4, 2)), np.arange(4))
    with pytest.raises(InputError, match="settings is 'x'; give a mapping of sections"):
        eq.fit([table], settings="x")  # type: ignore[arg-type]


@pytest.mark.thorough(witness="deploy/test_federated_run.py::test_rows_of_a_unit_stay_together_at_every_site")
def test_rows_of_one_patient_count_together():
    """Twelve patients of five rows each: bounds as of patients, and the page says so."""
    rng = np.random.default_rng(0)
    named = [
        frame.with_columns(pl.Series("patient", np.repeat([f"p{k}" for k in range(12)], 5)[rng.permutation(60)]))
        for frame in tables()
    ]
    by_row = eq.fit([frame.drop("patient") for frame in named], label="ill", settings=QUICK)
    done = eq.fit(named, label="ill", settings={**QUICK, "data": {"unit": "patient"}})
    assert done.model.encoding.inputs == by_row.model.encoding.inputs
    for member in done.run.federation.members:
        assert member.test % 5 == 0
        assert member.counted == pytest.approx(member.test / 5)
    assert by_row.run.federation.members[0].counted is None
    width = [np.array(fit.run.outcome.high) - np.array(fit.run.outcome.low) for fit in (by_row, done)]
    assert (width[1] > 1.3 * width[0]).all()
    said = [wording.rests_on(numbers.reported([fit.run])[0]) for fit in (by_row, done)]
    assert "every scored row is drawn by itself" in said[0]
    assert "of each patient apart from the others" in said[1]


def test_classes_are_what_is_predicted(monkeypatch):
    """Integers stay integers: scikit-learn's metrics compare the two."""
    tiny.use(monkeypatch)
    for classes in ([0, 1], [3, 12], [0.0, 1.0], ["no", "yes"]):
        labels = np.array(classes)[np.arange(20) % 2]
        fitted = eq.fit([(np.arange(40.0).reshape(20, 2), labels)] * 2, settings=QUICK)
        assert set(fitted.predict(np.eye(2))) <= set(fitted.classes_)
        assert fitted.classes_ == tuple(classes)


def test_owners_are_called_by_their_names(monkeypatch):
    tiny.use(monkeypatch)
    names = ["west", "a/b", "A/B", "n" * 300, "n" * 301, ".hidden", "", "Zürich", "x.parquet"]
    rng = np.random.default_rng(0)
    tables = {name: (rng.normal(size=(10 + i, 2)), np.arange(10 + i) % 2) for i, name in enumerate(names)}
    fitted = eq.fit(tables, settings={**QUICK, "data": {"test": 0}})
    assert fitted.owners == tuple(names)
    rows = dict(fitted.report().select("owner", "train_rows").iter_rows())
    assert rows == {name: 10 + i for i, name in enumerate(names)}
    with pytest.raises(InputError, match=r"^north, column 'x', data row 4: 'a' is not a number"):
        eq.fit({"north": {"x": ["1", "2", "3", "a"], "label": [0, 1, 0, 1]}}, settings=QUICK)


def test_a_label_does_not_replace_an_input():
    pair = (np.arange(12.0).reshape(6, 2), np.arange(6) % 2)
    with pytest.raises(InputError, match="the label of owner 0 would be called 'x0' as one of its columns is"):
        eq.fit([pair], label="x0", settings=QUICK)


class Nullable:
    """A column as pandas' nullable types give it: objects, and NA, which is neither true nor false."""

    class NA:
        def __bool__(self):
            raise TypeError("boolean value of NA is ambiguous")

        def __eq__(self, other):
            return self

        def __ne__(self, other):
            return self

        __hash__ = None

    def __init__(self, *values):
        self.values = [self.NA() if value is None else value for value in values]

    def isna(self):
        return np.array([isinstance(value, self.NA) for value in self.values])

    def __array__(self, dtype=None, copy=None):
        out = np.empty(len(self.values), object)
        out[:] = self.values
        return out


class Frame(dict):
    """A table as pandas has it."""

    columns = property(lambda self: list(self))
    dtypes = None


def test_nullable_columns_of_pandas(monkeypatch):
    tiny.use(monkeypatch)
    table = Frame(
        whole=Nullable(1, None, 3, 4), yes=Nullable(True, False, None, True), text=Nullable("a", None, "b", "a"),
        label=Nullable(0, 1, 0, 1),
    )  # fmt: skip
    fitted = eq.fit([table, table], settings={**QUICK, "data": {"test": 0}})
    inputs = ("whole", "yes=false", "yes=true", "yes is missing", "text=a", "text=b", "text is missing")
    assert fitted.model.encoding.inputs == inputs
    assert fitted.model.encoding.features[0].mean == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"x": [1, "a", 2], "label": [0, 1, 0]}, "the table of owner 0, column 'x' holds values of several kinds"),
        ({"x": [1, 2], "label": [0, 1, 0]}, "the columns of the table of owner 0 are of different lengths"),
        ({"x": [object()] * 3, "label": [0, 1, 0]}, "owner 0, column 'x' holds"),
        (
            {"x": pl.Series([["a"]] * 3, dtype=pl.Array(pl.String, 1)), "label": [0, 1, 0]},
            "holds Array(String, shape=(1,))",
        ),
        ({"x": [[1], [2], [3]], "label": [0, 1, 0]}, "holds List(Int64), not numbers"),
    ],
)
def test_columns_that_are_none_are_one_sentence(table, sentence):
    with pytest.raises(InputError) as error:
        eq.fit([table], settings=QUICK)
    assert sentence in str(error.value)
    with pytest.raises(InputError, match="the settings say data is 'x'"):
        eq.fit([table | {"x": [1, 2, 3]}], settings={"data": "x"})
