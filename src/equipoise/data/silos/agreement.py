"""One encoding for all silos, fitted to what they told (statistics.py) and to nothing else."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from equipoise.data.silos.cells import listing
from equipoise.data.silos.conventions import settle, undecided
from equipoise.data.silos.encoding import Encoding, Feature, Target
from equipoise.data.silos.statistics import CLASSES, Column, Options, Statistics
from equipoise.errors import InputError, require

CONSTANT = "it has the same value everywhere"
MANY = "it looks like an identifier (too many different texts); name it in data.categorical to keep it"
INDEX = "it has no name of its own, as the index of a table"


def agree(statistics: Sequence[Statistics], options: Options) -> Encoding:
    """The encoding that all silos use. A pure function of what they told; their order does not matter."""
    require(len(statistics) > 0, "no silo told its statistics; give those of at least one")
    ordered = sorted(statistics, key=lambda s: s.site)
    for one, two in pairwise(s.site for s in ordered):
        require(one != two, f"two silos are called {one!r}; give each its own name")
    (site, first), *others = ((s.site, [c.name for c in s.columns]) for s in ordered)
    for other, columns in others:
        for where, there, against, wanted in ((other, columns, site, first), (site, first, other, columns)):
            lacks = [name for name in wanted if name not in there]
            require(
                not lacks, f"{where} lacks the column {listing(lacks)}, which {against} has; give all silos the same"
            )
    settled = _settled(ordered, options)
    fitted = _features(settled, options)
    features = tuple(f for f in fitted.values() if isinstance(f, Feature))
    unnamed = dict.fromkeys(name for s in ordered for name in s.unnamed)
    dropped = tuple((name, f) for name, f in fitted.items() if isinstance(f, str))
    dropped += tuple((name, INDEX) for name in unnamed)
    reasons = "; ".join(f"{name!r}: {why}" for name, why in dropped) or "only the label was given"
    require(features, f"no column is left to learn from ({reasons})")
    arrays = [f.name for f in features if f.kind == "array"]
    require(
        not arrays or len(features) == 1,
        f"the column {listing(arrays)} holds arrays and has to be the only input; drop the other columns",
    )
    target = _target({s.site: s.label for s in settled}, options)
    task = "classification" if target.classes else "regression"
    seen = {way for ways in (*(f.seen for f in features), target.seen) for way in ways}
    return Encoding(task, target, features, tuple(options.missing), dropped, options.conventions, tuple(sorted(seen)))


def _features(statistics: Sequence[Statistics], options: Options) -> dict[str, Feature | str]:
    """The encoding of every column, or why it is left out."""
    tables = {s.site: {c.name: c for c in s.columns} for s in statistics}
    names = (column.name for column in statistics[0].columns)
    return {name: _feature(name, {site: t[name] for site, t in tables.items()}, options) for name in names}


def _settled(statistics: Sequence[Statistics], options: Options) -> list[Statistics]:
    """What was told in two ways, in the one that the rest of the file and the other silos decide for."""
    if not any(s.others for s in statistics):
        return list(statistics)
    # What is left out says nothing: `Encoding.apply` settles by what it encodes, and has to come to the same.
    kept = {name for name, feature in _features(statistics, options).items() if isinstance(feature, Feature)}
    kept.add(options.label)
    certain = {
        s.site: {c.name: c.reading for c in (s.label, *s.columns) if c.reading and not c.mark and c.name in kept}
        for s in statistics
    }
    same = {name: {seen[name] for seen in certain.values() if name in seen} for name in kept}
    every = {way for seen in certain.values() for way in seen.values()}

    def settled(s: Statistics, column: Column) -> Column:
        other = next((c for c in s.others if c.name == column.name), None)
        if other is None or column.name not in kept:
            return column
        own, ways = set(certain[s.site].values()), {column.reading, other.reading}
        way = settle(ways, column.mark, own, same[column.name], every)
        require(way, undecided(f"{s.site}, column {column.name!r}, data row {column.row}", ways))
        return column if way == column.reading else other

    return [s._replace(label=settled(s, s.label), columns=tuple(settled(s, c) for c in s.columns)) for s in statistics]


def _common_kind(name: str, columns: dict[str, Column], remedy: str) -> str:
    shown = {c.kind: (site, c) for site, c in reversed(columns.items()) if c.kind != "empty"}
    if len(shown) > 1:
        (one, a), (other, b) = [shown[kind] for kind in sorted(shown)][:2]
        raise InputError(
            f"column {name!r} holds {a.kind} in {one} (data row {a.row}) but {b.kind} in {other} "
            f"(data row {b.row}); correct the cells, or set {remedy}"
        )
    return next(iter(shown), "empty")


def _ways(name: str, columns: dict[str, Column]) -> dict[str, Any]:
    """How the column is written: the ways that are certain somewhere, and whether with percent signs."""
    filled = {site: c for site, c in columns.items() if c.n and (c.mean or c.m2)}
    signed = next((site for site, c in filled.items() if c.percent), None)
    plain = next((site for site, c in filled.items() if not c.percent), None)
    if signed is not None and plain is not None:
        raise InputError(
            f"column {name!r} has percent signs in {signed} (data row {columns[signed].row}) and none in {plain} (data "
            f"row {columns[plain].row}); write them alike, or set data.percent = 'share' (12% is 0.12) or 'number' (12)"
        )
    seen = {c.reading for c in columns.values() if c.reading and not c.mark}
    return {"seen": tuple(sorted(seen)), "percent": signed is not None}


def _merged(columns: dict[str, Column]) -> tuple[int, float, float]:
    """(n, mean, m2) over all silos, by the pairwise update of Chan, Golub and LeVeque."""
    n, off, m2 = 0, 0.0, 0.0
    filled = [c for c in columns.values() if c.n]
    shift = filled[0].mean if filled else 0.0  # means are kept as differences from this one: all but exact
    for c in filled:
        total, delta = n + c.n, (c.mean - shift) + c.rest - off
        m2 += c.m2 + delta * delta * (n * c.n / total)
        off += delta * (c.n / total)
        n = total
    return n, shift + off, m2


def _feature(name: str, columns: dict[str, Column], options: Options) -> Feature | str:
    """The column's encoding, or why it is left out."""
    kind = _common_kind(name, columns, f"data.categorical = [{name!r}]")
    missing = any(c.missing for c in columns.values())
    if kind == "array":
        return _array_feature(name, columns)
    if kind == "empty" or (kind != "text" and not any(c.n for c in columns.values())):
        return "no silo has a value there"
    if kind == "text":
        categories = tuple(sorted({v for c in columns.values() for v in c.categories or ()}))
        withheld = any(c.categories is None for c in columns.values())
        if withheld or (len(categories) > options.max_categories and name not in options.categorical):
            return MANY
        if not categories or len(categories) + missing + any(c.rare for c in columns.values()) < 2:
            return CONSTANT
        return Feature(name, kind, categories=categories, missing=missing)
    n, mean, m2 = _merged(columns)
    require(
        math.isfinite(m2),
        f"column {name!r} differs too widely between silos to be standardised; set data.drop = [{name!r}]",
    )
    indicated = missing and options.indicators  # then even a constant says something: whether it is there
    if m2 == 0.0 and not indicated:
        return CONSTANT
    return Feature(name, kind, mean, math.sqrt(m2 / n) or 1.0, missing=indicated, **_ways(name, columns))


