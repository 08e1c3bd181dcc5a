"""Numbers and dates are read as their owners wrote them, or the sentence says which cell can be read in two ways."""

from datetime import UTC, date, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise import artifact, models
from equipoise.data.silos import SiloWarning, open_site, read, scan
from equipoise.data.silos.agreement import agree
from equipoise.data.silos.cells import open_table
from equipoise.data.silos.encoding import Encoding
from equipoise.data.silos.statistics import Options, Statistics, statistics
from equipoise.errors import InputError
from tests.searches import tiny

LABELS = ["no", "yes"]
REMEDY = "set data.decimal = '.' or ','"


def german(x, digits=2):
    return f"{x:,.{digits}f}".translate(str.maketrans(",.", ".,"))


def write(folder, **owners):
    """A CSV for each owner, of columns of texts; the label is added."""
    for name, columns in owners.items():
        rows = len(next(iter(columns.values())))
        label = [LABELS[i % 2] for i in range(rows)]
        lines = [
            ";".join([*columns, "label"]),
            *(";".join(cells) for cells in zip(*columns.values(), label, strict=True)),
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def numbers(found, owner=0, column=0):
    """The values that a federation has for a column, before they were standardised."""
    feature = found.encoding.features[column]
    size = found.train.sizes[owner]
    return np.asarray(found.train.inputs)[owner, :size, column] * feature.scale + feature.mean


def said(call, *arguments, **options):
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("1.5", 1.5, None), ("1,5", None, 1.5), ("1,500", 1500, 1.5), ("1.500", 1.5, 1500), ("0,500", None, 0.5),
        ("-0.125", -0.125, None), ("1.234.567", None, 1234567), ("1,234,567", 1234567, None), ("1,234.5", 1234.5, None),
        ("1.234,5", None, 1234.5), ("1 500", 1500, 1500), ("1\u202f500,5", None, 1500.5), ("1'500.5", 1500.5, None),
        ("1\u2019500", 1500, 1500), ("\u22123", -3, -3), ("12%", 0.12, 0.12), ("12,5 %", None, 0.125),
        ("7e2", 700, 700),
        ("1,5e2", None, 150), (",5", None, 0.5), (".5", 0.5, None), ("12,34,56", None, None), ("1.2.3", None, None),
        ("abc", None, None), ("%", None, None), ("1,2345", None, 1.2345), ("01,500", None, 1.5),
    ],
)  # fmt: skip
def test_a_cell_read_with_a_point_and_with_a_comma(text, point, comma):
    table = open_table(pl.DataFrame({"x": [text]}), "file", [])
    assert table.collect(pl.col("0 number"), pl.col("0 comma")).row(0) == (point, comma)


DAY = date(2024, 5, 6)


@pytest.mark.parametrize(
    ("text", "day_first", "month_first"),
    [
        ("2024-05-06", DAY, DAY), ("2024/5/6", DAY, DAY), ("06.05.2024", DAY, date(2024, 6, 5)),
        ("06/05/2024", DAY, date(2024, 6, 5)), ("31.01.2024", date(2024, 1, 31), None),
        ("01/31/2024", None, date(2024, 1, 31)), ("6 May 2024", DAY, DAY), ("06-MAY-2024", DAY, DAY),
        ("06may2024", DAY, DAY), ("May 6, 2024", DAY, DAY), ("may 06 2024 1:00 pm", *[datetime(2024, 5, 6, 13)] * 2),
        ("2024-02-30", None, None), ("2024-05-06T10:00:00Z", datetime(2024, 5, 6, 10), datetime(2024, 5, 6, 10)),
        ("2024-05-06T10:00:00+02:00", datetime(2024, 5, 6, 8), datetime(2024, 5, 6, 8)),
        ("2024-05-06 10:00:00.25-0130", *[datetime(2024, 5, 6, 11, 30, 0, 250000)] * 2),
        ("06.05.2024 23:59", datetime(2024, 5, 6, 23, 59), datetime(2024, 6, 5, 23, 59)),
        ("5/6/2024 12:30:15 AM", datetime(2024, 6, 5, 0, 30, 15), datetime(2024, 5, 6, 0, 30, 15)),
        ("5/6/2024 1:00 pm", datetime(2024, 6, 5, 13), datetime(2024, 5, 6, 13)),
        ("Mon, 06 May 2024 10:00:00 GMT", *[datetime(2024, 5, 6, 10)] * 2), ("Monday 6.5.2024", DAY, date(2024, 6, 5)),
        ("Mon May 06 2024", DAY, DAY), ("Monaco 6.5.2024", None, None),
        ("2024-05-06T24:00", None, None), ("1.500", None, None), ("10:30", None, None),
    ],
)  # fmt: skip
def test_a_cell_read_with_the_day_first_and_with_the_month_first(text, day_first, month_first):
    def days(when):
        if when is None:
            return None
        moment = when if isinstance(when, datetime) else datetime(when.year, when.month, when.day)
        return moment.replace(tzinfo=UTC).timestamp() / 86400

    table = open_table(pl.DataFrame({"x": [text]}), "file", [])
    found = table.collect(pl.col("0 date"), pl.col("0 month")).row(0)
    assert found == (days(day_first), days(month_first))


