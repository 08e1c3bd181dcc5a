"""A run may end when its objective is certified, and the report says how well."""

import pytest

from equipoise.errors import InputError
from equipoise.experiment import config, run
from equipoise.report import formats, numbers, wording

SETTINGS = {
    "data": {"name": "synthetic"},
    "partition": {"clients": 3},
    "model": {"l2": 0.1, "metric": "none"},
    "algorithm": {"name": "scaffpd_ls", "steps": 5},
    "run": {"rounds": 300, "evaluate_every": 1, "precision": "float64"},
}


def test_a_run_ends_at_a_certified_gap(tmp_path):
    settings = config.parse(SETTINGS | {"run": SETTINGS["run"] | {"until_gap": 0.01}})
    done = run.run(settings, tmp_path / "run")
    assert done.outcome is not None
    assert 1 < done.outcome.rounds < 300
    *_, before, last = done.rows
    assert last.round == done.outcome.rounds
    assert last.gap <= 0.01 * last.objective
    assert before.gap > 0.01 * before.objective
    assert (tmp_path / "run" / "model.safetensors").is_file()
    (reported,) = numbers.reported([done])
    text = wording.certified(reported)
    assert text.startswith(f"{formats.capitalized(reported.label)} is certified after {last.round} rounds")
    assert f"lower by at most {last.gap / last.objective:.2g} times this one." in text


def test_a_gap_that_the_precision_cannot_show_is_refused(tmp_path):
    short = SETTINGS["run"] | {"rounds": 1, "precision": "float32", "until_gap": 1e-8}
    with pytest.raises(InputError, match=r"run.until_gap is 1e-08, but numbers of float32 show no gap below 5e-07"):
        run.run(config.parse(SETTINGS | {"run": short}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
