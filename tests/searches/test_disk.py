"""A disk that fails at the k-th operation, for every k of a short run: the run goes on bit for bit."""

import errno
import itertools
import os

import pytest

from equipoise import files
from equipoise.experiment import config, folders, records, run
from equipoise.experiment.problems import build_problem
from tests.searches import tiny


class Disk:
    """Counts what is asked of it, and fails once."""

    def __init__(self, fails_at, how=errno.ENOSPC):
        self.fails_at, self.how, self.asked = fails_at, how, 0

    def ask(self):
        self.asked += 1
        if self.asked == self.fails_at:
            raise OSError(self.how, os.strerror(self.how))

    def attach(self, monkeypatch):
        """Half of a write may reach it."""
        disk, path_open = self, files.Path.open

        def opened(path, mode="r", *rest, **more):
            file = path_open(path, mode, *rest, **more)
            if not set(mode) & set("awx+"):
                return file
            write = file.write

            def half(content):
                try:
                    disk.ask()
                except OSError:
                    write(content[: len(content) // 2])
                    file.flush()
                    raise
                return write(content)

            return Half(file, half)

        monkeypatch.setattr(files.Path, "open", opened)
        for name in ("fsync", "replace"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, real=real: (disk.ask(), real(*a))[1])
        make = files.Path.mkdir
        monkeypatch.setattr(files.Path, "mkdir", lambda *a, **b: (disk.ask(), make(*a, **b))[1])
        remove = files.Path.unlink
        monkeypatch.setattr(files.Path, "unlink", lambda *a, **b: (disk.ask(), remove(*a, **b))[1])


class Half:
    """A file whose writes may be cut off."""

    def __init__(self, file, write):
        self.file, self.write = file, write

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    return config.parse(tiny.settings(tiny.silos(tmp_path / "silos")))


def kept(folder):
    """What a run is known by; times and the machine are not in it, and a finished one needs no checkpoint."""
    assert records.finished(folder)
    aside = (records.ENVIRONMENT, records.CHECKPOINT, folders.LOCK)  # the last one free, if it could not be removed
    return {name: content for name, content in tiny.contents(folder).items() if name not in aside}


def test_whatever_write_fails_the_run_goes_on_bit_for_bit(config_of, tmp_path):
    same = {"problem": build_problem(config_of)}
    run.run(config_of, whole := tmp_path / "whole", **same)
    told = set()
    for k in itertools.count(1):
        folder, disk = tmp_path / f"fails at {k}", Disk(k, (errno.ENOSPC, errno.EIO)[k % 2])
        with pytest.MonkeyPatch.context() as patched:
            disk.attach(patched)
            _, said = tiny.tried(lambda folder=folder: run.run(config_of, folder, **same))
        if said is not None:
            assert str(folder) in said
            assert os.strerror(disk.how) in said
            told.add(said.replace(str(folder), "FOLDER"))
        if disk.asked < k:
            break
        if not records.finished(folder):
            if (folder / records.CONFIG).is_file():
                run.resume(folder, **same)
            else:
                run.run(config_of, folder, **same)  # nothing was begun: the same command again
        assert kept(folder) == kept(whole), f"operation {k}"
    assert k > 50, "the run writes less than it did; is the disk still attached?"
    assert {sentence.split()[0].rpartition("/")[2] for sentence in told} >= {
        records.CONFIG, records.HISTORY, records.CHECKPOINT, records.MODEL, records.RESULT, "equipoise.json", "FOLDER"
    }  # fmt: skip


def test_whatever_write_fails_while_it_is_overwritten_nothing_else_is_lost(config_of, tmp_path):
    """And what is half overwritten is never taken for a run."""
    other = config.parse(tiny.settings(tmp_path / "silos", run={"seed": 1, "rounds": 1}))
    same = {"problem": build_problem(other), "overwrite": True}
    run.run(config_of, first := tmp_path / "first")
    (first / "notes.txt").write_text("mine")
    run.run(other, whole := tmp_path / "whole", **same)
    disk = Disk(0)
    with pytest.MonkeyPatch.context() as patched:
        disk.attach(patched)
        run.run(other, first, **same)
    for k in range(1, disk.asked, max(1, 4 // tiny.LONGER)):
        with pytest.MonkeyPatch.context() as patched:
            Disk(k).attach(patched)
            said = tiny.tried(lambda: run.run(other, first, **same))[1]
        assert said or records.finished(first)  # what is left to tidy up at the end may fail
        assert (first / "notes.txt").read_text() == "mine"
        run.run(other, first, **same)
        found = kept(first)
        assert found.pop("notes.txt") == b"mine"
        assert found == kept(whole)