@given(st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 2)), min_size=3, max_size=20, unique=True))
@settings(deadline=None, max_examples=10 if tiny.LONGER == 1 else 25)
def test_what_a_german_program_wrote_is_what_it_was(values):
    frame = pl.DataFrame(
        {"x": [german(x) for x in values], "y": ["a", "b"] * (len(values) // 2) + ["a"] * (len(values) % 2)}
    )
    found = statistics(frame, Options(label="y"))
    plain = statistics(frame.with_columns(x=pl.Series(values)), Options(label="y"))
    (one,), (other,) = found.columns, plain.columns
    assert (one.kind, one.reading, one.n) == ("number", ",", other.n)
    assert one.mean == pytest.approx(other.mean, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    "written", [lambda x: f"{x:.2f}", german, lambda x: f"{x:,.2f}".replace(",", " ").replace(".", ",")]
)
def test_a_federation_is_the_same_however_it_is_written(tmp_path, written):
    rng = np.random.default_rng(0)
    values = {name: rng.normal(1000, 800, size=12).round(2) for name in "ab"}
    found = read(write(tmp_path, **{name: {"x": [written(v) for v in x]} for name, x in values.items()}), test=0)
    assert [f.kind for f in found.encoding.features] == ["number"]
    for i, x in enumerate(values.values()):
        np.testing.assert_allclose(numbers(found, i), x, rtol=1e-12)


def test_owners_may_write_in_different_ways(tmp_path):
    """Each is certain by itself: a hospital with commas beside one with points."""
    a, b = ["1,5", "2,25", "3,5"], ["1.5", "2.25", "3.5"]
    found = read(write(tmp_path, a={"x": a}, b={"x": b}), test=0)
    np.testing.assert_allclose(numbers(found, 0), [1.5, 2.25, 3.5])
    np.testing.assert_allclose(numbers(found, 1), [1.5, 2.25, 3.5])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["1,5", "2,5"], ["1,500", "2,250"], [1.5, 2.25]),
        (["1.5", "2.5"], ["1,500", "2,250"], [1500, 2250]),
        (["1.5", "2.5"], ["1.500", "2.250"], [1.5, 2.25]),
        (["1,5", "2,5"], ["1.500", "2.250"], [1500, 2250]),
    ],
)
def test_an_owner_whose_cells_can_be_read_in_two_ways_follows_the_others(tmp_path, first, second, expected):
    found = read(write(tmp_path, a={"x": first}, b={"x": second}), test=0)
    np.testing.assert_allclose(numbers(found, 1), expected)


def test_a_column_that_can_be_read_in_two_ways_follows_its_file(tmp_path):
    found = read(write(tmp_path, a={"x": ["1,500", "2,250"], "z": ["0,5", "0,7"]}), test=0)
    np.testing.assert_allclose(numbers(found), [1.5, 2.25])


