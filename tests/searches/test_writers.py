"""One writer per folder: whoever comes second is told so, and the run is as if there had been no other."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise import files
from equipoise.errors import InputError
from equipoise.experiment import config, folders, plan, records, run
from tests.searches import tiny

ROOT = Path(__file__).parents[2]


MORE = 20  # tries, until two have been there at the same time


@pytest.mark.thorough(witness="::test_many_threads_hold_a_lock_one_after_the_other")
def test_writers_started_at_random_moments_leave_one_whole_run(tmp_path):
    tiny.silos(tmp_path / "silos")
    refused = 0
    for seed in range(tiny.LONGER + MORE):
        if seed >= tiny.LONGER and refused:
            break
        folder, whole = tmp_path / f"written {seed}", tmp_path / f"whole {seed}"
        out = subprocess.run(
            [sys.executable, "-m", "tests.searches.writers", str(folder), str(whole), "3", str(seed)],
            capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
        )  # fmt: skip
        assert out.returncode == 0, out.stderr[-2000:]
        assert "ended 1\n" not in out.stdout, out.stderr[-2000:]
        said = [line for line in out.stdout.splitlines() if line.startswith("refused:")]
        assert all("is being written by process" in line or "nothing to resume" in line or "meanwhile" in line
                   or "holds a" in line or "before it began" in line for line in said), said  # fmt: skip
        refused += sum("is being written by process" in line for line in said)
        for name in (records.HISTORY, records.MODEL, records.RESULT):
            assert (folder / name).read_bytes() == (whole / name).read_bytes()
        assert not (folder / folders.LOCK).exists()
    assert refused, "no two were ever there at the same time"


def test_a_second_comparison_in_the_same_folder_is_told_who_writes_it(tmp_path, monkeypatch):
    """As found: it resumed the run that was still going, and both ended with doubled rows."""
    tiny.use(monkeypatch)
    settings = tiny.settings(tiny.silos(tmp_path / "silos")) | {"compare": {"A": {"name": "fedavg"}}}
    jobs, said = plan.compare(settings), []

    def watch(job, at, of, row):
        if at != 2:
            return
        for second in (lambda: plan.run_all(jobs, tmp_path / "out"), lambda: run.resume(tmp_path / "out" / "A"),
                       lambda: run.run(jobs[0].config, tmp_path / "out" / "A", overwrite=True)):  # fmt: skip
            with pytest.raises(InputError) as error:
                second()
            said.append(str(error.value))

    (done,) = plan.run_all(jobs, tmp_path / "out", watch=watch)
    assert [row.round for row in done.rows] == [0, 1, 2, 3, 4]
    assert len(said) == 3
    for sentence in said:
        assert f"is being written by process {os.getpid()} on " in sentence
        assert "wait until that has ended, or stop it" in sentence


HOLD = """
import sys, time
from pathlib import Path
from equipoise import files
with files.locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    """The operating system releases it: nothing is left to remember a process of before a reboot by."""
    path = tmp_path / "writing.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match=f"it is being written by process {holder.pid} on "),
            files.locked(path, "it"),
        ):
            pass
        with pytest.raises(InputError, match="is being written by process"):
            files.check_unlocked(path, "it")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.is_file()  # what it left behind
    files.check_unlocked(path, "it")
    with files.locked(path, "it"):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def test_many_threads_hold_a_lock_one_after_the_other(tmp_path):
    inside, most, count = 0, 0, 0

    def work():
        nonlocal inside, most, count
        for _ in range(30):
            with files.locked(tmp_path / "lock", "it", wait=60):
                inside += 1
                most = max(most, inside)
                count += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, 120)


def test_waiting_for_a_lock_has_an_end(tmp_path):
    with files.locked(tmp_path / "lock", "it"):
        started = time.monotonic()
        with pytest.raises(InputError, match="is being written"), files.locked(tmp_path / "lock", "it", wait=0.3):
            pass
        assert time.monotonic() - started >= 0.3


def test_a_holder_that_has_not_yet_written_its_name_is_waited_for(tmp_path):
    """Between taking the lock and writing the name another may look: found when two began in the same millisecond."""
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    files._lock(descriptor)
    writer = threading.Timer(0.2, lambda: os.write(descriptor, b"process 7 on vm"))
    writer.start()
    with (
        pytest.raises(InputError, match="it is being written by process 7 on vm"),
        files.locked(tmp_path / "lock", "it"),
    ):
        pass
    writer.join()
    os.close(descriptor)


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(files, "_lock", refuse)
    with pytest.warns(files.LockWarning, match="has no locks"), files.locked(tmp_path / "lock", "it"):
        pass


@pytest.mark.parametrize("kind", ["run", "plan"])
def test_a_folder_that_becomes_another_between_two_looks_is_left_alone(tmp_path, monkeypatch, kind):
    """One process has found it free, the other one has been there meanwhile."""
    other = {"run": "plan", "plan": "run"}[kind]
    with folders.writing(tmp_path / "out", other, settings=""):
        (tmp_path / "out" / "report.html").write_text("of the other")
    before = tiny.contents(tmp_path / "out")
    monkeypatch.setattr(folders, "check", lambda *_, **__: None)
    with pytest.raises(InputError, match="begun by another process"), folders.writing(tmp_path / "out", kind):
        pass
    assert tiny.contents(tmp_path / "out") == before


def test_overwriting_removes_links_and_not_what_they_point_to(tmp_path, monkeypatch):
    tiny.use(monkeypatch)
    mine, folder = tmp_path / "mine", tmp_path / "out"
    mine.mkdir()
    for name in ("history.jsonl", "model.safetensors", "events.out.tfevents.1"):
        (mine / name).write_text("years of work")
    told = config.parse(tiny.settings(tiny.silos(tmp_path / "silos"), run={"rounds": 1}))
    run.run(told, folder)
    for name in ("history.jsonl", "model.safetensors"):
        (folder / name).unlink()
        (folder / name).symlink_to(mine / name)
    (folder / "tensorboard").symlink_to(mine, target_is_directory=True)
    run.run(told, folder, overwrite=True)
    assert {path.read_text() for path in mine.iterdir()} == {"years of work"}
    assert not (folder / "history.jsonl").is_symlink()


def test_a_folder_in_one_that_may_not_be_written_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write everywhere
    with pytest.raises(InputError, match="may not be written by you"):
        folders.check(tmp_path / "out", "run", overwrite=False)
