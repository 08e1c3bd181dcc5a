"""Odd command lines: each ends in a result or in one sentence, and nothing of the user is lost."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import InputError
from tests.searches import test_inputs, tiny
from tests.searches.test_inputs import KEYS, NUMBERS

many = settings(
    max_examples=25 if tiny.LONGER == 1 else 60 * tiny.LONGER,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
MINE = {
    "notes.txt": "mine", "data/rows.csv": "1,2\n", "config.toml": "rounds = 3\n", "report.html": "<p>mine</p>",
    "sub/config.toml": "x = 1\n", "sub/thesis.tex": "years of work", "table.md": "mine too", "map.png": "a picture",
    "secrets/ca.key": "secret", "secrets/sites/north.pub": "public", "app/pyproject.toml": "[project]\n",
    "home/config.toml": "x = 1\n", "silos/north.csv": tiny.SILOS["north"], "done/notes.txt": "mine as well",
    "done/tensorboard/plot.png": "a picture", "many/A/thesis.tex": "years of work",
}  # fmt: skip
FILES = [
    "good.toml", "good.toml", "sweep.toml", "federation.toml", "broken.toml", "date.toml", "silos", ".", "nothing", "",
    "notes.txt", "x[/b]", "silos/north.csv", "features.npz", "broken.npz", "done/model.safetensors",
]  # fmt: skip
PLACES = [
    ".", "..", "out", "x[/b]", "x[b]y", "sub", "data", "notes.txt", "/dev/null/x", "new/deep", "done", "report.html",
    "\udcff", "stopped", "old", "many", "", "map.png", "new.svg", "secrets", "silos/north.csv", "/dev/null", "link",
]  # fmt: skip
TEXTS = test_inputs.TEXTS.filter(lambda text: "\0" not in text)  # which no command line can hold
NAMES = st.one_of(
    TEXTS, st.sampled_from(["north", "north,south", "a/b", "..", ",", "north.pub", "os:path", "os:nothing"])
)
COUNTS = st.one_of(st.sampled_from(["0", "1", "3", "-1", "2147483648", "65536", "1.5", "x", ""]), NUMBERS.map(str))
FILE = st.one_of(st.just("good.toml"), st.sampled_from(FILES))
PLACE, RUN = st.sampled_from(PLACES), st.one_of(st.sampled_from(["done", "many", "stopped"]), st.sampled_from(PLACES))
ROWS = st.one_of(st.just("silos/north.csv"), st.sampled_from(FILES))
FEDERATION = st.one_of(st.just("federation.toml"), st.sampled_from(FILES))
SET = st.builds("{}={}".format, st.sampled_from([*KEYS, "run.rounds"]), st.one_of(TEXTS, NUMBERS.map(str)))
SILOS = st.sampled_from(["silos", "data", "nothing", "."])
FLAG = st.none()
OUT = {"--out": PLACE, "--overwrite": FLAG, "--set": SET}
TRAIN = OUT | {"--silos": SILOS, "--label": st.sampled_from(["y", "x", "", "身長"])}
SET_OF_DATA = st.one_of(
    st.just("silos"),
    st.sampled_from(FILES),
    st.sampled_from(["digits", "digits", "adult", "mnist", "synthetic", "quadratics"]),
)
LOOK = {"--data-dir": PLACE, "--option": TEXTS, "--label": st.sampled_from(["y", "x", ""])}
DIVIDE = LOOK | {
    "--clients": COUNTS, "--how": st.sampled_from(["iid", "k-classes", "natural", "one-class", "quantity"]),
    "--alpha": COUNTS, "--similarity": COUNTS, "--classes": COUNTS, "--min-size": COUNTS, "--thin": FLAG,
    "--seed": COUNTS, "--rows": COUNTS, "--out": PLACE,
}  # fmt: skip
SERVE = OUT | {
    "--keys": PLACE, "--port": COUNTS, "--page": COUNTS, "--state": PLACE, "--stock": FLAG, "--insecure": FLAG,
    "--client": TEXTS, "--host": st.sampled_from(["127.0.0.1", "", "a..b", "\udcff"]),
}  # fmt: skip
# What follows the command: words that must be there, and options. Those that train take a file or none.
COMMANDS = {
    ("run",): ((), TRAIN),
    ("compare",): ((), TRAIN),
    ("sweep",): ((), TRAIN),
    ("bench",): ((st.just("--show"),), {"--federation": NAMES, "--method": NAMES, "--out": PLACE, "--with": PLACE}),
    ("config",): ((), {"--set": SET}),
    ("resume",): ((RUN,), {}),
    ("report",): ((RUN,), {"--out": PLACE}),
    ("predict",): ((RUN, ROWS), {"--out": PLACE, "--separator": TEXTS}),
    ("algorithms",): ((st.sampled_from(["fedavg", "", "nothing", "os:path", "os:nothing", "[b]", ":", "身長"]),), {}),
    ("reproduce",): ((NAMES,), {}),
    ("data", "list"): ((), {"--data-dir": PLACE}),
    ("data", "info"): ((SET_OF_DATA,), LOOK),
    ("data", "partition"): ((SET_OF_DATA,), DIVIDE),
    ("flower", "keys"): ((PLACE,), {"--sites": NAMES, "--host": NAMES, "--days": COUNTS}),
    ("flower", "server"): ((FEDERATION,), SERVE),
    ("flower", "site"): ((NAMES, ROWS), {"--keys": PLACE, "--key": PLACE, "--folder": PLACE, "--insecure": FLAG,
                                         "--loader": NAMES, "--stock": FLAG}),
    ("flower", "local"): ((FILE,), TRAIN | {"--state": PLACE, "--processes": COUNTS, "--page": COUNTS}),
    ("flower", "status"): ((RUN,), {"--json": FLAG}),
}  # fmt: skip


@st.composite
def command_lines(draw):
    command = draw(st.sampled_from(list(COMMANDS)))
    places, options = COMMANDS[command]
    words = [*command, *(draw(place) for place in places)]
    if command[0] in ("run", "compare", "sweep"):  # without a file they take minutes
        words.append(draw(FILE))
    for option in draw(st.lists(st.sampled_from(list(options)), max_size=3, unique=True)) if options else ():
        value = draw(options[option])
        words += [option] if value is None else [option, value]
    return words


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder with a user's own things in it, and runs of every kind."""
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    tiny.silos(tmp_path / "silos")
    good = tiny.settings("silos", run={"rounds": 1})
    methods = {"compare": {"A|B": {"name": "fedavg"}, "身長": {"name": "sgd", "lr": 0.1}, "A": {"name": "fedavg"}}}
    over_flower = {"federation": {"sites": ["north", "south"]}, "data": {"label": "y"}}
    files = {"good": good, "sweep": good | methods, "federation": good | over_flower}
    for name, content in files.items():
        (tmp_path / f"{name}.toml").write_text(tomli_w.dumps(content))
    (tmp_path / "broken.toml").write_bytes(b"\xff\xfe[run\n")
    (tmp_path / "date.toml").write_text("[run]\nseed = 1979-05-27\n")
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4")
    np.savez(tmp_path / "features.npz", features=np.eye(8), labels=np.arange(8) % 2)
    assert CliRunner().invoke(app, ["run", "good.toml", "--out", "done"]).exit_code == 0
    assert CliRunner().invoke(app, ["compare", "sweep.toml", "--out", "many"]).exit_code == 0
    shutil.copytree("done", "stopped")
    (tmp_path / "stopped" / "result.json").unlink()
    shutil.copytree("done", "old")
    (tmp_path / "old" / "equipoise.json").unlink()
    for name, text in MINE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "sub", target_is_directory=True)
    return tmp_path


