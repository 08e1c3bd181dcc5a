"""`eq.fit`: tables in memory, as scikit-learn's users expect them."""

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import InputError
from equipoise.experiment import records
from equipoise.report import numbers, wording
from tests.searches import tiny

QUICK = {"run": {"rounds": 8}, "model": {"l2": 0.01}}


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
