"""A folder of files becomes a federation; what is wrong with it is said with file, column and row."""

import csv
import tempfile
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import silos
from equipoise.data.silos import SiloWarning, open_site, read, scan
from equipoise.data.silos.agreement import agree
from equipoise.data.silos.encoding import Encoding
from equipoise.data.silos.statistics import Options, Statistics
from equipoise.errors import InputError

NORTH = """age,sex,city,y
31,F,oslo,yes
?,M,,no
44,M,oslo,yes
50,F,rome,no
61,,rome,yes
"""
SOUTH = """y, sex,city,age
yes,F,bern,21

no,M,bern,77
no,D,rome,44.5
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "north.csv").write_text(NORTH)
    (tmp_path / "south.csv").write_text(SOUTH)
    (tmp_path / ".hidden.csv").write_text("nothing of use")
    return tmp_path


def test_each_file_is_read_once(folder, monkeypatch):
    """To be split, described and encoded: a table of gigabytes is not read from the disk again and again."""
    table = {"age": [1.0, 2.0, 3.0], "sex": ["F", "M", "M"], "city": ["oslo"] * 3, "y": ["no", "yes", "no"]}
    pl.DataFrame(table).write_parquet(folder / "west.parquet")
    opened = []

    def counted(open_it):
        return lambda path, *how, **options: (opened.append(path.name), open_it(path, *how, **options))[1]

    monkeypatch.setattr(Path, "open", counted(Path.open))
    monkeypatch.setattr(pl, "read_parquet", counted(pl.read_parquet))
    for name in ("scan_csv", "scan_parquet"):
        monkeypatch.setattr(pl, name, None)
    read(folder, "y")
    assert sorted(name for name in opened if (folder / name).exists()) == ["north.csv", "south.csv", "west.parquet"]


def test_a_folder_of_tables(folder):
    federation = read(folder, "y", test=0)
    assert federation.names == ("north", "south")
    assert (federation.task, federation.warnings, federation.test) == ("classification", (), None)
    assert federation.encoding.inputs == (
        "age", "sex=D", "sex=F", "sex=M", "sex is missing",
        "city=bern", "city=oslo", "city=rome", "city is missing",
    )  # fmt: skip
    assert federation.train.sizes.tolist() == [5, 3]
    assert federation.train.labels.tolist() == [[1, 0, 1, 0, 1], [1, 0, 0, 0, 0]]
    assert federation.train.inputs.shape == (2, 5, 9)
    assert federation.train.inputs.dtype == jnp.float64
    age = np.array([31, 44, 50, 61, 21, 77, 44.5])
    expected = (np.array([31, age.mean(), 44, 50, 61]) - age.mean()) / age.std()
    np.testing.assert_allclose(federation.train.inputs[0, :, 0], expected, atol=1e-12)


def test_each_silo_has_its_own_split(folder):
    one, same, other = (read(folder, "y", test=0.4, seed=seed) for seed in (1, 1, 2))
    assert one.test is not None
    assert one.train.sizes.tolist() == [3, 2]
    assert one.test.sizes.tolist() == [2, 1]
    np.testing.assert_array_equal(one.train.inputs, same.train.inputs)
    assert one.encoding != other.encoding  # fitted to the training rows, which differ
    options = Options(label="y")
    alone = open_site(folder / "north.csv", options, test=0.4, seed=1)
    (folder / "east.csv").write_text(SOUTH)
    again = open_site(folder / "north.csv", options, test=0.4, seed=1)
    np.testing.assert_array_equal(alone.held_out, again.held_out)
    assert not np.array_equal(
        alone.held_out, open_site(folder / "north.csv", options, name="other", test=0.4, seed=3).held_out
    )


def test_the_same_over_a_network(folder):
    """Site by site, with nothing but JSON between them, gives what `read` gives."""
    options = Options(label="y")
    sites = [open_site(folder / f"{name}.csv", options) for name in ("south", "north")]
    told = [site.statistics(options).to_json() for site in sites]
    answer = agree([Statistics.from_json(text) for text in told], options).to_json()
    federation = read(folder, "y")
    assert federation.test is not None
    for site in sites:
        i = federation.names.index(site.name)
        train, test = site.encode(Encoding.from_json(answer))
        assert test is not None
        for (inputs, labels), shards in ((train, federation.train), (test, federation.test)):
            np.testing.assert_array_equal(inputs, shards.inputs[i, : shards.sizes[i]])
            np.testing.assert_array_equal(labels, shards.labels[i, : shards.sizes[i]])


def test_agreeing_sees_statistics_only(folder, monkeypatch):
    """Once the statistics are told the rows can be gone."""
    options = Options(label="y")
    told = [open_site(folder / f"{n}.csv", options).statistics(options) for n in ("north", "south")]
    for path in folder.iterdir():
        path.unlink()
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda *a, **k: pytest.fail("a table was read"))
    assert agree(told, options).features


def test_files_of_all_kinds_give_the_same(folder):
    texts = pl.read_csv(folder / "south.csv", infer_schema=False).rename(str.strip).drop_nulls("y")
    typed = texts.with_columns(pl.col("age").cast(pl.Float64), pl.col("city").cast(pl.Categorical))
    before = read(folder, "y")
    (folder / "south.csv").unlink()
    typed.write_parquet(folder / "south.PARQUET")
    after = read(folder, "y")
    assert after.encoding.inputs == before.encoding.inputs
    assert [f[2:4] for f in after.encoding.features] == [f[2:4] for f in before.encoding.features]
    np.testing.assert_array_equal(after.train.inputs, before.train.inputs)


def test_npz_of_features_is_a_table(tmp_path):
    rng = np.random.default_rng(0)
    for i, (name, dtype) in enumerate((("a", np.float32), ("b", np.float16), ("c", ">f8"))):
        inputs = rng.normal(i, 1, size=(20, 3)).astype(dtype)
        inputs[:, 1] = 7
        inputs[0, 0] = np.nan
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=np.arange(20) % 3)
    with pytest.warns(SiloWarning, match="column 'x1' dropped: it has the same value everywhere"):
        federation = read(tmp_path, "digit")
    assert federation.encoding.inputs == ("x0", "x2")
    assert federation.encoding.target.classes == ("0", "1", "2")
    assert federation.warnings == ("column 'x1' dropped: it has the same value everywhere",)
    assert federation.train.inputs.shape == (3, 16, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
def test_npz_of_images_stays_as_it_is(tmp_path, dtype):
    images = np.arange(2 * 10 * 4 * 5).reshape(2, 10, 4, 5).astype(dtype)
    for i, name in enumerate("ab"):
        np.savez(tmp_path / f"{name}.npz", inputs=images[i], labels=np.array(["cat", "dog"] * 5))
    federation = read(tmp_path, test=0)
    assert federation.encoding.shape == (4, 5)
    assert federation.train.inputs.dtype == dtype
    np.testing.assert_array_equal(federation.train.inputs, images)


def test_tokens_stay_whole_numbers(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.arange(12).reshape(4, 3), labels=np.array([0, 1, 2, 0]))
    federation = read(tmp_path, test=0)
    assert jnp.issubdtype(federation.train.inputs.dtype, jnp.integer)
    assert federation.encoding.shape == (3,)


def test_a_regression(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        x = rng.normal(size=30)
        pl.DataFrame({"x": x, "price": 1e6 + 1e4 * x}).write_csv(tmp_path / f"{name}.csv")
    federation = read(tmp_path, "price")
    assert federation.task == "regression"
    np.testing.assert_allclose(federation.train.labels, federation.train.inputs[..., 0], atol=1e-9)


def test_what_was_left_out_is_said_once_and_kept(folder):
    (folder / "README.md").write_text("about the silos")
    frame = pl.read_csv(folder / "north.csv").with_columns(unit=pl.lit("kg"), zero=pl.lit(0.0))
    frame.write_csv(folder / "north.csv")
    pl.read_csv(folder / "south.csv").drop_nulls("y").with_columns(unit=pl.lit("kg"), zero=pl.lit(0.0)).write_csv(
        folder / "south.csv"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation = read(folder, "y")
    assert [str(w.message) for w in caught] == list(federation.warnings)
    assert {w.category for w in caught} == {SiloWarning}
    assert federation.warnings == (
        f"'README.md' in {folder.name} is not a silo file and was left out",
        "columns 'unit', 'zero' dropped: it has the same value everywhere",
    )


def test_a_large_file_is_read_in_pieces_and_gives_the_same(tmp_path):
    """More rows than one piece of the streaming engine."""
    rng = np.random.default_rng(0)
    n = 120_000
    x = rng.normal(1e6, 1, size=n)
    frame = pl.DataFrame({"x": x, "c": rng.choice(list("abc"), n), "y": rng.choice(["u", "v"], n)})
    frame.write_csv(tmp_path / "a.csv")
    options = Options(label="y")
    site = open_site(tmp_path / "a.csv", options)
    (told, _) = site.statistics(options).columns
    kept = x[~site.held_out]
    assert told.n == len(kept)
    assert told.mean + told.rest == pytest.approx(kept.mean(), rel=1e-15)
    assert told.m2 / told.n == pytest.approx((kept - 1e6).var(), rel=1e-9)
    (inputs, labels), _ = site.encode(agree([site.statistics(options)], options))
    np.testing.assert_allclose(inputs[:, 0], (kept - kept.mean()) / kept.std(), atol=1e-7)
    np.testing.assert_array_equal(labels, (frame["y"].to_numpy() == "v")[~site.held_out])


GOOD = "x,c,y\n1,a,p\n2,b,q\n3,a,p\n"


def said(tmp_path, bad, name="bad.csv", label="y", **kwargs):
    """The sentence for a folder with one good silo and a bad one."""
    (tmp_path / "good.csv").write_text(GOOD)
    path = tmp_path / name
    path.write_bytes(bad.encode() if isinstance(bad, str) else bad)
    with pytest.raises(InputError) as error:
        read(tmp_path, label, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x,c\n1,a\n", "bad.csv has no column 'y', the label; its columns are 'x', 'c'"),
        ("x,y\n1,p\n2,q\n", "bad.csv lacks the column 'c', which good.csv has; give all silos the same"),
        (
            "x,c,d,y\n1,a,1,p\n2,a,1,q\n",
            "good.csv lacks the column 'd', which bad.csv has; give all silos the same",
        ),
        (
            "x,c,y\n1,a,p\n2,a,\n",
            "bad.csv, column 'y', data row 2: the label is missing; fill it in or leave the row out",
        ),
        (
            "x,c,y\n1,a,\n2,a,NA\n",
            "bad.csv, column 'y', data row 1: the label is missing; fill it in or leave the row out",
        ),
        (
            "x,c,y\n1,a,p\n\n2,a,p\nthree,a,q\n",
            "bad.csv, column 'x', data row 3: 'three' is not a number although most of the column is; "
            "correct the cell, or set data.categorical = ['x']",
        ),
        (
            "x,c,y\nlow,a,p\nhigh,a,p\n",
            "column 'x' holds number in good.csv (data row 1) but text in bad.csv (data row 1); "
            "correct the cells, or set data.categorical = ['x']",
        ),
        (
            "x,c,y\n1,a,p\ninf,a,q\n",
            "bad.csv, column 'x', data row 2: the value is infinite; correct the cell or empty it",
        ),
        (
            "x,c,y\n1,a,p\n1e999,a,q\n",
            "bad.csv, column 'x', data row 2: the value is infinite; correct the cell or empty it",
        ),
        ("x,c,y\n", "bad.csv has no rows; leave this silo out or give it data"),
        ("", "bad.csv is empty; leave this silo out or give it data"),
        ("x,c,y,x\n1,a,p,2\n", "bad.csv has the column 'x' more than once; rename or remove one"),
        ("x,c,y, x\n1,a,p,2\n", "bad.csv has the column 'x' more than once; rename or remove one"),
        ("x,c,y\n1,a,p\n2,a\n", "bad.csv, data row 2 has 2 cells but the header has 3"),
        ("x,c,y\n1,a,p\n2,a,p,extra\n", "bad.csv, data row 2 has 4 cells but the header has 3"),
        (
            "x,c,y\n1,a,p\n",
            "bad.csv has a single row; a silo needs two, one to train with and one to test with, or data.test = 0",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_csv(tmp_path, text, sentence):
    assert said(tmp_path, text) == sentence


def test_files_that_cannot_be_read(tmp_path):
    assert said(tmp_path, "x,c,y\n1,ä,p\n".encode("latin1")).startswith("bad.csv is not UTF-8 text, as the byte 0xe4")
    assert said(tmp_path, 'x,c,y\n1,a,p\n"2,a,p\n').startswith("bad.csv, data row 2, column 'x': \"2 has a quotation")
    (tmp_path / "bad.csv").unlink()
    assert said(tmp_path, b"PAR1 but then nothing", "bad.parquet").startswith("bad.parquet cannot be read as Parquet")
    (tmp_path / "bad.parquet").unlink()
    whole = pl.DataFrame({"x": [1.0] * 999, "c": "a", "y": "p"})
    whole.write_parquet(tmp_path / "bad.parquet")
    content = bytearray((tmp_path / "bad.parquet").read_bytes())
    content[10:60] = b"?" * 50
    assert said(tmp_path, bytes(content), "bad.parquet").startswith("bad.parquet cannot be read")
    (tmp_path / "bad.parquet").unlink()
    assert said(tmp_path, b"PK but then nothing", "bad.npz").startswith("bad.npz cannot be read as NPZ")


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    return (tmp_path / "bad.npz").read_bytes()


def test_what_is_wrong_with_an_npz(tmp_path):
    def wrong(**arrays):
        return said(tmp_path, saved(tmp_path, **arrays), "bad.npz")

    inputs = np.zeros((3, 2))
    assert wrong(x=inputs) == "bad.npz has no array 'inputs'; it holds 'x'"
    assert wrong(inputs=inputs).startswith("bad.npz has no column 'y', the label")
    assert wrong(inputs=inputs, labels=np.zeros(2)).startswith(
        "bad.npz has inputs of shape (3, 2) but labels of shape (2,)"
    )
    assert wrong(inputs=np.zeros(3), labels=np.zeros(3)).startswith("bad.npz has inputs of shape (3,)")
    assert wrong(inputs=inputs.astype(str), labels=np.zeros(3)).startswith("bad.npz has inputs of type <U32")
    assert wrong(inputs=np.array([[{}], [{}]]), labels=np.zeros(2)).startswith(
        "bad.npz cannot be read as NPZ: Object arrays"
    )
    np.save(tmp_path / "single.npy", inputs)
    single = said(tmp_path, (tmp_path / "single.npy").read_bytes(), "bad.npz")
    assert single == "bad.npz has no array 'inputs'; it holds 'a single array without a name'"
    (tmp_path / "single.npy").unlink()
    assert "lacks the column" in wrong(inputs=inputs, labels=np.array(["p", "q", "q"]))  # beside a table
    (tmp_path / "good.csv").unlink()
    images = np.zeros((4, 2, 2), np.float32)
    np.savez(tmp_path / "a.npz", inputs=images, labels=[0, 1, 0, 1])
    images[2, 1, 1] = np.nan
    np.savez(tmp_path / "bad.npz", inputs=images, labels=[0, 1, 0, 1])
    with pytest.raises(InputError, match=r"bad\.npz, column 'inputs', data row 3: the array holds NaN or infinity"):
        read(tmp_path)
    np.savez(tmp_path / "bad.npz", inputs=images[:, :1], labels=[0, 1, 0, 1])
    with pytest.raises(
        InputError, match=r"Float32 of shape \(2, 2\) in a\.npz but Float32 of shape \(1, 2\) in bad\.npz"
    ):
        read(tmp_path)


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(InputError, match="is not a directory; give the one that holds a file per silo"):
        read(tmp_path / "nowhere", "y")
    with pytest.raises(
        InputError, match=r"holds no silo files; put one file per silo there \(\.csv, \.npz, \.parquet\)"
    ):
        read(tmp_path, "y")
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.csv and a\.parquet would both be the silo 'a'"):
        read(tmp_path, "y")
    (tmp_path / "a.xlsx").write_bytes(b"")
    with pytest.raises(InputError, match=r"ends in '\.xlsx'"):
        scan(tmp_path / "a.xlsx")


def test_what_is_wrong_with_the_settings(folder):
    with pytest.raises(InputError, match="drop is the text 'age'; give a list"):
        read(folder, "y", drop="age")
    with pytest.raises(InputError, match=r"test is 1\.5"):
        read(folder, "y", test=1.5)
    with pytest.raises(InputError, match=r"north\.csv has no column 'agee', which categorical names"):
        read(folder, "y", categorical=["agee"])


def test_a_label_value_in_one_silo_only_is_fine(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,p\n2,p\n3,p\n")
    (tmp_path / "b.csv").write_text("x,y\n1,q\n2,q\n3,q\n")
    assert read(tmp_path, "y").encoding.target.classes == ("p", "q")


def test_other_separators(tmp_path):
    (tmp_path / "a.csv").write_text(GOOD.replace(",", ";"))
    assert read(tmp_path, "y", separator=";", test=0).train.sizes.tolist() == [3]


def test_quoted_cells_and_names_with_brackets(tmp_path):
    (tmp_path / "site [1].csv").write_text('\ufeffx,"c,d",y\r\n1,"a\nb",p\r\n2,"say ""hi""",q\r\n3,"a\nb",q\r\n')
    federation = silos.read(tmp_path, "y", test=0)
    assert federation.names == ("site [1]",)
    assert federation.encoding.inputs == ("x", "c,d=a\nb", 'c,d=say "hi"')


