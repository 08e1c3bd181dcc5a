import functools
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
import zipfile

import pytest

from equipoise.data import catalogue
from equipoise.data.datasets.catalogue import CATALOGUE, Remote
from equipoise.errors import InputError


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder, and the address under which this machine serves it to itself."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def offer(monkeypatch, name, *remotes):
    monkeypatch.setitem(CATALOGUE, name, CATALOGUE[name]._replace(remotes=remotes))


ROW = "39, Private, 7, HS-grad, 13, Divorced, Sales, Wife, White, Male, 1, 0, 40, Cuba, <=50K\n"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_says_what_it_is(name):
    entry = CATALOGUE[name]
    assert entry.what
    assert entry.licence
    assert all(re.fullmatch("(md5:[0-9a-f]{32})|(sha256:[0-9a-f]{64})", remote.checksum) for remote in entry.remotes)
    assert bool(entry.files) == bool(entry.probe)


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.files])
def test_every_loader_says_where_to_put_the_files(name, tmp_path, monkeypatch):
    inside = tuple(folder for folder in CATALOGUE[name].elsewhere if not folder.startswith("/"))
    monkeypatch.setitem(CATALOGUE, name, CATALOGUE[name]._replace(elsewhere=inside))
    with pytest.raises(InputError, match=f"{name} was not found: put .* into {tmp_path}/"):
        catalogue.load(name, data_dir=tmp_path)
    assert catalogue.where(name, tmp_path) is None


def test_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "set"))
    assert catalogue.root() == tmp_path / "set"
    assert catalogue.root(tmp_path) == tmp_path
    monkeypatch.delenv("EQUIPOISE_DATA")
    assert catalogue.root().name == "equipoise"


def test_names_and_options_that_do_not_exist():
    with pytest.raises(InputError, match="did you mean 'cifar-100'"):
        catalogue.load("cifar100")
    with pytest.raises(InputError, match="did you mean 'split'"):
        catalogue.load("emnist", splitt="letters")
    assert len(catalogue.load("digits").labels) == 1797


def test_download_on_demand_with_a_checksum(served, tmp_path, monkeypatch):
    folder, address = served
    remotes = []
    for file, body in (("adult.data", ROW), ("adult.test", ROW)):
        (folder / file).write_text(body)
        remotes.append(Remote(f"{address}/{file}", f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"))
    offer(monkeypatch, "adult", *remotes)
    with pytest.raises(InputError, match="or ask for the download"):
        catalogue.load("adult", data_dir=tmp_path / "data")
    assert catalogue.load("adult", data_dir=tmp_path / "data", download=True).labels.tolist() == [0]
    assert catalogue.where("adult", tmp_path / "data") == tmp_path / "data" / "adult"
    (folder / "adult.data").unlink()  # from now on it is there
    assert catalogue.load("adult", data_dir=tmp_path / "data", download=True).labels.tolist() == [0]


def test_another_checksum_is_refused(served, tmp_path, monkeypatch):
    folder, address = served
    (folder / "adult.data").write_text(ROW)
    offer(monkeypatch, "adult", Remote(f"{address}/adult.data", "md5:" + "0" * 32))
    with pytest.raises(InputError, match=r"could not be downloaded .*hash"):
        catalogue.load("adult", data_dir=tmp_path / "data", download=True)
    assert not (tmp_path / "data" / "adult" / "adult.data").exists()


def test_no_network_is_a_sentence(tmp_path, monkeypatch):
    offer(monkeypatch, "adult", Remote("http://127.0.0.1:9/adult.data", "md5:" + "0" * 32))
    with pytest.raises(InputError, match=r"could not be downloaded .*; adult was not found: put adult\.data"):
        catalogue.load("adult", data_dir=tmp_path, download=True)


def test_without_pooch_a_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    offer(monkeypatch, "adult", Remote("http://127.0.0.1:9/adult.data", "md5:" + "0" * 32))
    with pytest.raises(InputError, match=r"downloads need .*\(pooch\): pip install 'equipoise\[data\]'"):
        catalogue.load("adult", data_dir=tmp_path, download=True)


def test_what_has_no_checksum_is_not_downloaded(tmp_path):
    with pytest.raises(InputError, match="no download with a known checksum"):
        catalogue.fetch("shakespeare", tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked(served, tmp_path, monkeypatch, kind):
    folder, address = served
    body = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(body, "w") as archive:
            archive.writestr("inner/data_batch_1", "x")
    else:
        with tarfile.open(fileobj=body, mode="w:gz") as archive:
            info = tarfile.TarInfo("inner/data_batch_1")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
    (folder / f"a.{kind}").write_bytes(body.getvalue())
    md5 = hashlib.md5(body.getvalue(), usedforsecurity=False).hexdigest()
    offer(monkeypatch, "cifar-10", Remote(f"{address}/a.{kind}", f"md5:{md5}", archive=True))
    catalogue.fetch("cifar-10", tmp_path)
    assert (tmp_path / "cifar-10" / "inner" / "data_batch_1").read_text() == "x"
