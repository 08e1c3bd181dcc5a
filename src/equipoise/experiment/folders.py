"""Folders that runs and plans write: how they are called, whose they are, and one writer at a time.

A folder that Equipoise writes has a marker, `equipoise.json`, with the version of its format. Only in a folder with a
marker is anything ever deleted, and there only the files that a run makes; others stay as they are. `writing.lock` is
there while a process writes, and is held by it (`files.locked`).
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import equipoise
from equipoise import files
from equipoise.errors import InputError, require
from equipoise.experiment import records
from equipoise.experiment.records import FORMAT, MARKER, Kind, Marker, marker

LOCK = "writing.lock"
PAGE, TABLE, SERVER, BOARD = "report.html", "table.md", "server.txt", "tensorboard"
RECEIPTS = "receipts.json"  # over Flower: where the log of each site stood, signed by the site
BASELINES = "baselines.json"  # over Flower: of every site, the loss of its own model
PATH = "path.json"  # over Flower: the points that were heard of while settings were chosen
# The result first: without it, what a process that was killed has left counts as a run to start over.
MADE: dict[Kind, tuple[str, ...]] = {
    "run": (*records.FILES, SERVER, RECEIPTS, BASELINES, PATH, PAGE, records.CONFIG),
    "plan": (PAGE, TABLE),
}
EVENTS = "events.out.tfevents.*"  # below BOARD
BRAND = b">Equipoise report<"  # stands in every page
MAKERS = {"run": "`equipoise run`", "plan": "`equipoise compare` or `sweep`"}


def name(label: str) -> str:
    """A folder's name for any text, another one for every other text, that any file system takes.

    Plain words stand for themselves; what had to be left out of others is in a digest.
    """
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,59}", label)
    reserved = re.fullmatch(r"(?i)con|prn|aux|nul|com\d|lpt\d|.*-[0-9a-f]{10}", label)
    return label if plain and not reserved else digested(label, label)


def digested(readable: str, exact: str) -> str:
    """As much of `readable` as any file system takes, and a digest of `exact`."""
    short = re.sub(r"[^A-Za-z0-9._+-]+", "-", readable)[:60].strip("-.").lower()
    return "-".join(filter(None, (short, hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()[:10])))


def check(folder: Path, kind: Kind, *, overwrite: bool) -> None:
    """`folder` is empty or can be made, or it is of this kind and may be replaced; a plan may always be resumed.

    Nothing is changed.
    """
    files.check_place(folder)
    if not folder.exists():
        return
    files.check_unlocked(folder / LOCK, str(folder))
    marked = marker(folder)
    if marked is None:
        _check_empty(folder)
        return
    other = f"{folder} is a folder of {MAKERS[marked.kind]}, not of {MAKERS[kind]}; give another --out"
    require(marked.kind == kind, other)
    if kind == "plan" or overwrite or not (folder / records.CONFIG).is_file():
        return
    finished = f"{folder} holds a finished run; give another --out, or --overwrite to replace it"
    stopped = f"{folder} holds a run that was stopped: `equipoise resume {folder}` resumes it, --overwrite starts over"
    raise InputError(finished if records.finished(folder) else stopped)


def _check_empty(folder: Path) -> None:
    try:
        names = sorted(path.name for path in folder.iterdir())
        others = [name for name in names if name != LOCK and not files.TEMPORARY.fullmatch(name)]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({files.reason(error)}); give another --out") from error
    if not others:
        return
    wrong = f"{folder} holds a run of a version before {MARKER}: `equipoise report` and `predict` read it"
    require(not old_run(folder), f"{wrong}, but it is not written to; give another --out, or delete it yourself")
    some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    raise InputError(f"{folder} holds files that Equipoise did not make ({some}); give another --out")


def old_run(folder: Path) -> bool:
    """A run of a version before markers."""
    return all((folder / file).is_file() for file in (records.CONFIG, records.ENVIRONMENT, records.FEDERATION))


@contextmanager
def writing(folder: Path, kind: Kind, *, overwrite: bool = False, settings: str = "") -> Iterator[None]:
    """`folder` as one to begin in, or (a plan's) to go on in; no other process writes it meanwhile.

    `settings` is a digest of those of the run, for the marker.
    """
    check(folder, kind, overwrite=overwrite)
    files.make_folder(folder)
    with files.locked(folder / LOCK, str(folder)):
        marked = marker(folder)
        if marked is None:
            _check_empty(folder)
        else:  # another process may have come first
            ours = marked.kind == kind and (kind == "plan" or overwrite or not (folder / records.CONFIG).is_file())
            require(ours, f"{folder} was begun by another process meanwhile; give another --out")
            if kind == "run":
                clear(folder)
        mark = Marker(equipoise=equipoise.__version__, format=FORMAT, kind=kind, settings=settings)
        records.write_record(folder / MARKER, mark)
        yield


@contextmanager
def resuming(folder: Path, *, wait: float = 0.0) -> Iterator[Marker]:
    """`folder` as that of a run to resume; no other process writes it meanwhile, or after `wait` seconds."""
    marked = marker(folder) if folder.is_dir() else None
    if marked is None:
        wrong = f"{folder} was begun by a version before {MARKER}, whose runs cannot be resumed"
        require(not old_run(folder), f"{wrong}; start over: `equipoise run {folder / records.CONFIG} --out ...`")
        raise InputError(f"{folder} is not a run folder; give one that `equipoise run` made")
    require(marked.kind == "run", f"{folder} holds several runs; give one of them, or the command that began them")
    early = f"{folder} has no {records.CONFIG}: it was stopped before it began"
    require((folder / records.CONFIG).is_file(), f"{early}; give the command that began it again")
    with files.locked(folder / LOCK, str(folder), wait=wait):
        yield marked


def clear(folder: Path) -> None:
    """Deletes what a run made, and nothing else."""
    for file in (*MADE["run"], *(path.name for path in folder.iterdir() if files.TEMPORARY.fullmatch(path.name))):
        path = folder / file
        if path.is_file() or path.is_symlink():
            files.remove(path)
    for stage in (folder / records.STAGE_1, folder / records.CONVEXIFIED):
        if stage.is_dir() and not stage.is_symlink() and marker(stage) is not None:
            clear(stage)
            for file in (MARKER, LOCK):
                files.remove(stage / file)
            with suppress(OSError):
                stage.rmdir()
    board = folder / BOARD
    if board.is_dir() and not board.is_symlink():
        for path in board.glob(EVENTS):
            files.remove(path)
        with suppress(OSError):  # something else is in it
            board.rmdir()


def check_page(path: Path) -> None:
    """`path` is free to be written, or is a page that Equipoise wrote."""
    made = path.name == PAGE and marker(path.parent) is not None
    files.check_own(path, lambda content: made or BRAND in content, "a page that Equipoise wrote")
