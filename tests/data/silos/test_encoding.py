"""Statistics told and merged equal those of the pooled table; an encoding is a function of them alone."""

import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from equipoise.data.silos.agreement import agree
from equipoise.data.silos.encoding import Encoding
from equipoise.data.silos.statistics import Options, Statistics, statistics
from equipoise.errors import InputError

OPTIONS = Options(label="y")


def sent(frame, options=OPTIONS, site="a", **kwargs):
    """As it crosses: through JSON."""
    return Statistics.from_json(statistics(frame, options, site=site, **kwargs).to_json())


def agreed(frames, **kwargs):
    options = Options(label="y", **kwargs)
    return agree([sent(frame, options, f"silo {i}") for i, frame in enumerate(frames)], options)


def with_labels(columns):
    n = len(next(iter(columns.values())))
    return pl.DataFrame({**columns, "y": [f"class {i % 2}" for i in range(n)]})


centres = st.sampled_from([0.0, 1.0, -3e4, 1e9, 1e15])
scales = st.sampled_from([1.0, 1e-3, 1e6])


@settings(max_examples=10, deadline=None)
@example(centre=1e9, scale=1e-3, sizes=[3, 1, 40], seed=0)
@given(
    centre=centres,
    scale=scales,
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_merged_moments_are_those_of_the_pooled_rows(centre, scale, sizes, seed):
    rng = np.random.default_rng(seed)
    silos = [centre + scale * rng.normal(loc=i, size=n) for i, n in enumerate([*sizes, 2])]
    pooled = np.concatenate(silos)
    shifted = pooled - pooled[0]  # exact, so that the reference does not cancel either
    assume(shifted.any())
    encoding = agreed([with_labels({"x": x}) for x in silos])
    (feature,) = encoding.features
    assert feature.scale == pytest.approx(shifted.std(), rel=1e-9)
    assert feature.mean == pytest.approx(pooled[0] + shifted.mean(), rel=1e-15, abs=1e-9 * shifted.std())


def test_a_sum_of_squares_would_have_cancelled():
    x = 1e9 + np.linspace(-1e-3, 1e-3, 101)
    naive = math.sqrt(abs((x**2).mean() - x.mean() ** 2))
    (feature,) = agreed([with_labels({"x": x[:30]}), with_labels({"x": x[30:]})]).features
    true = (x - 1e9).std()
    assert abs(naive - true) > 0.5 * true
    assert feature.scale == pytest.approx(true, rel=1e-6)


def test_standardised_columns_have_mean_zero_and_variance_one_over_all_silos_but_not_in_each():
    rng = np.random.default_rng(0)
    frames = [with_labels({"x": rng.normal(i, 1 + i, size=50)}) for i in range(3)]
    encoding = agreed(frames)
    inputs = [encoding.apply(frame)[0] for frame in frames]
    assert np.concatenate(inputs).mean() == pytest.approx(0, abs=1e-12)
    assert np.concatenate(inputs).std() == pytest.approx(1)
    assert inputs[0].mean() < -0.3


def test_the_order_of_the_silos_does_not_matter():
    rng = np.random.default_rng(0)
    frames = [with_labels({"x": rng.normal(size=9), "c": list("abcabcabc"[i:] + "d" * i)}) for i in range(4)]
    told = [sent(frame, site=str(i)) for i, frame in enumerate(frames)]
    assert agree(told, OPTIONS) == agree(told[::-1], OPTIONS)


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, -7.0, 0.0])
def test_a_constant_column_is_seen_exactly(value):
    frames = [with_labels({"x": [value] * n, "z": [1.0, 2.0, *[3.0] * (n - 2)]}) for n in (3, 7, 11)]
    encoding = agreed(frames)
    assert [f.name for f in encoding.features] == ["z"]
    assert encoding.dropped == (("x", "it has the same value everywhere"),)


def test_a_column_constant_in_each_silo_but_not_over_all_is_kept():
    assert agreed([with_labels({"x": [1.0, 1.0]}), with_labels({"x": [2.0, 2.0]})]).features[0].mean == 1.5