def test_a_point_in_a_file_of_points_is_one_whatever_others_write(tmp_path):
    """A column of three decimals is nothing to stop for."""
    points, commas = {"x": ["1.234", "2.345"], "z": ["0.5", "0.7"]}, {"x": ["1,2", "2,3"], "z": ["0,5", "0,7"]}
    found = read(write(tmp_path, a=points, b=commas), test=0)
    np.testing.assert_allclose(numbers(found, 0), [1.234, 2.345])


def test_plain_numbers_of_three_decimals_are_plain_numbers(tmp_path):
    np.testing.assert_allclose(numbers(read(write(tmp_path, a={"x": ["1.234", "2.345"]}), test=0)), [1.234, 2.345])


def test_where_nothing_decides_the_cell_is_named_and_the_setting(tmp_path):
    write(tmp_path, a={"x": ["1", "2"]}, b={"x": ["7", "1,500"]})
    where = "b.csv, column 'x', data row 2: the cell can be read with a decimal point or with a decimal comma"
    assert said(read, tmp_path, test=0) == f"{where}, and no other cell decides; {REMEDY}"
    np.testing.assert_allclose(numbers(read(tmp_path, test=0, decimal=","), 1), [7, 1.5])
    np.testing.assert_allclose(numbers(read(tmp_path, test=0, decimal="."), 1), [7, 1500])


def test_thousands_that_contradict_the_same_column_elsewhere_are_not_guessed(tmp_path):
    write(tmp_path, a={"x": ["1,5", "2,5"]}, b={"x": ["1,500", "2,250"], "z": ["0.5", "0.7"]})
    (tmp_path / "a.csv").write_text("x;z;label\n1,5;3;no\n2,5;4;yes\n")
    assert said(read, tmp_path, test=0).startswith("b.csv, column 'x', data row 1: the cell can be read with")


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (["1,5", "2,5", "3.5"], "'3.5' is not written with a decimal comma although other cells of the column are"),
        (["1,5", "2,5", "high"], "'high' is not a number although most of the column is"),
        (["31.01.2024", "01.02.2024", "soon"], "'soon' is not a date although most of the column is"),
        (
            ["31/01/2024", "30/01/2024", "01/31/2024"],
            "'01/31/2024' is not written with the day first although other cells",
        ),
        (["31.01.24", "01.02.24", "02.02.24"], "data row 1: '31.01.24' has a year of two digits"),
        (["31-Jan-24", "01-Feb-24", "2 March 24"], "data row 1: '31-Jan-24' has a year of two digits"),
        (
            ["$1,200", "$5.50", "$7"],
            "data row 1: '$1,200' is a number with something beside it; write the number alone",
        ),
        (["1.200,5 €", "5,50 EUR", "b"], "data row 1: '1.200,5 €' is a number with something beside it"),
        (["(5.5)", "7.5", "$8", "b"], "data row 1: '(5.5)' is a number with something beside it"),
        (["12%", "13%", "14"], "data row 3: '14' has no percent sign although cells above have one"),
    ],
)
def test_a_column_that_is_written_in_several_ways_is_a_sentence(tmp_path, cells, sentence):
    told = said(read, write(tmp_path, a={"x": cells}), test=0)
    assert told.startswith("a.csv, column 'x', data row ")
    assert sentence in told
    assert "set data." in told


def test_a_setting_that_the_cells_contradict_is_a_sentence(tmp_path):
    write(tmp_path, a={"x": ["1.5", "2.5"]})
    told = said(read, tmp_path, test=0, decimal=",")
    assert told == (
        "a.csv, column 'x', data row 1: '1.5' is not a number with a decimal comma; correct the cell, or leave out "
        "data.decimal = ','"
    )
    assert said(read, tmp_path, decimal=";") == "decimal is ';'; give 'auto', '.' or ','"
    assert said(read, tmp_path, dates="iso") == "dates is 'iso'; give 'auto', 'day-first' or 'month-first'"


def test_names_with_a_number_in_them_are_names(tmp_path):
    cells = ["$5", "ward (5)", "5 mg", "EUR", "room $", "6 mg"]
    assert len(read(write(tmp_path, a={"x": cells}), test=0).encoding.inputs) == 6