def starts_nothing(monkeypatch):
    """Where a federation's processes would be started, the command ends."""
    operations = pytest.importorskip("equipoise.deploy.operations.commands")
    from equipoise.deploy.operations import processes

    def started(*_, **__):
        raise InputError("the processes would be started now")

    monkeypatch.setattr(operations.Server, "one_link", started)
    monkeypatch.setattr(processes, "keep_running", lambda *_, **__: None)
    monkeypatch.setattr(operations, "live_page", lambda folder, port: nullcontext("http://here"))


def test_whatever_is_typed_nothing_of_the_user_is_lost(world, monkeypatch):
    """Hundreds of commands, one after the other, in a folder that fills up with runs."""
    starts_nothing(monkeypatch)
    mine = {name: (world / name).read_bytes() for name in [*MINE, "good.toml", "features.npz"]}
    old = tiny.contents(world / "old")

    @given(command_lines())
    @example(["run", "config.toml", "--out", ".", "--overwrite"])
    @example(["run", "good.toml", "--out", "x[/b]"])
    @example(["run", "good.toml", "--out", "/dev/null/x"])
    @example(["run", "good.toml", "--out", "done", "--overwrite"])
    @example(["compare", "sweep.toml", "--out", "many", "--overwrite"])
    @example(["compare", "good.toml", "--out", ".", "--overwrite"])
    @example(["predict", "done", "silos/north.csv", "--out", "sub"])
    @example(["predict", "done", "silos/north.csv", "--out", "silos/north.csv"])
    @example(["predict", "done", "silos/north.csv", "--out", "notes.txt"])
    @example(["report", "done", "--out", "report.html"])
    @example(["data", "partition", "silos", "--label", "y", "--out", "map.png"])
    @example(["flower", "keys", "secrets", "--sites", "north"])
    @example(["flower", "keys", "notes.txt", "--sites", "north"])
    @example(["flower", "keys", "out", "--sites", "a/b"])
    @example(["flower", "keys", "out", "--sites", "north", "--host", "a..b"])
    @example(["flower", "server", "federation.toml", "--insecure", "--state", ".", "--out", "out"])
    @example(["flower", "server", "federation.toml", "--insecure", "--state", "notes.txt", "--out", "out"])
    @example(["flower", "local", "good.toml", "--state", ".", "--out", "out2", "--overwrite"])
    @many
    def typed(words):
        for made in ("runs", "out", "new"):  # or most commands would find a finished run
            shutil.rmtree(world / made, ignore_errors=True)
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, SystemExit | None), (words, done.exception, done.exc_info)
        assert done.exit_code in (0, 2), (words, done.output)
        if done.exit_code == 2 and "Usage: " not in done.stderr:
            lines = [line[:7] for line in done.stderr.splitlines() if not line.startswith("note: ")]
            assert lines == ["error: "], (words, done.stderr)
        assert {name: (world / name).read_bytes() for name in mine} == mine, words
        assert old.items() <= tiny.contents(world / "old").items(), words  # keys may be added, nothing is replaced

    typed()