def test_a_column_that_varies_in_held_out_rows_only_is_constant():
    frame = with_labels(
        {"x": [0.1, 0.1, 0.1, 5.0], "z": [1, 2, 3, 4], "c": ["a", "a", "a", "b"], "d": [None, None, None, 1]}
    )
    told = sent(frame, train=np.array([True, True, True, False]))
    assert [f.name for f in agree([told], OPTIONS).features] == ["z"]


def test_train_rows_fit_and_all_rows_are_checked():
    frame = pl.DataFrame({"x": [1.0, 3.0, 100.0], "c": ["u", "v", "w"], "y": ["p", "q", "r"]})
    told = sent(frame, train=np.array([True, True, False]))
    (x, c) = told.columns
    assert (told.rows, x.n, x.mean, x.m2, c.categories, told.label.categories) == (
        2, 2, 2.0, 2.0, ("u", "v"), ("p", "q", "r"),
    )  # fmt: skip
    bad = pl.DataFrame({"x": ["1", "3", "?", "oops"], "y": ["p", "q", "r", "r"]})
    with pytest.raises(InputError, match="data row 4: 'oops' is not a number"):
        statistics(bad, OPTIONS, train=np.array([True, True, True, False]))


def test_numbers_dates_names_and_missing_cells():
    one = pl.DataFrame(
        {
            "age": ["20", " 40 ", "NA", ""],
            "sex": ["F", "M", None, "?"],
            "when": ["2020-01-01", "2020-01-03T12:00", None, "2020-01-02 00:00:00"],
            "flag": ["True", "false", "false", "TRUE"],
            "y": ["no", "yes", "no", "yes"],
        }
    )
    other = pl.DataFrame({"age": [60.0], "sex": ["D"], "when": ["2020-01-02"], "flag": [True], "y": ["no"]})
    encoding = agreed([one, other], indicators=True)
    assert encoding.inputs == (
        "age", "age is missing", "sex=D", "sex=F", "sex=M", "sex is missing", "when", "when is missing",
        "flag=false", "flag=true",
    )  # fmt: skip
    inputs, labels = encoding.apply(one)
    s, d = np.std([20, 40, 60]), np.std([0, 2.5, 1, 1])
    np.testing.assert_allclose(
        inputs,
        [
            [-20 / s, 0, 0, 1, 0, 0, -1.125 / d, 0, 0, 1],
            [0, 0, 0, 0, 1, 0, 1.375 / d, 0, 1, 0],
            [0, 1, 0, 0, 0, 1, 0, 1, 1, 0],
            [0, 1, 0, 0, 0, 1, -0.125 / d, 0, 0, 1],
        ],
        atol=1e-12,
    )
    assert labels is not None
    assert labels.tolist() == [0, 1, 0, 1]
    assert agreed([one, other]).inputs == tuple(
        n for n in encoding.inputs if n not in ("age is missing", "when is missing")
    )


def test_new_rows_unknown_categories_missing_label_extra_columns_other_order():
    frames = [
        with_labels({"x": [1.0, 3.0], "c": ["a", "b"]}),
        with_labels({"x": [1.0, 3.0], "c": ["b", "b"]}),
    ]
    encoding = agreed(frames)
    inputs, labels = encoding.apply(pl.DataFrame({"c": ["z", None, "b"], "more": [1, 2, 3], "x": [2.0, None, 3.0]}))
    assert labels is None
    assert inputs.tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert encoding.apply_inputs(pl.DataFrame({"c": ["a"], "x": [2], "y": ["never seen"]})).tolist() == [[0, 1, 0]]
    with pytest.raises(InputError, match=r"^new\.csv lacks the column 'c', which the model was trained with$"):
        encoding.apply(pl.DataFrame({"x": [2.0]}), file="new.csv")
    with pytest.raises(
        InputError, match=r"^new\.csv, column 'x', data row 2: 'much' is not a number; correct the cell$"
    ):
        encoding.apply(pl.DataFrame({"x": ["2", "much"], "c": ["a", "a"]}), file="new.csv")
    with pytest.raises(InputError, match=r"column 'x', data row 1: inf is infinite"):
        encoding.apply(pl.DataFrame({"x": [math.inf], "c": ["a"]}))
    with pytest.raises(
        InputError, match=r"column 'y', data row 2: 'class 7' is not one of the classes 'class 0', 'class 1'"
    ):
        encoding.apply(pl.DataFrame({"x": [1, 1], "c": ["a", "a"], "y": ["class 1", "class 7"]}))