@pytest.mark.parametrize(
    ("text", "where", "remedy"),
    [
        ('x,y\n1,p\n2,5" pipe\n', "data row 2, column 'y': 5\" pipe", '"5"" pipe"'),
        ('x,y\n1,"p"q\n', "data row 1, column 'y': \"p\"q", '"p""q"'),
        ('x,y\n1,5"\n', "data row 1, column 'y': 5\"", '"5"""'),
        ('x"z,y\n1,p\n2,q\n', 'header: x"z', '"x""z"'),
    ],
)
def test_a_stray_quotation_mark_is_told_with_its_place_and_a_remedy(tmp_path, text, where, remedy):
    told = said(tmp_path, text)
    assert told.startswith(f"bad.csv, {where} has a quotation mark where none may stand")
    assert told.endswith(f"double those inside it: {remedy}")


@pytest.mark.parametrize("separator", ["::", "", '"', "\n", "é"])
def test_a_separator_is_one_character(tmp_path, separator):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match=r"the separator is .*give one character of ASCII"):
        silos.scan(tmp_path / "a.csv", separator=separator)


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n")), min_size=2, max_size=2
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None)
def test_what_is_properly_quoted_is_read_as_it_was_written(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["x", "y"], *rows])
        read = silos.scan(path).collect().rows()
    assert [[cell or "" for cell in row] for row in read] == rows


