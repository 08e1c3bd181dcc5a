import numpy as np
import pytest

from equipoise.bench import federations
from equipoise.bench.methods import METHODS
from equipoise.errors import InputError
from equipoise.experiment import config


def test_every_method_is_a_configuration_of_every_federation():
    for name in federations.FEDERATIONS:
        for label, method in METHODS.items():
            if method.settings is not None:
                config.parse(federations.settings(name, 1, method.settings), source=label)


def test_nothing_but_whose_data_is_said_of_the_default():
    found = federations.settings("exam", 2)
    assert found.keys() == {"name", "data", "partition", "run", "personal"}
    assert found["run"] == {"seed": 2}
    assert found["personal"] == {"kind": "none"}  # it is chosen after training, which it leaves as it is


def test_a_split_has_every_row_once_and_splits_differ():
    name = "tests.bench.owners:coins"
    splits = [federations.split_of(name, federations.problem_of(name, s)) for s in (0, 1)]
    assert splits[0].rows != splits[1].rows
    of = splits[0].federation
    for inputs, tested in zip(of.inputs, splits[0].test_inputs, strict=True):
        both = np.concatenate([inputs, tested])
        assert len(both) == len(np.unique(both, axis=0)) == 60
        assert len(tested) == 18


def test_names_that_are_none(monkeypatch):
    with pytest.raises(InputError, match=r"'exams'.*exam"):
        federations.chosen(["exams"])
    assert federations.chosen(["exam", "some.module:mine"]) == ["exam", "some.module:mine"]