def test_a_column_that_is_empty_in_one_silo_takes_its_kind_from_the_others():
    encoding = agreed([with_labels({"x": [None, None], "z": [None, "?"]}), with_labels({"x": [1, 2], "z": ["a", "b"]})])
    assert [f.kind for f in encoding.features] == ["number", "text"]
    encoding = agreed([with_labels({"x": [None, None], "z": [1, 2]}), with_labels({"x": ["", "NA"], "z": [1, 2]})])
    assert encoding.dropped == (("x", "no silo has a value there"),)


def test_integers_may_be_names_and_identifiers_go():
    n = 30
    frame = with_labels({"code": [i % 3 for i in range(n)], "id": [f"p{i}" for i in range(n)], "x": range(n)})
    assert [f.kind for f in agreed([frame, frame]).features] == ["number", "number"]
    assert agreed([frame]).notes == (
        "column 'id' dropped: it looks like an identifier (too many different texts); "
        "name it in data.categorical to keep it",
    )
    assert sent(frame).columns[1].categories is None  # the values do not cross
    assert "p7" not in statistics(frame, OPTIONS).to_json()
    kept = agreed([frame], categorical=("code", "id"), drop=("x",))
    assert [(f.name, len(f.categories)) for f in kept.features] == [("code", 3), ("id", n)]
    written_elsewhere = frame.with_columns(pl.col("code").cast(pl.Float64).cast(pl.String))  # "1.0"
    assert kept.apply(written_elsewhere)[0].tolist() == kept.apply(frame)[0].tolist()


def test_too_many_categories_in_all_silos_together():
    frames = [with_labels({"c": [f"{i} {j % 4}" for j in range(12)], "x": range(12)}) for i in range(3)]
    assert [f.name for f in agreed(frames, max_categories=11).features] == ["x"]
    assert [f.name for f in agreed(frames, max_categories=12).features] == ["c", "x"]


def test_rare_categories_are_not_told():
    frame = with_labels({"c": ["common"] * 5 + ["rare"]})
    told = sent(frame, Options(label="y", min_count=2))
    assert told.columns[0].categories == ("common",)
    assert agree([told], Options(label="y", min_count=2)).inputs == ("c=common",)  # against all others: not constant


@pytest.mark.parametrize(
    ("shows", "floor", "rows"),
    [("c=b", "min_count", 4), ("x", "min_count", 4), ("m is missing", "min_count", 4), ("m", "min_rows", 8)],
)
def test_what_as_many_rows_have_as_are_asked_for_shows_and_what_one_less_has_does_not(shows, floor, rows):
    m = [None] * 4 + list(range(8))
    frame = with_labels({"c": ["a"] * 8 + ["b"] * 4, "x": [0.0] * 8 + [1.0, 2.0, 3.0, 4.0], "m": m})
    encoding = agreed([frame], indicators=True)
    everyone = np.ones(len(frame), bool)
    values = []
    for least in (rows, rows + 1):
        inputs, _ = encoding.apply(frame)
        encoding.hide_few(inputs, encoding.filled(frame), everyone, **{"min_count": 1, "min_rows": 1, floor: least})
        values.append(len(np.unique(inputs[:, encoding.inputs.index(shows)])))
    assert values[0] > 1
    assert values[1] == 1


def test_the_task_is_inferred_by_the_documented_rule():
    def task(*labels, **kwargs):
        return agreed([pl.DataFrame({"x": np.arange(len(y)) % 3, "y": y}) for y in labels], **kwargs).task

    assert task(["a", "b"], ["b", "c"]) == "classification"
    assert task([True, False]) == "classification"
    assert task([0, 1, 1], [2, 0, 0]) == "classification"
    assert task([0.0, 1.0, 1.0]) == "classification"
    assert task([0.5, 1.0, 1.0]) == "regression"
    assert task(range(20)) == "classification"
    assert task(range(21)) == "regression"
    assert task(range(15), range(10, 30)) == "regression"  # each silo alone would say classification
    assert task([0, 1, 1], [2, 0, 0], task="regression") == "regression"
    assert task(range(30), task="classification") == "classification"


