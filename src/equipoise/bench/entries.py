"""What a method did on one split of a federation, as a file: results are a folder of these, to be sent and merged.

    results/FEDERATION/METHOD/split-0.json

All methods are scored in here, from their outputs alone. With l_i the mean loss of owner i's held-out rows (log loss,
or squared error where a number is predicted), b_i that of its own base rate (or mean), a_i that of its own model:

    skill_i = (b_i - l_i) / B        gain_i = (a_i - l_i) / B        B: the mean of the b_i

so that 0 is no better than the base rate, and 1 is perfect. B is the same for all owners: in 1 - l_i / b_i, owners
where hardly anything happens would count for most. Of a regression the skill is an R2, against the owner's own mean.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from equipoise.bench.federations import Split
from equipoise.errors import InputError, require
from equipoise.evaluation.evidence import Evidence, of_errors
from equipoise.evaluation.intervals import bounds_of
from equipoise.evaluation.rules import worst_mean
from equipoise.experiment import folders, records
from equipoise.experiment.records import JsonRecord, Number, PerClient

RESULTS = "results"
TENTHS, CALIBRATION_DRAWS = 10, 400
LEAST_CHANCE = 1e-6  # a probability below it counts as this: one row must not decide on everything
Three = tuple[Number, Number, Number]  # low, estimate, high


class Entry(JsonRecord):
    """One method on one split of one federation."""

    federation: str
    method: str
    about: str
    kind: str
    split: int
    rows: str  # a digest: entries with the same one are of the same rows
    source: str  # a digest of the settings, versions and files that it is made of (`run.source_of`)
    owners: tuple[str, ...]
    tested: tuple[int, ...]  # rows
    unit: float  # B
    base: PerClient  # b_i
    loss: PerClient  # l_i
    skill: PerClient
    gain: PerClient  # over each owner's own model
    mean: Three  # of the skill, with bounds for what finitely many rows leave open
    worst: Three  # of the worst fifth, corrected for chance
    worst_gain: Three
    auroc: PerClient  # of two classes, of owners that have both; None elsewhere
    calibration: Three | None  # mean distance of what was expected from what came, over tenths of all rows
    rounds: Number = None  # None: it is not trained in rounds
    megabytes: Number = None  # to and from all owners together
    seconds: Number = None  # of training, compilation included; of a model from outside, of fitting and predicting
    cores: int  # of the machine, which federations that ran at the same time have shared
    equipoise: str
    settings: str = ""  # of the run, as a file


def path_of(folder: Path, federation: str, method: str, split: int) -> Path:
    return folder / RESULTS / folders.name(federation) / folders.name(method) / f"split-{split}.json"


def read(folder: Path) -> list[Entry]:
    require(folder.is_dir(), f"there is no folder {folder}; give one that `equipoise bench` made")
    root = folder / RESULTS if (folder / RESULTS).is_dir() else folder
    entries = [_consistent(path, records.read_record(path, Entry)) for path in sorted(root.rglob("split-*.json"))]
    require(entries, f"{folder} has no results of `equipoise bench`; give the folder that it wrote, or its {RESULTS}/")
    return entries


def _consistent(path: Path, entry: Entry) -> Entry:
    """Its skills follow from its losses, so that whoever changes one of them changes all."""
    columns = [entry.base, entry.loss, entry.skill, entry.gain, entry.auroc]
    if {len(entry.owners), len(entry.tested)} == {len(column) for column in columns}:
        base, loss, skill = (np.array(column, np.float64) for column in columns[:3])
        if np.allclose(skill, (base - loss) / entry.unit, atol=1e-6) and np.isclose(base.mean(), entry.unit):
            return entry
    raise InputError(f"{path} contradicts itself: its skills are not what its losses make; run that method again")


def together(places: Sequence[Path]) -> list[Entry]:
    """The entries of several folders, each once (of methods of ours the first), all of a split of the same rows."""
    entries = [entry for folder in places for entry in read(folder)]
    rows: dict[tuple[str, int], Entry] = {}
    unique: dict[tuple[str, str, int], Entry] = {}
    for entry in entries:
        first = rows.setdefault((entry.federation, entry.split), entry)
        where, (one, other) = f"split {entry.split} of {entry.federation}", (first.base, entry.base)
        base = np.allclose(np.array(one, np.float64), np.array(other, np.float64))
        require(
            first.rows == entry.rows and first.tested == entry.tested and base,
            f"{where} has other rows for '{entry.method}' than for '{first.method}': they are of different versions of "
            "the data; leave one of them out, and run it again into another --out",
        )
        same = unique.setdefault((entry.federation, entry.method, entry.split), entry)
        wrong = f"two different methods are called '{entry.method}' ({where}); give one of their files another name"
        require(entry.kind != "entered" or same.source == entry.source, wrong)
    return list(unique.values())


Outputs = tuple[np.ndarray, ...]  # of every owner: probabilities [rows, classes], or numbers [rows]


def outputs_of(predict: Callable[[int, np.ndarray], np.ndarray], split: Split, method: str) -> Outputs:
    """What a fitted model says of the held-out rows, checked; an InputError says in a sentence what is wrong."""
    k = len(split.federation.classes)
    vectors, differs = [], f"'{method}' says something else of a row when other rows stand beside it"
    for owner, (inputs, name) in enumerate(zip(split.test_inputs, split.federation.owners, strict=True)):
        outputs = checked(predict(owner, inputs.copy()), len(inputs), k, method, name)
        half = (len(inputs) + 1) // 2
        again = checked(predict(owner, inputs[:half].copy()), half, k, method, name)
        alike = np.allclose(outputs[:half], again, rtol=1e-4, atol=1e-5)
        require(alike, f"{differs}; a model has to predict every row by itself")
        vectors.append(outputs)
    return tuple(vectors)


def checked(outputs: object, rows: int, k: int, method: str, owner: str) -> np.ndarray:
    try:
        array = np.asarray(outputs)
    except (TypeError, ValueError):  # lists of different lengths
        array = np.array(outputs, object)
    what = f"an array of {array.dtype}" if isinstance(outputs, np.ndarray) else type(outputs).__name__
    require(array.dtype.kind in "fiub", f"'{method}' predicts {what} for {owner}; return an array of numbers")
    array = array.astype(np.float64)
    wanted = (rows, k) if k else (rows,)
    what = "a probability per row and class" if k else "a number per row"
    require(array.shape == wanted, f"'{method}' predicts shape {array.shape} for {owner}, not {wanted}: give {what}")
    odd = int((~np.isfinite(array)).sum())
    wrong = f"'{method}' predicts {odd} numbers that are not finite for {owner}; a smaller step size may help"
    require(odd == 0, wrong)
    if k:
        fine = (array >= -1e-6).all() and np.allclose(array.sum(1), 1, atol=1e-3)
        require(fine, f"'{method}' predicts no probabilities for {owner}: give numbers from zero up that add up to one")
    return array


def losses_of(outputs: Outputs, split: Split) -> Outputs:
    """Of every held-out row."""
    k = len(split.federation.classes)
    pairs = zip(outputs, split.test_labels, strict=True)
    if not k:
        return tuple((out - y) ** 2 for out, y in pairs)
    return tuple(-np.log(np.clip(out[np.arange(len(y)), y], LEAST_CHANCE, 1)) for out, y in pairs)


def base_losses(split: Split) -> Outputs:
    """The same of every owner's base rate, as if one more row, spread over the classes, had been seen; or its mean."""
    k, labels = len(split.federation.classes), split.federation.labels
    if not k:
        pairs = zip(labels, split.test_labels, strict=True)
        return tuple((y.astype(np.float64) - seen.mean(dtype=np.float64)) ** 2 for seen, y in pairs)
    rates = [(np.bincount(seen, minlength=k) + 1 / k) / (len(seen) + 1) for seen in labels]
    return tuple(-np.log(rate[y]) for rate, y in zip(rates, split.test_labels, strict=True))