def _array_feature(name: str, columns: dict[str, Column]) -> Feature:
    (site, like), *others = columns.items()
    for other, c in others:
        require(
            (c.shape, c.dtype) == (like.shape, like.dtype),
            f"column {name!r} holds {like.dtype} of shape {like.shape} in {site} "
            f"but {c.dtype} of shape {c.shape} in {other}; give all silos the same",
        )
    return Feature(name, "array", shape=like.shape, dtype=like.dtype)


def _target(labels: dict[str, Column], options: Options) -> Target:
    name = options.label
    kind = _common_kind(name, labels, "data.task = 'classification'")
    values = {v for c in labels.values() for v in c.categories or ()}
    complete = all(c.categories is not None for c in labels.values())
    if kind == "text" or (options.task is None and complete and len(values) <= CLASSES):
        classes = sorted(values, key=_class_order)
        require(
            len(classes) > 1,
            f"the label {name!r} is {listing(classes)} in every row of every silo; there is nothing to learn",
        )
        return Target(name, classes=tuple(classes), kind=kind, **_ways(name, labels))
    n, mean, m2 = _merged(labels)
    require(m2 > 0, f"the label {name!r} is {mean} in every row of every silo; there is nothing to learn")
    require(math.isfinite(m2), f"the label {name!r} differs too widely between silos to be standardised; rescale it")
    # Centred in any case: a model starts at the mean, and single precision counts from there.
    scale = math.sqrt(m2 / n) if options.scale_label else 1.0
    return Target(name, mean=mean, scale=scale, kind="number", **_ways(name, labels))


def _class_order(value: str) -> tuple[float, str]:
    """Numbers by size, then texts by letters."""
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    return number if math.isfinite(number) else math.inf, value
