import numpy as np
import pytest

from equipoise.data import catalogue
from equipoise.data.datasets.tabular import COLUMNS, adult
from equipoise.errors import InputError

ROWS = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 2174, 0, 40, Cuba, <=50K
50, Private, 83311, Doctorate, 16, Divorced, Sales, Husband, White, Male, 0, 0, 13, United-States, >50K
38, ?, 215646, HS-grad, 9, Divorced, ?, Not-in-family, Black, Female, 0, 0, 40, ?, <=50K

"""
TESTS = """\
|1x3 Cross validator
25, Private, 226802, HS-grad, 7, Never-married, Sales, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
38, Local-gov, 89814, Doctorate, 16, Divorced, Sales, Husband, White, Male, 0, 0, 50, Peru, >50K.

"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text(ROWS)
    (tmp_path / "adult" / "adult.test").write_text(TESTS)
    return tmp_path


def test_rows_labels_and_owners(folder):
    data = adult(data_dir=folder)
    assert data.labels.tolist() == [0, 1, 0]
    assert data.test_labels.tolist() == [0, 1]  # in spite of the remark on top and the dots
    assert data.group_names == ("Bachelors", "Doctorate", "HS-grad")
    assert data.groups.tolist() == [0, 1, 2]
    assert data.test_groups.tolist() == [2, 1]


def test_numbers_are_standardised_on_the_training_file(folder):
    data = adult(data_dir=folder)
    ages = np.array([39, 50, 38])
    np.testing.assert_allclose(data.inputs[:, 0], (ages - ages.mean()) / ages.std(), rtol=1e-6)
    np.testing.assert_allclose(data.test_inputs[0, 0], (25 - ages.mean()) / ages.std(), rtol=1e-6)
    only = adult(data_dir=folder, exclude=[c for c in COLUMNS if c != "capital-loss"])
    assert only.inputs.tolist() == [[0], [0], [0]]  # constant: centred, not divided by zero


def test_categories_are_one_hot_and_unknown_ones_nothing(folder):
    data = adult(data_dir=folder, exclude=[c for c in COLUMNS if c != "workclass"])
    assert data.inputs.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]  # ?, Private, State-gov
    assert data.test_inputs.tolist() == [[0, 1, 0], [0, 0, 0]]  # Local-gov was never trained on


def test_missing_cells_can_be_left_out(folder):
    assert adult(data_dir=folder, missing=False).labels.tolist() == [0, 1]


def test_other_owners(folder):
    assert adult(by="native-country", data_dir=folder).group_names == ("?", "Cuba", "Peru", "United-States")
    doctors = adult(by="doctorate", data_dir=folder)
    assert [doctors.group_names[g] for g in doctors.groups] == ["others", "Doctorate", "others"]
    with pytest.raises(InputError, match="did you mean 'native-country'"):
        adult(by="country", data_dir=folder)
    with pytest.raises(InputError, match="no column of Adult 'agee'"):
        adult(exclude=["agee"], data_dir=folder)
    with pytest.raises(InputError, match="leave at least one"):
        adult(exclude=COLUMNS, data_dir=folder)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda t: t.replace("13, Never", "thirteen, Never"), "column education-num: .*thirteen"),
        (lambda t: t.replace(", Cuba", ""), "line 1 has 14 cells instead of 15"),
        (lambda t: t.replace("United-States, >50K", "United-States, rich"), "line 2 ends in 'rich'"),
        (lambda t: t[:-40], "line 3 has"),
        (lambda t: t.replace("Cuba", "Curaçao"), "'ascii' codec"),
    ],
)
def test_damaged_rows_are_named(folder, spoil, why):
    (folder / "adult" / "adult.data").write_text(spoil(ROWS))
    with pytest.raises(InputError, match=rf"adult\.data cannot be read \({why}"):
        adult(data_dir=folder)


def test_empty_and_absent_files(folder):
    (folder / "adult" / "adult.test").write_text("|1x3 Cross validator\n\n")
    with pytest.raises(InputError, match=r"adult\.test has no rows"):
        adult(data_dir=folder)
    (folder / "adult" / "adult.test").unlink()
    with pytest.raises(InputError, match=r"put adult\.data, adult\.test into"):
        adult(data_dir=folder)


def test_the_real_adult():
    if catalogue.where("adult") is None:
        pytest.skip("Adult is not in the data directory (set EQUIPOISE_DATA)")
    data = adult()
    assert (len(data.inputs), len(data.test_inputs)) == (32_561, 16_281)
    assert (int(data.labels.sum()), int(data.test_labels.sum())) == (7_841, 3_846)
    assert len(data.group_names) == 16
