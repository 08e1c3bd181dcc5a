"""A run may end when its objective is certified, and the report says how well."""

import numpy as np
import pytest

from equipoise import certificates
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


def owners(folder, rows=90):
    """Four owners whose two classes are nearly separable: the penalty alone proves little of their losses."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    truth = rng.normal(size=8)
    for i in range(4):
        a = rng.normal(size=(rows, 8))
        y = a @ (truth + 0.3 * rng.normal(size=8)) + 0.2 * rng.normal(size=rows) > 0
        lines = [[*(f"a{j}" for j in range(8)), "y"], *([*row, int(c)] for row, c in zip(a, y, strict=True))]
        (folder / f"owner{i}.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    return folder


@pytest.mark.thorough(witness="searches/test_certificates.py::test_no_model_is_better_than_what_cuts_prove")
def test_all_that_was_heard_proves_more_than_the_last_gradients(tmp_path, monkeypatch):
    """Never false, and the same run but for it."""
    given = {
        "data": {"silos": str(owners(tmp_path / "silos")), "label": "y"},
        "model": {"l2": 1e-4},
        "run": {"rounds": 40, "until_gap": 1e-3, "precision": "float64"},
    }
    done = run.run(config.parse(given), tmp_path / "with")
    monkeypatch.setattr(certificates, "bound_of_cuts", lambda *_: -np.inf)
    plain = run.run(config.parse(given), tmp_path / "without")
    assert len(done.rows) <= len(plain.rows)
    assert min(row.gap / other.gap for row, other in zip(done.rows, plain.rows, strict=False)) < 0.7
    best = min(row.objective for row in plain.rows)
    for row, other in zip(done.rows, plain.rows, strict=False):
        assert row.objective == other.objective
        assert row.gap <= other.gap
        assert row.objective - row.gap <= best + 1e-9
