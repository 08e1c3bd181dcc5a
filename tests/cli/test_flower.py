"""`equipoise flower`: what it says, and the exact commands that it would run."""

import importlib.util
import signal
import stat
import subprocess
import sys
import time
import tomllib

import pytest
import tomli_w
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError, InputError
from equipoise.experiment import config
from tests.flower import silos
from tests.flower.processes import running

runner = CliRunner()
needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed")


def said(*words):
    done = runner.invoke(app, ["flower", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize("command", ["keys", "server", "site"])
def test_every_command_has_help_with_an_example(command):
    code, text = said(command, "--help")
    assert code == 0
    assert f"Example: equipoise flower {command} " in text


def test_without_flower_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for words in (["keys", tmp_path, "--sites", "a"], ["server", "x.toml"], ["site", "a", "a.csv"]):
        code, text = said(*words)
        assert code == 2
        assert "pip install 'equipoise[flower]'" in text


@needs_flower
def test_keys_for_trials(tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    code, text = said(
        "keys", tmp_path / "k", "--sites", "north, south", "--host", "fed.example.org", "--host", "10.0.0.7"
    )
    assert code == 0
    assert "for trials" in text
    ca, server = (
        x509.load_pem_x509_certificate((tmp_path / "k" / name).read_bytes()) for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fed.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.0.0.7"]
    secrets = [tmp_path / "k" / name for name in ("ca.key", "server.key", "sites/north", "sites/south")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * 4
    key = load_ssh_private_key(secrets[2].read_bytes(), None)
    assert key.curve.name == "secp384r1"
    before = secrets[2].read_bytes(), (tmp_path / "k" / "server.crt").read_bytes()
    assert said("keys", tmp_path / "k", "--sites", "north,east")[0] == 0  # one more site: the others' keys stay
    assert before == (secrets[2].read_bytes(), (tmp_path / "k" / "server.crt").read_bytes())
    assert (tmp_path / "k" / "sites" / "east.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert said("keys", tmp_path / "k", "--sites", "../x")[0] == 2


@needs_flower
def test_encryption_and_authentication_unless_asked_otherwise(tmp_path):
    from equipoise.experiment.federated import keys, launch

    keys.make(tmp_path, ["north"])
    link = launch.superlink("0.0.0.0", 8000, tmp_path / "state.db", tmp_path)
    assert {"--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth"} <= {*link}
    assert "--insecure" not in link
    node = launch.supernode("host:1", 2, {"site": "north", "data": "x y.csv"}, tmp_path)
    assert {"--root-certificates", "--auth-supernode-private-key"} <= {*node}
    assert node[node.index("--node-config") + 1] == "site='north' data='x y.csv'"
    assert "--insecure" not in node
    assert "--insecure" in launch.superlink("127.0.0.1", 8000, tmp_path / "state.db", None)
    assert "--insecure" in launch.supernode("host:1", 2, {"site": "north"}, None)
    with pytest.raises(InputError, match="there is no key"):
        launch.supernode("host:1", 2, {"site": "south"}, tmp_path)
    with pytest.raises(InputError, match="Flower takes no ' in it"):
        launch.supernode("host:1", 2, {"site": "o'hara"}, tmp_path)
    more = launch.environment(tmp_path)
    assert (more["FLWR_TELEMETRY_ENABLED"], more["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    home = launch.connection(tmp_path / "home", "127.0.0.1:8000", tmp_path)
    found = tomllib.loads((home / "config.toml").read_text())["superlink"]["equipoise"]
    assert found == {"address": "127.0.0.1:8000", "root-certificates": str(tmp_path / "ca.crt")}


@needs_flower
def test_the_app_installs_nothing_and_holds_the_settings(tmp_path):
    from equipoise.experiment.federated import launch

    told = config.parse(silos.settings())
    folder = launch.app(tmp_path / "app", told, tmp_path / "out")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    found = project["tool"]["flwr"]["app"]
    assert config.parse(tomllib.loads(found["config"]["settings"])) == told
    for component in found["components"].values():
        module, name = component.split(":")
        assert hasattr(importlib.import_module(module), name)


@needs_flower
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "there is no [federation]"),
        (silos.settings(algorithm={"rule": "tuned"}), "give { sigma = .., theta = .. }"),
        (silos.settings(), "`equipoise flower keys"),
    ],
)
def test_what_a_server_lacks_is_said_before_anything_starts(settings, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    code, text = said("server", "f.toml")
    assert code == 2
    assert sentence in text


@needs_flower
def test_what_a_site_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,label\n1,2\n")
    for words, sentence in [
        (["a"], "give the site's file, or --loader module:function"),
        (["a", "b.csv"], "there is no file b.csv"),
        (["a", "a.csv"], "there is no key keys/sites/a"),
    ]:
        code, text = said("site", *words)
        assert code == 2
        assert sentence in text


@needs_flower
def test_a_process_ends_with_its_block_and_takes_its_children_along():
    from equipoise.experiment.federated import launch

    stubborn = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    stubborn += (
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(c.pid, flush=True); "
    )
    stubborn += "time.sleep(60)"
    how = {"stdout": subprocess.PIPE, "text": True, "patience": 0.2}
    with launch.process([sys.executable, "-c", stubborn], {}, **how) as child:
        grandchild = int(child.stdout.readline())
    assert child.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while running(grandchild) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(grandchild)
    child.stdout.close()
    with (
        launch.process([sys.executable, "-c", ""], {}, patience=0.2) as child,
        pytest.raises(EquipoiseError, match="ended before it had begun"),
    ):
        launch.await_port(child, "127.0.0.1", launch.free_port(), 10)
