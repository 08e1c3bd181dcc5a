"""What a run comes from: its settings, its data, the code. A run resumes from the same only."""

import hashlib
import json
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import jax
import numpy as np

import equipoise
from equipoise import extensions, files
from equipoise.data import silos
from equipoise.errors import FileError
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import JsonRecord

SOURCE = Path(equipoise.__file__).parent
# What changes nothing in the numbers; where the silo files are is not what is in them.
ANYWAY = {"name", "data.data_dir", "data.download", "data.silos"}
ANYWAY |= {"run.checkpoint_seconds", "run.tensorboard", "run.mlflow"}
SHOWN = 5  # differences in a sentence


class Origin(JsonRecord):
    """Everything that has to be the same for a resumed run to end bit for bit like an uninterrupted one."""

    settings: dict[str, str]  # "section.key" -> its value as JSON
    files: dict[str, str]  # silo file -> its size and digest
    data: str  # a digest of the rows, as they were divided and encoded
    code: str  # versions, and a digest of the source


def origin_of(config: Config, problem: Problem) -> Origin:
    if problem not in _data:
        # Features follow from the rows and the network, and may be many times larger.
        network = problem.network
        given = (problem.train, problem.test, problem.x) if network is None else network[:3]
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(given):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.data if array.size else b"")
        _data[problem] = (digest.hexdigest(), digests_of_silos(config))
    data, silo_files = _data[problem]
    return Origin(settings=flat(config), files=silo_files, data=data, code=code(config))


_data: WeakKeyDictionary[Problem, tuple[str, dict[str, str]]] = WeakKeyDictionary()  # runs of a plan share them


def differences(before: Origin, now: Origin) -> list[str]:
    """What is not the same, most telling first."""
    changes = [*of_settings(before.settings, now.settings, ANYWAY), *of_files(before.files, now.files)]
    if before.code != now.code:
        changes.append(f"the code was {before.code} and is {now.code}")
    if before.data != now.data and not changes:
        changes.append("the rows of the data are others")
    return changes[:SHOWN] + (["..."] if len(changes) > SHOWN else [])


def of_settings(before: Mapping[str, str], now: Mapping[str, str], leave_out: Container[str] = ()) -> Iterator[str]:
    for key in dict.fromkeys((*before, *now)):
        a, b = before.get(key, "not set"), now.get(key, "not set")
        if a != b and key not in leave_out:
            yield f"{key} was {a} and is {b}"


def of_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for file in sorted({*before, *now}):
        if before.get(file) != now.get(file):
            change = "has changed" if file in before and file in now else "is gone" if file in before else "is new"
            yield f"{file} {change}"


def flat(config: Config) -> dict[str, str]:
    """ "section.key" and its value, as text."""
    out: dict[str, str] = {}
    for section, values in config.model_dump(mode="json", exclude_none=True).items():
        if isinstance(values, dict):
            out |= {f"{section}.{key}": json.dumps(value, sort_keys=True) for key, value in values.items()}
        else:
            out[section] = json.dumps(values)
    return out


def digest_of_settings(config: Config) -> str:
    """Of those that make a difference."""
    relevant = {key: value for key, value in flat(config).items() if key not in ANYWAY}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()


def digests_of_silos(config: Config) -> dict[str, str]:
    """Of the files of `data.silos`, by name; nothing where the rows come from elsewhere."""
    if config.data.silos is None:
        return {}
    digests = {}
    for path in silos.silo_files(Path(config.data.silos))[0]:
        try:
            with path.open("rb") as file:
                digests[path.name] = f"{path.stat().st_size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise FileError(f"{path} cannot be read ({files.reason(error)})") from error
    return digests


def code(config: Config) -> str:
    """Versions, and digests of the source of all that computes, code of the user's own included."""
    versions = [f"Equipoise {equipoise.__version__} ({_source()})", f"JAX {jax.__version__}"]
    for name in (config.data.name, config.objective.name, config.algorithm.name):
        if extensions.is_reference(name) and (source := extensions.digest(name)):
            versions.append(f"{name} ({source})")
    return ", ".join(versions)


@cache
def _source() -> str:
    """What only shows results may change meanwhile."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        if where.parts[0] not in ("cli", "report"):
            digest.update(str(where).encode() + path.read_bytes())
    return digest.hexdigest()[:8]