def scores(outputs: Outputs, split: Split, alone: Outputs | None) -> dict[str, Any]:
    """The fields of an entry that are made of outputs; `alone`: the losses of every owner's own model, row by row."""
    losses, base = losses_of(outputs, split), base_losses(split)
    alone = losses if alone is None else alone
    means = np.array([b.mean() for b in base])
    unit = float(means.mean())
    skill, worst_of = _differences(base, losses, unit), _bounds(base, losses, unit)
    sizes = tuple(len(y) for y in split.test_labels)
    gains = _bounds(alone, losses, unit)[1] if alone is not losses else (0.0, 0.0, 0.0)
    two = len(split.federation.classes) == 2
    pairs = list(zip(outputs, split.test_labels, strict=True))
    return {
        "federation": split.federation.name,
        "rows": split.rows,
        "owners": split.federation.owners,
        "tested": sizes,
        "unit": unit,
        "base": tuple(means.tolist()),
        "loss": tuple(float(a.mean()) for a in losses),
        "skill": tuple(skill.tolist()),
        "gain": tuple(_differences(alone, losses, unit).tolist()),
        "mean": worst_of[0],
        "worst": worst_of[1],
        "worst_gain": gains,
        "auroc": tuple(_auroc(p[:, 1], y) if two else None for p, y in pairs),
        "calibration": _calibration(outputs, split) if split.federation.classes else None,
    }