def test_names_that_look_like_numbers_stay_names_if_asked(tmp_path):
    found = read(write(tmp_path, a={"x": ["1,5", "1.5", "12%"]}), test=0, categorical=["x"])
    assert found.encoding.inputs == ("x=1,5", "x=1.5", "x=12%")


def test_dates_follow_the_owner_that_is_certain(tmp_path):
    certain, open_ = ["13/01/2024", "02/01/2024"], ["05/01/2024", "06/01/2024"]
    epoch = date(1970, 1, 1)
    found = read(write(tmp_path, a={"x": certain}, b={"x": open_}), test=0)
    assert found.encoding.features[0].kind == "date"
    np.testing.assert_allclose(numbers(found, 1), [(date(2024, 1, d) - epoch).days for d in (5, 6)])
    (tmp_path / "a.csv").write_text("x;label\n01/13/2024;no\n01/02/2024;yes\n")
    np.testing.assert_allclose(numbers(read(tmp_path, test=0), 1), [(date(2024, m, 1) - epoch).days for m in (5, 6)])
    (tmp_path / "a.csv").unlink()
    assert said(read, tmp_path, test=0).endswith("set data.dates = 'day-first' or 'month-first'")
    found = read(tmp_path, test=0, dates="day-first")
    np.testing.assert_allclose(numbers(found), [(date(2024, 1, d) - epoch).days for d in (5, 6)])


def test_dates_with_points_have_the_day_first(tmp_path):
    found = read(write(tmp_path, a={"x": ["05.01.2024", "06.01.2024"]}), test=0)
    assert numbers(found)[0] == (date(2024, 1, 5) - date(1970, 1, 1)).days


def test_percent(tmp_path):
    write(tmp_path, a={"x": ["12%", "50 %", "0"]}, b={"x": ["1,5%", "3%", "4%"]})
    np.testing.assert_allclose(numbers(read(tmp_path, test=0), 1), [0.015, 0.03, 0.04])
    np.testing.assert_allclose(numbers(read(tmp_path, test=0, percent="number"), 1), [1.5, 3, 4])
    write(tmp_path, b={"x": ["12", "13", "14"]})
    assert said(read, tmp_path, test=0).startswith(
        "column 'x' has percent signs in a.csv (data row 1) and none in b.csv"
    )
    np.testing.assert_allclose(numbers(read(tmp_path, test=0, percent="share"), 1), [12, 13, 14])


def test_a_label_with_decimal_commas_is_a_quantity(tmp_path):
    rng = np.random.default_rng(1)
    values = {name: rng.normal(5, 2, size=30).round(3) for name in "ab"}
    for name, y in values.items():
        rows = "".join(f"{i};{german(v, 3)}\n" for i, v in enumerate(y))
        (tmp_path / f"{name}.csv").write_text("x;price\n" + rows)
    found = read(tmp_path, "price", test=0)
    target = found.encoding.target
    assert found.task == "regression"
    np.testing.assert_allclose(np.asarray(found.train.labels)[1] * target.scale + target.mean, values["b"], rtol=1e-9)


def test_classes_with_decimal_commas_are_whole_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("x;y\n1;0,0\n2;1,0\n3;1,0\n")
    assert read(tmp_path, "y", test=0).encoding.target.classes == ("0", "1")


def two_owners(folder):
    """One is certain, the other is not: its split, its statistics and its rows have to follow the first."""
    rng = np.random.default_rng(2)
    write(folder, a={"x": [german(v) for v in rng.normal(2, 1, 20)], "when": ["13/01/2024", "05/06/2024"] * 10})
    return write(
        folder, b={"x": [german(v, 3) for v in rng.uniform(1, 9, 20)], "when": ["05/01/2024", "07/06/2024"] * 10}
    )


