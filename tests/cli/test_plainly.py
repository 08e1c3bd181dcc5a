"""What commands say when the terminal, the disk or the machine is not as they hope."""

import inspect
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from equipoise.cli import app, plainly
from equipoise.cli.data import data_app
from equipoise.cli.flower import flower_app

APPS = {"": app, "data": data_app, "flower": flower_app}
ARGUMENTS = [
    (group, command.name or command.callback.__name__, note.help)
    for group, commands in APPS.items()
    for command in commands.registered_commands
    for parameter in inspect.signature(command.callback).parameters.values()
    for note in getattr(parameter.annotation, "__metadata__", ())
    if isinstance(note, typer.models.ArgumentInfo)
]


@pytest.mark.parametrize(("group", "command", "help_"), ARGUMENTS)
def test_every_argument_is_explained(group, command, help_):
    """Once, whatever versions of typer and click are there: with click 8.5 the texts were gone."""
    assert help_
    said = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*filter(None, [group]), command, "--help"]).output
    assert " ".join(said.split()).count(" ".join(help_.split())) == 1, said
    assert said.count("rguments:") == 1


def start(*words, **environment):
    command = [sys.executable, "-m", "equipoise", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_warnings_of_libraries_and_devices_that_are_not_there():
    done = start("doctor", PYTHONWARNINGS="error", JAX_PLATFORMS="nonsense", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Unable to initialize backend 'nonsense'" in done.stdout
    assert "not known" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "equipoise", "config"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the output cannot be written (No space left on device); make room, or send it elsewhere\n"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 7.28 TiB"), "memory of this machine is not enough (Unable to allocate"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."), "memory of this machine is not enough"),
        (RuntimeError("Unable to initialize backend 'x': no"), "JAX finds no device"),
    ],
)
def test_what_the_machine_cannot_do_is_one_sentence(error, said, capsys):
    with pytest.raises(typer.Exit), plainly.in_sentences():
        raise error
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_a_mistake_of_the_program_stays_one():
    with pytest.raises(RuntimeError, match="a bug"), plainly.in_sentences():
        raise RuntimeError("a bug")
    with pytest.raises(OSError, match="gone"), plainly.in_sentences():
        raise OSError(2, "gone")


def test_names_that_no_disk_takes_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "silos").mkdir()
    (tmp_path / "silos" / "a.csv").write_text("x,y\n1,a\n2,b\n3,a\n")
    long = "n" * 300
    for words in (
        ["run", "--silos", "silos", "--label", "y", "--out", long],
        ["report", long],
        ["resume", long],
        ["predict", long, "new.csv"],
        ["data", "info", long],
    ):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), (words, done.exception)
        assert "(300 letters) cannot be a file or folder" in done.stderr
