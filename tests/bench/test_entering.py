"""A method of somebody else has a row by one file and one command, or is refused in a sentence."""

import importlib
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import artifact
from equipoise.bench import entering, entries, federations
from equipoise.bench.run import run_outputs
from equipoise.cli import app
from equipoise.errors import InputError
from equipoise.experiment import config, records, run
from tests.bench import owners
from tests.searches import tiny

COINS = "tests.bench.owners:coins"


def bench(*words):
    return CliRunner().invoke(app, ["bench", "-f", COINS, "--splits", "2", *words])


def test_a_model_enters(tmp_path, monkeypatch):
    """It stands beside the others, is not run twice, and its results can be sent and merged."""
    monkeypatch.setenv("COLUMNS", "200")
    said = bench("-m", "tests.bench.owners:heads", "-m", "pooled linear", "-o", str(tmp_path / "mine"))
    assert said.exit_code == 0, said.output
    found = {(e.method, e.split): e for e in entries.read(tmp_path / "mine")}
    assert {m for m, _ in found} == {"tests.bench.owners:heads", "pooled linear", "alone"}
    of = found["tests.bench.owners:heads", 0]
    assert 0.1 < of.mean[1] < found["pooled linear", 0].mean[1]
    assert of.kind == "entered"
    assert all(0.7 < area <= 1 for area in of.auroc)
    file = entries.path_of(tmp_path / "mine", COINS, "tests.bench.owners:heads", 0)
    before = file.stat().st_mtime_ns
    assert bench("-m", "tests.bench.owners:heads", "-o", str(tmp_path / "mine")).exit_code == 0
    assert file.stat().st_mtime_ns == before
    other = bench("-m", "pooled boosting", "-o", str(tmp_path / "other"), "--with", str(tmp_path / "mine"))
    assert other.exit_code == 0, other.output
    for name in ("table.md", "picture.svg", "bench.html"):
        text = (tmp_path / "other" / name).read_text()
        assert "owners:heads" in text
        assert "pooled boosting" in text


@pytest.mark.thorough(witness="::test_a_model_enters")
def test_federations_at_a_time_have_the_entries_of_one_after_the_other(tmp_path):
    """Where one of them fails, that is a sentence, and nothing of it is kept; the other one may not have begun."""

    def both(out, *words):
        found = ["-f", COINS, "-f", "tests.bench.owners:lengths", "--splits", "1", "-o", str(tmp_path / out)]
        return CliRunner().invoke(app, ["bench", *found, *words])

    said = both("two", "-m", "fixed", "--workers", "2")
    assert said.exit_code == 0, said.output
    assert both("one", "-m", "fixed", "--workers", "1").exit_code == 0
    one, two = ({(e.federation, e.method): e for e in entries.read(tmp_path / out)} for out in ("one", "two"))
    assert one.keys() == two.keys()
    assert len(one) == 4
    for key in one:
        np.testing.assert_allclose(one[key].loss, two[key].loss, rtol=1e-5)
        assert one[key].rounds == two[key].rounds
    failed = both("three", "-m", "tests.bench.owners:not_of_lengths", "--workers", "2")
    assert failed.exit_code == 2
    assert "error: 'tests.bench.owners:not_of_lengths' fails on tests.bench.owners:lengths: KeyError" in failed.output
    failing = entries.path_of(tmp_path / "three", "tests.bench.owners:lengths", "tests.bench.owners:not_of_lengths", 0)
    assert not failing.exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("of_a_wrong_shape", r"predicts shape \(18,\) for a, not \(18, 2\): give a probability per row and class"),
        ("not_finite", "predicts 36 numbers that are not finite for a"),
        ("no_probabilities", "predicts no probabilities for a: give numbers from zero up that add up to one"),
        ("no_function", r"returns tuple; return a function \(owner, inputs\)"),
        ("that_fails", "fails on .*coins: KeyError: 'no such column'; correct it, or leave it out"),
        ("that_looks_at_its_neighbours", "a model has to predict every row by itself"),
        ("that_ends_the_program", "fails on .*coins: SystemExit: 0; correct it, or leave it out"),
        ("of_texts", "predicts an array of <U3 for a; return an array of numbers"),
        ("of_complex_numbers", "predicts an array of complex128 for a; return an array of numbers"),
        ("that_reads_held_out_rows", r"although it was given shuffled ones .* it has read held-out rows"),
    ],
)
def test_a_broken_one_is_refused(name, sentence):
    found = entering.method(f"tests.bench.owners:{name}")
    with pytest.raises(InputError, match=sentence):
        entering.check(name, found, COINS)


def test_an_honest_one_is_not():
    entering.check("heads", entering.method("tests.bench.owners:heads"), COINS)