def test_sites_that_exchange_json_come_to_the_same(tmp_path):
    options = Options()
    sites = [open_site(two_owners(tmp_path) / f"{name}.csv", options) for name in "ab"]
    told = [site.statistics(options).to_json() for site in sites]
    answer = agree([Statistics.from_json(text) for text in told], options).to_json()
    found = read(tmp_path)
    assert Encoding.from_json(answer) == found.encoding
    assert (found.encoding.features[0].seen, found.encoding.features[1].seen) == ((",",), ("day-first",))
    for i, site in enumerate(sites):
        (inputs, _), _ = site.encode(Encoding.from_json(answer))
        np.testing.assert_array_equal(inputs, np.asarray(found.train.inputs)[i, : len(inputs)])
        assert abs(inputs).max() < 6  # nobody's commas became thousands


def test_what_silos_settle_is_what_encoding_settles(tmp_path):
    """The means of the agreement are those of the numbers that rows become."""
    found = read(two_owners(tmp_path), test=0)
    rows = np.concatenate([np.asarray(found.train.inputs)[i] for i in range(2)])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(rows.std(0), 1, atol=1e-9)


def saved(folder, found):
    model = models.linear(found.encoding.shape[0], found.encoding.outputs)
    artifact.save(
        folder / "m.safetensors",
        np.ones(2 * (found.encoding.shape[0] + 1)),
        model,
        found.encoding,
        loss="cross_entropy",
    )
    return folder / "m.safetensors"


def test_predictions_read_a_new_file_as_its_owner_wrote_it(tmp_path):
    (tmp_path / "silos").mkdir()
    model = saved(tmp_path, read(two_owners(tmp_path / "silos")))
    new = tmp_path / "new.csv"
    texts = [
        "x;when\n1,500;05/01/2024\n",
        "x,when\n1.5,2024-01-05\n",
        "when\tx\n5 Jan 2024\t1.50\n",
        "x;when\r\r\n1,5;05.01.2024\r\r\n",
    ]
    answers = []
    for text in texts:
        new.write_bytes(text.encode())
        answers.append(artifact.predict(model, new).rows())
    assert answers == [answers[0]] * 4
    new.write_text("x;when\n1.500;05/01/2024\n")
    assert artifact.predict(model, new, decimal=".").rows() == answers[0]
    assert said(artifact.predict, model, new, decimal="-").startswith("decimal is '-'; give")


def test_predictions_where_nothing_decides_are_a_sentence(tmp_path):
    (tmp_path / "silos").mkdir()
    model = saved(tmp_path, read(write(tmp_path / "silos", a={"x": ["1", "2", "3"]})))
    (tmp_path / "new.csv").write_text("x\n1,500\n")
    told = said(artifact.predict, model, tmp_path / "new.csv")
    assert told.startswith("new.csv, column 'x', data row 1: the cell can be read with")
    (tmp_path / "new.csv").write_text("x\n12%\n")
    told = said(artifact.predict, model, tmp_path / "new.csv")
    assert told.startswith("new.csv, column 'x', data row 1: '12%' has a percent sign, and in training the column had")


def test_a_percent_column_needs_its_signs_at_prediction(tmp_path):
    found = read(write(tmp_path, a={"x": ["12%", "13%", "0%"]}), test=0)
    for column in (["0.5"], [0.5]):
        told = said(found.encoding.apply_inputs, pl.DataFrame({"x": column}))
        assert "has no percent sign, and in training the column had them" in told
    np.testing.assert_allclose(
        found.encoding.apply_inputs(pl.DataFrame({"x": ["0"]})), found.encoding.apply_inputs(pl.DataFrame({"x": [0]}))
    )


def test_tables_in_memory_are_read_alike(monkeypatch):
    """`eq.fit` goes the same way: texts with commas are numbers, and follow each other."""
    tiny.use(monkeypatch)
    rng = np.random.default_rng(3)
    x = rng.normal(5, 1, size=(2, 20))
    tables = [{"x": [german(v) for v in x[0]], "y": x[0] > 5}, {"x": [german(v, 3) for v in x[1]], "y": x[1] > 5}]
    fitted = eq.fit(tables, "y", settings={"run": {"rounds": 3}})
    assert fitted.model.encoding.inputs == ("x",)
    texts, numbers = (fitted.predict_proba({"x": x}) for x in (["2,5", "7,5"], [2.5, 7.5]))
    np.testing.assert_array_equal(texts, numbers)
    assert abs(texts[0, 0] - texts[1, 0]) > 1e-3