def _differences(than: Outputs, losses: Outputs, unit: float) -> np.ndarray:
    return np.array([(a - b).mean() for a, b in zip(than, losses, strict=True)]) / unit


def _bounds(than: Outputs, losses: Outputs, unit: float) -> tuple[Three, Three]:
    """Of the mean over the owners and over the worst fifth of them, by how the differences of their rows scatter."""
    values, rows = _differences(than, losses, unit), np.array([len(a) for a in losses], np.float64)
    scatter = [np.std(a - b, ddof=1) if len(a) > 1 else np.inf for a, b in zip(than, losses, strict=True)]
    error = np.array(scatter) / unit / np.sqrt(rows)
    if error.max() < 1e-9:  # the two say the same of every row
        middle, least = float(values.mean()), float(worst_mean(values, True))
        return (middle, middle, middle), (least, least, least)

    def evidence_of(some: np.ndarray) -> Evidence:
        return of_errors(values[some], error[some], rows[some])

    _, _, mean, worst = bounds_of(evidence_of, rows, higher_is_better=True, key=0)
    worst_of = min(worst.estimate, mean.estimate)  # of a few owners that are far off, the correction can say too much
    return (mean.low, mean.estimate, mean.high), (min(worst.low, worst_of), worst_of, worst.high)


def _auroc(chance: np.ndarray, y: np.ndarray) -> float | None:
    positive = int((y == 1).sum())
    if positive in (0, len(y)):
        return None
    ranks = rankdata(chance)[y == 1].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * (len(y) - positive)))


def _calibration(outputs: Outputs, split: Split) -> Three:
    """With bounds of 95% for the owners that could have been others; tenths, and which way they are off, stay."""
    p, y = np.concatenate(outputs), np.concatenate(split.test_labels)
    two = p.shape[1] == 2
    chance, came = (p[:, 1], y == 1) if two else (p.max(1), p.argmax(1) == y)
    tenth = np.empty(len(y), int)
    for place, part in enumerate(np.array_split(np.argsort(chance, kind="stable"), TENTHS)):
        tenth[part] = place
    off = chance - came
    wrong = np.abs(np.bincount(tenth, off)).sum() / len(y)
    towards = np.sign(np.bincount(tenth, off))[tenth] * off  # their sum over all rows is what is wrong
    ends = np.cumsum([len(out) for out in outputs])[:-1]
    of_owner, rows = (np.array([part.sum() for part in np.split(v, ends)]) for v in (towards, np.ones(len(y))))
    who = np.random.default_rng(len(rows)).integers(len(rows), size=(CALIBRATION_DRAWS, len(rows)))
    drawn = of_owner[who].sum(1) / rows[who].sum(1)
    estimate = float(wrong)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.clip(low, 0, estimate)), estimate, float(max(high, estimate))