def test_class_names_and_their_order():
    encoding = agreed([pl.DataFrame({"x": [1, 2, 3], "y": ["10", "9", "2.0"]}), pl.DataFrame({"x": [1], "y": [11]})])
    assert encoding.target.classes == ("2", "9", "10", "11")
    assert encoding.decode(np.eye(4)).to_list() == [2, 9, 10, 11]
    assert agreed([pl.DataFrame({"x": [1, 2], "y": ["b", "a"]})]).decode(np.eye(2)).to_list() == ["a", "b"]


def test_a_regression_label_is_standardised_and_given_back():
    y = np.array([1e5, 2e5, 4e5])
    frame = pl.DataFrame({"x": [1, 2, 3], "y": y + 0.5})
    encoding = agreed([frame])
    _, labels = encoding.apply(frame)
    assert labels is not None
    assert labels.mean() == pytest.approx(0)
    np.testing.assert_allclose(encoding.decode(labels[:, None]).to_numpy(), y + 0.5)
    plain = agreed([frame], scale_label=False)  # centred, in its own unit
    np.testing.assert_allclose(plain.apply(frame)[1], y - y.mean(), rtol=1e-6)
    np.testing.assert_allclose(plain.decode(plain.apply(frame)[1][:, None]).to_numpy(), y + 0.5)


def test_columns_of_any_name():
    names = ["*", "^.*$", "row", "0", "count", "a\nb", "-", "literal"]
    frame = with_labels({name: [i, i + 1, i + 3] for i, name in enumerate(names)})
    assert agreed([frame]).apply(frame)[0].shape == (3, len(names))


def test_the_encoding_survives_json():
    frame = with_labels(
        {
            "x": [1.0, None, 1 / 3],
            "c": ["ä", None, "\"'\n"],
            "d": ["2020-01-01", "2021-01-01", None],
            "k": [1] * 3,
        }
    )
    encoding = agreed([frame], indicators=True)
    assert Encoding.from_json(encoding.to_json()) == encoding
    json.loads(encoding.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "target": 3}', "[" * 100_000])
def test_what_is_no_encoding(text):
    with pytest.raises(InputError, match="this is not an encoding"):
        Encoding.from_json(text)


def test_an_encoding_with_a_wrong_field():
    good = json.loads(agreed([with_labels({"x": [1.0, 2.0, 3.0], "c": ["a", "b", "b"]})]).to_json())
    (x, c), target = good["features"], good["target"]
    assert Encoding.from_json(json.dumps(good)).inputs
    for wrong in (
        {**good, "features": []},
        {**good, "features": [x, x]},
        {**good, "task": "regression"},
        {**good, "missing": [3]},
        {**good, "secret": 1},
        {**good, "target": {**target, "scale": 0.0}},
        {**good, "target": {**target, "classes": ["a", "a"]}},
        *({**good, "features": [{**x, **bad}, c]} for bad in (
            {"kind": "row"}, {"mean": math.nan}, {"scale": 0.0}, {"scale": "1"}, {"name": None}, {"missing": 1},
            {"shape": [0]}, {"kind": "array"}, {"categories": ["a", "a"]}, {"extra": 1},
        )),
    ):  # fmt: skip
        with pytest.raises(InputError, match="this is not an encoding"):
            Encoding.from_json(json.dumps(wrong))