ROWS = [[str(i), f"{i / 4}", LABELS[i % 2]] for i in range(1, 9)]


def text_of(end, separator=",", header=("a", "b", "y")):
    return end.join(separator.join(cells) for cells in [header, *ROWS]) + end


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n", "\r", "\r\r\r\n"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_line_ends_and_separators_of_all_kinds(tmp_path, end, separator):
    (tmp_path / "a.csv").write_bytes(text_of(end, separator).encode())
    assert scan(tmp_path / "a.csv").collect().rows() == [tuple(row) for row in ROWS]


@pytest.mark.parametrize("before", ["\n", "\r\n\r\n", "  \n\t\n", "\ufeff\n", "\ufeff"])
def test_blank_lines_before_the_header_are_no_header(tmp_path, before):
    (tmp_path / "a.csv").write_bytes((before + text_of("\n")).encode())
    assert scan(tmp_path / "a.csv").collect().columns == ["a", "b", "y"]


def test_a_line_end_of_another_kind_in_the_middle_ends_a_line(tmp_path):
    whole = text_of("\n").splitlines()
    (tmp_path / "a.csv").write_bytes("\n".join(whole[:4]).encode() + b"\r" + "\r\n".join(whole[4:]).encode())
    assert scan(tmp_path / "a.csv").collect().rows() == [tuple(row) for row in ROWS]
    (tmp_path / "a.csv").write_bytes(b"a,b,y\n1,\r2,no\n3,4,yes\n")
    assert said(scan, tmp_path / "a.csv") == "a.csv, data row 1 has 2 cells but the header has 3"


def test_the_separator_that_excel_names(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfsep=|\r\n" + text_of("\r\n", "|", ("a", "b;c", "y")).encode())
    assert scan(tmp_path / "a.csv").collect().columns == ["a", "b;c", "y"]


def test_a_separator_in_a_name_or_in_quotes_is_not_the_separator(tmp_path):
    (tmp_path / "a.csv").write_text('"a;b",c|d\n"1;2",3\n4,"5|6"\n')
    assert scan(tmp_path / "a.csv").collect().rows() == [("1;2", "3"), ("4", "5|6")]
    (tmp_path / "a.csv").write_text("a|b,c\n1|2,3\n")
    assert said(scan, tmp_path / "a.csv") == "a.csv can be read as separated by ',' or by '|'; set data.separator"
    assert scan(tmp_path / "a.csv", separator="|").collect().rows() == [("1", "2,3")]
    (tmp_path / "a.csv").write_text("x\n1,5\n2,5\n")
    assert scan(tmp_path / "a.csv").collect().rows() == [("1,5",), ("2,5",)]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_a_table_is_dropped_with_a_warning(tmp_path, name):
    """Of the owner that has one; the others need none."""
    (tmp_path / "a.csv").write_text(f"{name},x,y\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(6)))
    (tmp_path / "b.csv").write_text("x,y,,\n" + "".join(f"{i % 3},{i % 2},,\n" for i in range(6)))
    pl.DataFrame({"x": [1, 2, 3], "y": [0, 1, 0], "__index_level_0__": [7, 8, 9]}).write_parquet(tmp_path / "c.parquet")
    with pytest.warns(SiloWarning, match="dropped: it has no name of its own, as the index of a table"):
        found = read(tmp_path, "y")
    assert found.encoding.inputs == ("x",)


@pytest.mark.parametrize(
    "content",
    [
        text_of("\n").encode("utf-16-le"),  # without the mark that says so
        b"a,b,y\n1,\0,no\n",
        f"a;b,c\n{'x' * 200_000};1,2\n".encode(),
        b'a,b;c\n"' + b"x,\n" * 60_000,
        b'a,b\n1,"\n',
        b"\r",
        b"\xef\xbb\xbf",
        b"sep=;\n",
        b'sep="\na,b\n1,2\n',
    ],
)
def test_what_no_table_is_ends_in_a_sentence(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    assert said(lambda: read(tmp_path, "y")).startswith("a.csv ") or "a.csv," in said(lambda: read(tmp_path, "y"))