def of_patients(folder, name, visits):
    """A file with rows of patients, some of them with several visits, in no order."""
    who = np.repeat([f"{name}{i}" for i in range(len(visits))], visits)
    rng = np.random.default_rng(len(visits))
    who = who[rng.permutation(who.size)]
    table = {"patient": who, "age": rng.normal(size=who.size), "y": rng.choice(["no", "yes"], who.size)}
    pl.DataFrame(table).write_csv(folder / f"{name}.csv")
    return who


def test_rows_of_a_unit_are_on_one_side_and_no_input(tmp_path):
    who = {name: of_patients(tmp_path, name, visits) for name, visits in {"a": [5] * 12, "b": [1, 9, *[3] * 8]}.items()}
    options = Options("y", unit="patient")
    for name, of in who.items():
        site = open_site(tmp_path / f"{name}.csv", options)
        assert 0 < site.held_out.sum() < of.size
        assert not set(of[site.held_out]) & set(of[~site.held_out])
        assert "patient" not in site.statistics(options).to_json()
    found = read(tmp_path, "y", unit="patient")
    assert found.encoding.inputs == ("age",)
    sizes = np.asarray(found.test.sizes)
    assert found.counted[0] == pytest.approx(sizes[0] / 5)
    assert 1 <= found.counted[1] <= sizes[1]
    assert read(tmp_path, "y", drop=["patient"]).counted is None
    assert read(tmp_path, "y", unit="patient", test=0.0).counted == pytest.approx([12, 34**2 / (1 + 81 + 8 * 9)])


@pytest.mark.parametrize(
    ("unit", "rows", "sentence"),
    [
        ("person", "a,1,no\nb,2,yes\n", r"unit is 'person', which is no column of north.csv; name the one"),
        ("y", "a,1,no\nb,2,yes\n", r"unit is 'y', which is the label; name the one"),
        ("patient", "a,1,no\n,2,yes\n", r"north.csv, column 'patient', data row 2: the unit is missing; fill it in"),
        ("patient", "a,1,no\na,2,yes\n", r"north.csv has rows of a single patient; a silo needs two"),
    ],
)
def test_units_that_cannot_be(tmp_path, unit, rows, sentence):
    (tmp_path / "north.csv").write_text(f"patient,age,y\n{rows}")
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, "y", unit=unit)