def test_what_is_no_statistics():
    good = json.loads(sent(with_labels({"x": [1.0, 2.0], "c": ["a", "b"]})).to_json())
    column = good["columns"][0]
    for wrong in (
        {**good, "rows": -1},
        {**good, "rows": "many"},
        {**good, "site": 3},
        {**good, "columns": None},
        {**good, "secret": 1},
        *({**good, "columns": [{**column, **bad}]} for bad in (
            {"m2": -1.0}, {"mean": math.nan}, {"m2": math.inf}, {"n": 1.5}, {"kind": "row"},
            {"categories": [3]}, {"mean": "0"}, {"rare": 1}, {"name": None}, {"extra": 1},
        )),
        {name: good[name] for name in ("site", "rows")},
    ):  # fmt: skip
        with pytest.raises(InputError, match="statistics"):
            Statistics.from_json(json.dumps(wrong))
    for text in ("", "no", "3", "[" * 100_000):
        with pytest.raises(InputError, match="statistics"):
            Statistics.from_json(text)


def said(frames, **kwargs):
    with pytest.raises(InputError) as error:
        agreed(frames, **kwargs)
    return str(error.value)


def test_disagreements_name_both_silos():
    base = with_labels({"x": [1, 2], "z": [1, 2]})
    assert said([base, base.drop("z")]) == ("silo 1 lacks the column 'z', which silo 0 has; give all silos the same")
    assert said([base.drop("x"), base]).startswith("silo 0 lacks the column 'x', which silo 1 has")
    assert said([base, with_labels({"x": ["?", "low"], "z": [1, 2]})]) == (
        "column 'x' holds number in silo 0 (data row 1) but text in silo 1 (data row 2); "
        "correct the cells, or set data.categorical = ['x']"
    )
    named = agreed([base, with_labels({"x": ["?", "low"], "z": [1, 2]})], categorical=["x"])
    assert named.features[0].categories == ("1", "2", "low")
    dated = with_labels({"x": ["2020-01-01", "2020-01-02"], "z": [1, 2]})
    assert said([base, dated]).startswith("column 'x' holds date in silo 1 (data row 1) but number in silo 0")
    with pytest.raises(InputError, match="two silos are called 'a'"):
        agree([sent(base), sent(base)], OPTIONS)
    with pytest.raises(InputError, match="at least one"):
        agree([], OPTIONS)


def test_labels_that_cannot_be_learnt():
    def labelled(*y):
        return pl.DataFrame({"x": np.arange(len(y)), "y": y})

    assert said([labelled("a", "a"), labelled("a")]).startswith("the label 'y' is 'a' in every row of every silo")
    assert said([labelled(3, 3)]).startswith("the label 'y' is '3' in every row of every silo")
    assert said([labelled(2.5, 2.5)]).startswith("the label 'y' is 2.5 in every row of every silo")
    assert agreed([labelled("a", "a"), labelled("b")]).target.classes == ("a", "b")
    assert said([labelled(1, 2), labelled("one", "two")]).startswith("column 'y' holds number in silo 0")
    assert said([labelled("a", "b")], task="regression").endswith(
        "column 'y', data row 1: the label is of kind text, but regression needs number"
    )
    assert said([labelled("1", "2", "three")]).endswith(
        "column 'y', data row 3: 'three' is not a number although most of the column is; "
        "correct the cell, or set data.task = 'classification'"
    )
    assert "the label is of kind date" in said([labelled("2020-01-01", "2020-01-02")])
    assert said([labelled(*(f"n{i}" for i in range(25)))]).endswith(
        "has 25 different texts as labels; choose another label, or set data.task = 'classification' if these are "
        "classes"
    )
    assert said([labelled("a", "b")], task="ranking").startswith("task is 'ranking'")
    assert said([pl.DataFrame({"y": ["a", "b"]})]) == "no column is left to learn from (only the label was given)"
    assert "no column is left" in said([with_labels({"x": [1, 1]})])


def test_values_out_of_range():
    assert "too large to standardise" in said([with_labels({"x": [1e300, -1e300]})])
    assert "differs too widely" in said([with_labels({"x": [1e300, 1e300]}), with_labels({"x": [-1e300, -1e300]})])
    assert said([with_labels({"x": [[1], [2]]})]).endswith(
        "holds List(Int64), not numbers, dates or names; set data.drop = ['x']"
    )
    assert said([with_labels({"x": [1.0, 2.0]})], drop=["z"]).startswith("silo 0 has no column 'z', which drop names")
    assert "names the label" in said([with_labels({"x": [1.0, 2.0]})], drop=["y"])
