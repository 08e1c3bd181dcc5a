"""`equipoise flower`: what it says, and the exact commands that it would run."""

import contextlib
import importlib.util
import json
import re
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

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


@pytest.mark.parametrize("command", ["keys", "server", "site", "local", "status"])
def test_every_command_has_help_with_an_example(command):
    code, text = said(command, "--help")
    assert code == 0
    assert f"Example: equipoise flower {command} " in text


def test_without_flower_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for words in (
        ["keys", tmp_path, "--sites", "a"],
        ["server", "x.toml"],
        ["site", "a", "a.csv"],
        ["local", "x.toml"],
    ):
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
    assert not (tmp_path / "k" / "ca.key").exists()  # nobody can make another certificate in its name
    assert "the server gets ca.crt, server.crt, server.key and sites/*.pub, and no other file" in text
    assert "delete it here: sites/north, sites/south" in text
    secrets = [tmp_path / "k" / name for name in ("server.key", "sites/south", "sites/north")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * 3
    key = load_ssh_private_key(secrets[2].read_bytes(), None)
    assert key.curve.name == "secp256r1"
    before = secrets[2].read_bytes(), (tmp_path / "k" / "server.crt").read_bytes()
    assert said("keys", tmp_path / "k", "--sites", "north,east")[0] == 0  # one more site: the others' keys stay
    assert before == (secrets[2].read_bytes(), (tmp_path / "k" / "server.crt").read_bytes())
    assert (tmp_path / "k" / "sites" / "east.pub").read_text().startswith("ecdsa-sha2-nistp256 ")
    assert said("keys", tmp_path / "k", "--sites", "../x")[0] == 2


@needs_flower
def test_encryption_and_authentication_unless_asked_otherwise(tmp_path):
    from equipoise.deploy.operations import keys, launch

    keys.make(tmp_path, ["north"])
    at = launch.Operator(tmp_path)
    link = launch.superlink("0.0.0.0", 8000, tmp_path, at)
    assert link[link.index("--operator") + 1] == str(at.socket)
    assert {"--superexec-auth-secret-file", "--keys"} <= {*link}
    assert {"--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth"} <= {*link}
    assert "--insecure" not in link
    node = launch.supernode("host:1", 2, {"site": "north", "data": "x y.csv"}, tmp_path)
    assert {"--root-certificates", "--auth-supernode-private-key"} <= {*node}
    assert node[node.index("--node-config") + 1] == "site='north' data='x y.csv'"
    assert "--insecure" not in node
    assert "--insecure" in launch.superlink("127.0.0.1", 8000, None, at)
    assert Path(link[2]).name == "superlink.py"  # the one that holds pulls
    assert "--database" not in link
    stock = launch.superlink("0.0.0.0", 8000, tmp_path, launch.Operator(tmp_path, 9000), database=tmp_path / "state.db")
    assert stock[stock.index("--host") + 1 :][:3] == ["127.0.0.1", "--port", "9000"]  # all but the sites' API
    assert "--database" in stock
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
    from equipoise.deploy.operations import launch

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
        (silos.settings(run={"lost": 0.1}), "run.lost is for simulations"),
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
@pytest.mark.parametrize("way", ["in the file", "on the command line"])
def test_a_server_names_no_code_that_sites_would_run(way, tmp_path, monkeypatch):
    """Neither by its command nor, where that is gone around, in the settings that a site is sent."""
    from equipoise.deploy.site.run import settings as settings_at_a_site

    monkeypatch.chdir(tmp_path)
    settings = silos.settings(model={"name": "torch"})
    more = ["--set", "model.torch=hospital:make"] if way == "on the command line" else []
    settings["model"] |= {"torch": "hospital:make"} if way == "in the file" else {}
    (tmp_path / "f.toml").write_text(tomli_w.dumps(settings))
    code, text = said("server", "f.toml", *more)
    assert code == 2
    assert text == (
        "error: f.toml: model.torch names code that sites would have to run because a server says so; leave it out, "
        "and let each site name its own: equipoise flower site NAME --torch module:function\n"
    )
    assert not (tmp_path / "runs").exists()
    settings["model"]["torch"] = "hospital:make"
    with pytest.raises(InputError, match=r"the run's settings: \[model\] has no key 'torch'"):
        settings_at_a_site({"settings": tomli_w.dumps(settings)})
    scored = tomli_w.dumps(silos.settings(run={"score": "hospital:f1"}))
    with pytest.raises(InputError, match=r"run.score is 'hospital:f1', which sites would have to import"):
        settings_at_a_site({"settings": scored})


@needs_flower
def test_what_a_local_federation_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.toml").write_text(tomli_w.dumps(silos.settings(federation={"sites": ["east", "west"]})))
    code, text = said("local", "f.toml")
    assert code == 2
    assert "give --silos, a folder with a file per site" in text
    silos.write(tmp_path / "files")
    code, text = said("local", "f.toml", "--silos", "files")
    assert code == 2
    assert "files has no file for west" in text
    (tmp_path / "files" / "west.csv").write_text("age,dose,ward\n1,2,a\n")
    code, text = said("local", "f.toml", "--silos", "files")
    assert code == 2
    assert "west (west.csv) has no column 'label'" in text
    assert text.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@needs_flower
def test_status_of_a_run(tmp_path, monkeypatch):
    from equipoise.deploy.server.status import StatusWriter

    monkeypatch.chdir(tmp_path)
    code, text = said("status")
    assert code == 2
    assert "there is no run over Flower in runs" in text
    (tmp_path / "runs" / "one").mkdir(parents=True)
    writer = StatusWriter(tmp_path / "runs" / "one", "one", ("north", "south"), 7)
    event = {"kind": "event", "round": 0, "exchange": "", "site": "north", "what": "joined", "why": "'north' is there"}
    writer.observe(event)
    writer.observe(
        {
            "kind": "exchange",
            "part": "train",
            "round": 2,
            "exchange": "collect",
            "asked": 2,
            "seconds": 0.5,
            "sites": {"north": 0.25},
            "bytes_down": 10,
            "bytes_up": 20,
        }
    )
    writer.observe({**event, "site": "south", "what": "late", "why": "no reply within 1 s [red]"})
    code, text = said("status")
    assert code == 0
    assert "training, round 3 of 7, 1 of 2 sites connected, 0.5 s per exchange, 10 bytes down, 20 up" in text
    assert "late: no reply within 1 s [red]" in text
    code, text = said("status", "--json")
    assert json.loads(text)["sites"]["north"] == {
        "state": "connected",
        "replies": 1,
        "seconds": 0.25,
        "mean_seconds": 0.25,
        "last_error": "",
    }
    writer.close("finished")
    lines = [json.loads(line) for line in (tmp_path / "runs" / "one" / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["event", "exchange", "event"]


@needs_flower
def test_the_live_page_is_served_on_this_machine_only(tmp_path):
    import httpx

    from equipoise.deploy.operations.commands import live_page

    with live_page(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        page = httpx.get(address)
        assert "status.json" in page.text
        assert not re.search(r"(src|href)=.https?:", page.text)  # self-contained
        assert httpx.get(address + "status.json").status_code == 404
        (tmp_path / "status.json").write_text("{}")
        assert httpx.get(address + "status.json").json() == {}
        assert httpx.get(address + "../../etc/passwd").status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


@needs_flower
def test_the_live_page_answers_under_its_own_name_only(tmp_path):
    """A page elsewhere may have its name point to this machine, and read what is served under that name."""
    import httpx

    from equipoise.deploy.operations.commands import live_page

    (tmp_path / "status.json").write_text("{}")
    with live_page(tmp_path) as address:
        port = httpx.URL(address).port
        for path in ("", "status.json"):
            codes = {
                host: httpx.get(address + path, headers={"Host": host}).status_code
                for host in (f"localhost:{port}", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil:{port}", "[x")
            }
            assert [*codes.values()] == [200, 403, 403, 403, 403], codes
        for hosts in ([f"127.0.0.1:{port}", "evil.example"], []):  # which httpx does not send
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall("".join(["GET / HTTP/1.0\r\n", *(f"Host: {h}\r\n" for h in hosts), "\r\n"]).encode())
                assert raw.makefile("rb").readline().split()[1] == b"403", hosts


@needs_flower
def test_a_key_is_registered_replaced_and_revoked(tmp_path):
    from equipoise.deploy.operations import keys

    k, own = tmp_path / "k", tmp_path / "own"
    assert said("keys", k)[0] == 2
    keys.make(k, ["north", "south"])
    keys.make(own, ["west", "other"])
    assert said("keys", k, "--add", f"west={own / 'sites' / 'west.pub'}")[0] == 0
    assert not (k / "sites" / "west").exists()  # its private key stays where it was made
    for words, sentence in [
        (("--add", f"west={own / 'sites' / 'other.pub'}"), "'west' has a key already"),
        (("--add", f"east={own / 'sites' / 'west.pub'}"), "is the key of 'west'; each site needs a key of its own"),
        (("--add", f"east={k / 'server.crt'}"), "holds no public key"),
        (("--add", "east"), "give NAME=FILE.pub"),
        (("--revoke", "east"), "has no key of 'east'; it has north, south, west"),
    ]:
        code, text = said("keys", k, *words)
        assert code == 2
        assert sentence in text
    before = keys.names(k)
    assert said("keys", k, "--rotate", f"west={own / 'sites' / 'other.pub'}", "--rotate", "north")[0] == 0
    code, text = said("keys", k, "--revoke", "south")
    assert code == 0
    assert "south joins" not in text
    after = keys.names(k)
    assert after.keys() == {"north", "west"}
    assert {*before.values()}.isdisjoint(after.values())
    code, text = said("keys", k, "--add", f"east={own / 'sites' / 'west.pub'}")
    assert code == 2
    assert "is a key that was revoked" in text


@needs_flower
def test_a_server_without_a_key_for_one_of_its_sites_says_so(tmp_path):
    from equipoise.deploy.operations import commands, keys

    keys.make(tmp_path, ["north", "south"])
    told, heard = config.parse(silos.settings()), []
    server = commands.Server(told, tmp_path / "run", heard.append, tmp_path / "state", tmp_path)
    with pytest.raises(InputError, match="has no key for east, so nobody could join under that name"):
        server.check_who_may_join()
    keys.make(tmp_path, ["east"])
    server.check_who_may_join()
    assert heard == ["may join, each with its own key: east, north, south"]
    server._replace(keys=None, host="0.0.0.0").check_who_may_join()
    assert "lets whoever reaches it join under any name" in heard[1]


@needs_flower
def test_what_a_site_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,label\n1,2\n")
    for words, sentence in [
        (["a"], "give the site's file, --loader module:function, or --torch module:function"),
        (["a", "b.csv"], "there is no file b.csv"),
        (["a", "a.csv"], "there is no key keys/sites/a"),
    ]:
        code, text = said("site", *words)
        assert code == 2
        assert sentence in text


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not running(pid)


@needs_flower
def test_a_process_ends_with_its_block_and_takes_along_what_it_started_in_any_session():
    from equipoise.deploy.operations import processes

    options = {"stdout": subprocess.PIPE, "text": True}
    with processes.process([sys.executable, "-c", STUBBORN], {}, **options) as child:
        grandchild = int(child.stdout.readline())
    assert gone(grandchild)
    child.stdout.close()
    with (
        processes.process([sys.executable, "-c", ""], {}) as child,
        pytest.raises(EquipoiseError, match="ended before it had begun"),
    ):
        processes.await_port(child, "127.0.0.1", processes.free_port(), 10)


@needs_flower
def test_a_process_ends_when_the_one_that_started_it_is_killed():
    """With -9, so that it cannot say so."""
    code = f"""
import sys, time
from equipoise.deploy.operations import processes
with processes.process([sys.executable, "-c", {STUBBORN!r}], {{}}) as child:
    print(child.pid, flush=True)
    time.sleep(60)
"""
    top = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(top.stdout.readline()) for _ in range(2)]
    top.kill()
    top.wait()
    top.stdout.close()
    assert all(map(gone, pids))


@needs_flower
def test_a_process_that_crashes_is_started_again_and_one_that_refuses_is_not(monkeypatch):
    from equipoise.deploy.operations import processes

    monkeypatch.setattr(processes, "RESTART", (0.01, 0.05))
    said, stop, codes = [], threading.Event(), iter([1, -9, 2])

    @contextlib.contextmanager
    def begin():
        code = next(codes)
        death = "import os; os.kill(os.getpid(), 9)" if code < 0 else f"raise SystemExit({code})"
        with processes.owned([sys.executable, "-c", death], {}) as child:
            yield child

    with pytest.raises(EquipoiseError, match="north could not start"):
        processes.keep_running(begin, stop, said.append, name="north")
    assert [text.split("(")[1].split(")")[0] for text in said] == ["exit 1", "exit -9"]
    codes = iter([1, 1, 1])
    with pytest.raises(EquipoiseError, match=r"the process of north ended 2 times \(exit 1\)"):
        processes.keep_running(begin, stop, said.append, name="north", tries=2)


@needs_flower
def test_what_a_server_has_named_cannot_hide_or_forge_a_line(tmp_path):
    """Of what an owner is shown before approving, and of the log: letters that a terminal obeys are escaped."""
    from equipoise.privacy import audit, policy

    name = "trial\x1b[8m\u202e\n- nothing is revealed"
    run = config.parse({"name": name, "data": {"label": "y"}, "federation": {"sites": 3}})
    digest = policy.digest_of(run.toml())
    (tmp_path / policy.PENDING).mkdir()
    (tmp_path / policy.PENDING / f"{digest}.toml").write_text(run.toml())
    code, text = said("approve", digest[:8], "--site", tmp_path, "--yes")
    assert code == 0, text
    assert f"{digest}: 'trial\\x1b[8m\\u202e\\n- nothing is revealed'" in text
    forged = "\n9 2030-01-01T00:00:00 statistics: replied\x1b[1A"
    audit.record(tmp_path, {"kind": "exchange", "exchange": forged, "answer": "refused", "why": "no"})
    code, shown = said("audit", tmp_path)
    assert code == 0, shown
    assert "statistics: replied\\x1b[1A: refused no" in shown
    assert not [line for line in shown.splitlines() if line.startswith("9 ")]
    assert not {"\x1b", "\u202e"} & {*text, *shown}