def test_a_refusal_is_a_line_of_its_own_and_leaves_no_row(tmp_path):
    said = bench("-m", "tests.bench.owners:that_reads_held_out_rows", "-o", str(tmp_path / "b"))
    assert said.exit_code == 2
    last = said.output.splitlines()[-1]
    assert last.startswith("error: 'tests.bench.owners:that_reads_held_out_rows' predicts held-out labels")
    assert "Traceback" not in said.output
    assert not [path for path in tmp_path.rglob("split-*.json") if "alone" not in str(path)]


@pytest.mark.parametrize(
    ("name", "more"), [("that_is_honest_at_first", ()), ("honest_on_lengths", ("-f", "tests.bench.owners:lengths"))]
)
def test_behaving_well_at_first_or_elsewhere_is_of_no_use(name, more, tmp_path):
    owners.TIMES["called"] = 0
    said = bench(*more, "-m", f"tests.bench.owners:{name}", "-o", str(tmp_path / "b"), "--workers", "1")
    assert said.exit_code == 2
    assert f"'tests.bench.owners:{name}' predicts held-out labels of {COINS}" in said.output
    assert not [path for path in tmp_path.rglob("split-*.json") if "alone" not in str(path)]


def test_a_file_that_was_changed_is_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    level = "import numpy as np\n\n\ndef level(f):\n    return lambda owner, x: np.full((len(x), 2), [CHANCE])\n"
    found = []
    for chance in ("0.3, 0.7", "0.60, 0.40"):  # of another length: Python looks at a file's second and size
        (tmp_path / "levels.py").write_text(level.replace("CHANCE", chance))
        monkeypatch.delitem(sys.modules, "levels", raising=False)
        importlib.invalidate_caches()
        said = bench("-m", "levels:level", "-o", "b")
        assert said.exit_code == 0, said.output
        found.append(entries.read(tmp_path / "b" / "results"))
    before, after = ({e.split: e for e in one if e.method != "alone"} for one in found)
    assert before[0].loss != after[0].loss
    assert before[0].source != after[0].source


ALGORITHM = '''
from typing import NamedTuple

import jax.numpy as jnp

from equipoise.protocol import Algorithm, Exchange, Reply, Vector


class Message(NamedTuple):
    x: Vector


def averaging(task, sample, *, steps: int = 5, local_lr: float = 0.5) -> Algorithm:
    """Averages, written here."""

    def train(message, client, data, key):
        return client, Reply(each=Message(task.descend(message.x, data, key, steps=steps, lr=local_lr)))

    def average(server, replies):
        return Message(SIZE * jnp.mean(replies.each.x, 0))

    exchange = Exchange("train", lambda s, key: (s, sample(key)), lambda s, i: Message(s.x), train, average)
    parts = (task.prepare, Message, lambda x: None, (exchange,), lambda s: s.x)
    return Algorithm("averaging", sample.n, task.size, *parts)
'''


def test_an_algorithm_is_known_by_its_name_and_run_by_its_configuration(tmp_path, monkeypatch):
    """With the stand-in for the engine of `tests/searches`: its model's own outputs are what is scored."""
    tiny.use(monkeypatch)
    (tmp_path / "mine_averaging.py").write_text(ALGORITHM.replace("SIZE", "1"))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = entering.method("mine_averaging:averaging")
    assert (entry.about, entry.kind) == ("Averages, written here.", "entered")
    entry.settings["model"] = {"own": "none"}
    parsed = config.parse(federations.settings(COINS, 0, entry.settings))
    done = run.run(parsed, tmp_path / "run")
    assert done.config["algorithm"]["name"] == "mine_averaging:averaging"
    split = federations.split_of(COINS, federations.problem_of(COINS, 0))
    found, saved = run_outputs(done, parsed, "mine", split), artifact.load(done.path / records.MODEL)
    for outputs, inputs in zip(found, split.test_inputs, strict=True):
        z = np.exp(saved.outputs(np.asarray(inputs)))
        np.testing.assert_allclose(outputs, z / z.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.thorough(witness="::test_an_algorithm_is_known_by_its_name_and_run_by_its_configuration")
@pytest.mark.parametrize(("size", "exit_code"), [("1", 0), ("jnp.nan", 2)])
def test_an_algorithm_enters_or_is_refused(size, exit_code, tmp_path, monkeypatch):
    name = f"averaging_{exit_code}"
    (tmp_path / f"{name}.py").write_text(ALGORITHM.replace("SIZE", size))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = bench("-m", f"{name}:averaging", "-o", "b", "--splits", "1")
    assert said.exit_code == exit_code, said.output
    if exit_code:
        assert "not finite" in said.output
        return
    (found,) = (e for e in entries.read(tmp_path / "b") if e.method != "alone")
    assert found.mean[1] > 0.1
    assert found.rounds
    assert found.megabytes > 0


def test_names_that_are_none():
    with pytest.raises(InputError, match=r"'FedAvgg'.*FedAvg"):
        entering.method("FedAvgg")
