import pytest

from equipoise.errors import InputError
from equipoise.experiment import reading


def test_assignments_are_toml_or_text():
    told = reading.override({"run": {"rounds": 5}}, ["run.rounds=7", "data.name=adult", "partition.thin=[0.3, 0.7]",
                                                    'algorithm.rule={sigma=1.0}'])  # fmt: skip
    assert told == {
        "run": {"rounds": 7},
        "data": {"name": "adult"},
        "partition": {"thin": [0.3, 0.7]},
        "algorithm": {"rule": {"sigma": 1.0}},
    }
    for wrong in ("run.rounds", "=3"):
        with pytest.raises(InputError, match="nothing to set"):
            reading.override({}, [wrong])
    with pytest.raises(InputError, match="is not a table"):
        reading.override({"run": 3}, ["run.rounds=2"])


def test_another_algorithm_keeps_what_it_knows():
    told = reading.override({"algorithm": {"name": "drfa", "dual_lr": 0.1, "steps": 3}}, ["algorithm.name=fedavg"])
    assert told["algorithm"] == {"name": "fedavg", "steps": 3}


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*mine.toml; `equipoise config > mine.toml`"):
        reading.read(tmp_path / "mine.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(InputError, match="is not TOML"):
        reading.read(tmp_path / "bad.toml")
