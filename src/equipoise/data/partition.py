"""Which sample belongs to which client: ways to divide one data set among many owners.

A way returns `Partition(parts, summary)`: `parts[i]` are the rows of client i, ascending, and every row
belongs to exactly one client. `key` is a jax key, or an integer s for `jax.random.key(s)`; numpy draws.
The usual order: divide, `split` each client into train and test, `thin` the training parts.

    dirichlet   Li, Diao, Chen, He. Federated learning on non-IID data silos. ICDE 2022.
    similarity  Karimireddy et al. SCAFFOLD. ICML 2020, section 7.1.
    one_class   Deng, Kamani, Mahdavi. Distributionally robust federated averaging. NeurIPS 2020, section 5.
    thin        Yu, Karimireddy, Ma, Jordan. SCAFF-PD. 2023, section 6.2.
"""

import itertools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import require
from equipoise.protocol import RandomKey, as_key

Rows = NDArray[np.int64]
Parts = list[Rows]
Counts = NDArray[np.int64]
REDRAWS = 20  # how often a draw that leaves a client too small is repeated before samples are moved
BINS = 10  # a number to predict is counted in so many classes


class Summary(NamedTuple):
    """How many samples of which label each client has."""

    sizes: Counts  # [n]
    histogram: Counts  # [n, k]
    labels: tuple[str, ...]  # names of the k labels
    clients: tuple[str, ...]  # names of the n clients


class Partition(NamedTuple):
    """The row numbers of every client, and how the labels are spread over them."""

    parts: Parts
    summary: Summary


def iid(labels: ArrayLike, n: int, key: RandomKey | int) -> Partition:
    """Shuffled and dealt evenly; sizes differ by at most one."""
    y = _checked(labels, n)
    return _partition(np.array_split(generator(key, "iid").permutation(len(y)), n), y)


def dirichlet(
    labels: ArrayLike, n: int, alpha: float, key: RandomKey | int, *, min_size: int = 10, even: bool = False
) -> Partition:
    """Of every class c, client i gets the share p_ci, with p_c ~ Dirichlet(alpha, ..., alpha).

    Li et al. redraw until every client has `min_size` samples, which for a small alpha may take forever. Here
    20 draws are made at most, and what is still missing moves from the largest clients, sample by sample.
    `even` adds what their code does and their text does not say: a client that has total/n samples already
    gets nothing of the classes that follow.
    """
    y = _checked(labels, n, min_size)
    _check_alpha(alpha)
    rng = generator(key, "dirichlet")
    rows_of = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    for _ in range(REDRAWS):
        counts = np.zeros((len(rows_of), n), np.int64)
        for c, rows in enumerate(rows_of):
            share = _simplex(rng, alpha, n)
            if even:
                room = share * (counts.sum(0) < len(y) / n)
                share = room / room.sum() if room.sum() > 0 else share
            counts[c] = _rounded(share * len(rows), rng)
        if counts.sum(0).min() >= min_size:
            break
    return _partition(_filled(_dealt(rows_of, counts), min_size, rng), y)


def similarity(labels: ArrayLike, n: int, s: float, key: RandomKey | int) -> Partition:
    """s percent of every client's samples are iid; the rest is sorted by label and cut into n pieces."""
    y = _checked(labels, n)
    require(0 <= s <= 100, f"the similarity is {s}; give a percentage from 0 to 100")
    order = generator(key, "similarity").permutation(len(y))
    common = round(len(y) * s / 100)
    drawn = np.array_split(order[:common], n)
    by_label = order[common:][np.argsort(y[order[common:]], kind="stable")]
    sizes = np.subtract([len(a) for a in np.array_split(order, n)], [len(a) for a in drawn])  # none is negative
    pieces = np.split(by_label, np.cumsum(sizes)[:-1])
    return _partition([np.concatenate(pair) for pair in zip(drawn, pieces, strict=True)], y)


def k_classes(labels: ArrayLike, n: int, k: int, key: RandomKey | int) -> Partition:
    """Every client holds exactly k classes; the owners of a class share it evenly.

    Owners are drawn at random, but no class has two owners more than another: no sample is left without one.
    """
    y = _checked(labels, n)
    classes = np.unique(y)
    most = len(classes)
    require(1 <= k <= most, f"k is {k} classes per client; the data have {most}, so give 1 to {most}")
    require(
        n * k >= most,
        f"{n} clients of {k} classes each hold at most {n * k} of the {most} classes; give more clients or a larger k",
    )
    rng = generator(key, "k_classes")
    owns = np.zeros((most, n), bool)
    for i in rng.permutation(n):
        rarest = np.lexsort((rng.random(most), owns.sum(1)))
        owns[rarest[:k], i] = True
    return _shared(y, classes, owns, rng)


def one_class(labels: ArrayLike, n: int, key: RandomKey | int) -> Partition:
    """Client i holds class i; with more clients than classes, class i mod k, shared evenly by its owners."""
    y = _checked(labels, n)
    classes = np.unique(y)
    k = len(classes)
    require(n >= k, f"{n} clients of one class each cannot hold {k} classes; give at least {k} clients")
    owns = np.arange(n)[None] % k == np.arange(k)[:, None]
    return _shared(y, classes, owns, generator(key, "one_class"))


def quantity(labels: ArrayLike, n: int, alpha: float, key: RandomKey | int, *, min_size: int = 1) -> Partition:
    """Labels iid; everyone has `min_size` samples and a share p_i of the rest, p ~ Dirichlet(alpha)."""
    y = _checked(labels, n, min_size)
    _check_alpha(alpha)
    rng = generator(key, "quantity")
    rest = len(y) - n * min_size
    counts = min_size + (_rounded(_simplex(rng, alpha, n) * rest, rng) if rest else np.zeros(n, np.int64))
    return _partition(_dealt([rng.permutation(len(y))], counts[None]), y)


def by_column(
    values: ArrayLike, *, labels: ArrayLike | None = None, clients: Sequence[object] | None = None, min_size: int = 1
) -> Partition:
    """Natural owners: one client per distinct value, in sorted order.

    Values with fewer than `min_size` rows are left out. For a second table (an official test set) give the
    clients of the first as `clients`: the same ones in the same order, empty where the second table has none.
    """
    column = np.asarray(values)
    require(column.ndim == 1 and len(column), f"the column has shape {column.shape}; give one value per row")
    y = column if labels is None else np.asarray(labels)
    require(len(y) == len(column), f"there are {len(y)} labels for {len(column)} rows; give one per row")
    distinct, code, counts = np.unique(column, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(code, kind="stable"), np.cumsum(counts)[:-1])
    rows_of = {str(v): rows for v, rows in zip(distinct.tolist(), groups, strict=True)}
    names = [str(v) for v in (rows_of if clients is None else clients)]
    if clients is None:
        names = [v for v in names if len(rows_of[v]) >= min_size]
        require(names, f"no value has {min_size} rows (the most frequent has {counts.max()}); lower min_size")
    parts = [rows_of.get(v, np.zeros(0, np.int64)) for v in names]
    return Partition(parts, summarize(parts, y, clients=names))


def thin(parts: Sequence[Rows], key: RandomKey | int, *, clients: float = 0.3, samples: float = 0.7) -> Parts:
    """A random share `clients` of the clients loses a share `samples` of its samples, never the last one.

    Meant for training parts: `split` first, so that the tests keep their size.
    """
    for name, value in (("clients", clients), ("samples", samples)):
        require(0 <= value <= 1, f"{name} is {value}; give a share from 0 to 1")
    rng = generator(key, "thin")
    out = [np.asarray(rows, np.int64) for rows in parts]
    for i in rng.choice(len(out), round(clients * len(out)), replace=False):
        left = len(out[i]) - round(samples * len(out[i]))
        out[i] = np.sort(rng.choice(out[i], min(max(1, left), len(out[i])), replace=False))
    return out


def at_most(parts: Sequence[Rows], key: RandomKey | int, most: int) -> Parts:
    """Every client keeps `most` of its samples, drawn at random, or all if it has fewer."""
    require(most >= 1, f"clients are to keep at most {most} samples; give at least 1")
    rng = generator(key, "at most")
    owned = [np.asarray(rows, np.int64) for rows in parts]
    return [rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False)) for rows in owned]


def split(parts: Sequence[Rows], labels: ArrayLike, *, test: float = 0.2, key: RandomKey | int) -> tuple[Parts, Parts]:
    """(train parts, test parts): every client tests on a share of its own samples, see `stratified`."""
    require(0 < test < 1, f"the test share is {test}; give one between 0 and 1")
    y, rng = np.asarray(labels), generator(key, "split")
    owned = [np.asarray(rows, np.int64) for rows in parts]
    tested = [(rows, stratified(y[rows], test, rng)) for rows in owned]
    return [np.sort(rows[~out]) for rows, out in tested], [np.sort(rows[out]) for rows, out in tested]


def stratified(labels: ArrayLike, test: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which rows to hold out for testing, a boolean each: of every label its share, as near as whole rows allow.

    Of two or more rows at least one is on either side, and the last training row of a label is given up only when
    nothing else is left. A single row is for training. Numbers to predict are no classes: any rows are held out then.
    """
    if np.asarray(labels).dtype.kind == "f":
        labels = np.zeros(len(np.asarray(labels)), np.int8)
    order = rng.permutation(len(np.asarray(labels)))
    held_out = np.zeros(len(order), bool)
    if len(order) < 2 or test == 0:
        return held_out
    wanted = min(max(1, round(test * len(order))), len(order) - 1)
    _, code, counts = np.unique(np.asarray(labels)[order], return_inverse=True, return_counts=True)
    quota = counts * (wanted / len(order))
    take = np.minimum(_rounded(quota, rng), counts - 1)
    for room in (counts - 1, counts):
        while take.sum() < wanted and (take < room).any():
            take[np.argmax(np.where(take < room, quota - take, -np.inf))] += 1
    rank = np.empty(len(order), np.int64)  # of a row among those of the same label
    rank[np.argsort(code, kind="stable")] = np.concatenate([np.arange(c) for c in counts])
    held_out[order] = rank < take[code]
    return held_out


def follow(
    train_parts: Sequence[Rows], train_labels: ArrayLike, test_labels: ArrayLike, *, key: RandomKey | int
) -> Parts:
    """An official test set, divided as the training set is: of a class's test samples a client gets the share
    that it has of the class's training samples.

    Every test sample whose label is trained on has one owner. A client too small to get any takes one sample
    of a class it holds from the client with most of them; if no client has one to spare, its part is empty.
    """
    y, z, rng = np.asarray(train_labels), np.asarray(test_labels), generator(key, "follow")
    classes, code = np.unique(y, return_inverse=True)
    have = np.stack([np.bincount(code[rows], minlength=len(classes)) for rows in train_parts], axis=1)
    seen = have.sum(1).astype(bool) & np.isin(classes, z)
    require(seen.any(), "no label of the test set occurs in the training parts; use the same labels in both")
    have = have[seen]
    rows_of = [rng.permutation(np.flatnonzero(z == c)) for c in classes[seen]]
    counts = np.stack([_rounded(len(rows) * a / a.sum(), rng) for rows, a in zip(rows_of, have, strict=True)])
    totals = counts.sum(0)
    for i in np.flatnonzero(totals == 0):
        for c in np.argsort(-have[:, i], kind="stable")[: np.count_nonzero(have[:, i])]:
            donor = np.argmax(np.where(totals > 1, counts[c], 0))
            if totals[donor] > 1 and counts[c, donor] > 0:
                for a in (counts[c], totals):
                    a[[donor, i]] += [-1, 1]
                break
    return [np.sort(rows) for rows in _dealt(rows_of, counts)]


def summarize(
    parts: Sequence[Rows],
    labels: ArrayLike,
    *,
    clients: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Summary:
    """Sizes and label counts; `names` are the classes' names where the labels are their numbers."""
    y = np.asarray(labels)
    distinct, code = np.unique(y, return_inverse=True)
    called = [str(v) if names is None else names[int(v)] for v in distinct.tolist()]
    if y.dtype.kind == "f" and len(distinct) > BINS:
        edges = np.quantile(y, np.linspace(0, 1, BINS + 1))
        code = np.searchsorted(edges[1:-1], y, side="right")
        called = [f"{a:.3g}..{b:.3g}" for a, b in itertools.pairwise(edges)]
    return Summary(
        np.array([len(rows) for rows in parts]),
        np.stack([np.bincount(code[rows], minlength=len(called)) for rows in parts]),
        tuple(called),
        tuple(clients) if clients is not None else tuple(str(i) for i in range(len(parts))),
    )


def table(summary: Summary, *, rows: int = 50, columns: int = 12) -> object:
    """A rich table of clients x labels; beyond `columns` labels only how many a client holds."""
    from rich.markup import escape
    from rich.table import Table

    def shown(label: str) -> str:
        return escape(label if label.strip() else repr(label))

    n, k = summary.histogram.shape
    few = k <= columns
    low, middle, high = np.quantile(summary.sizes, [0, 0.5, 1])
    hidden = f", the first {rows} shown" if n > rows else ""
    out = Table(
        title=f"{summary.sizes.sum():,} samples, {n:,} clients{hidden}",
        caption=f"sizes {low:,.0f} to {high:,.0f}, median {middle:,.0f}",
    )
    out.add_column("client")
    for name in ("samples", *(map(shown, summary.labels) if few else ("labels", "most frequent", "its share"))):
        out.add_column(name, justify="right")
    for name, size, counts in list(zip(summary.clients, summary.sizes, summary.histogram, strict=True))[:rows]:
        cells = [f"{c:,}" if c else "." for c in counts]
        if not few:
            top = int(np.argmax(counts))
            share = f"{counts[top] / size:.0%}" if size else "-"
            cells = [f"{(counts > 0).sum()}", shown(summary.labels[top]), share]
        out.add_row(escape(name), f"{size:,}", *cells)
    return out


def generator(key: RandomKey | int, purpose: str) -> np.random.Generator:
    """numpy's generator from a key or a seed; the purpose keeps two functions given the same key apart."""
    words = np.asarray(jax.random.key_data(as_key(key)))
    return np.random.default_rng([*words.tolist(), zlib.crc32(purpose.encode())])


def _checked(labels: ArrayLike, n: int, min_size: int = 1) -> np.ndarray:
    y = np.asarray(labels)
    require(y.ndim == 1, f"the labels have shape {y.shape}; give one label per sample")
    require(n >= 1, f"the number of clients is {n}; give at least 1")
    require(n <= len(y), f"{n} clients cannot share {len(y)} samples; give at most one client per sample")
    require(min_size >= 1, f"min_size is {min_size}; a client has at least 1 sample")
    require(
        n * min_size <= len(y),
        f"{n} clients of at least {min_size} samples need {n * min_size}, and there are {len(y)}; "
        "lower min_size or the number of clients",
    )
    return y


def _check_alpha(alpha: float) -> None:
    require(0 < alpha < float("inf"), f"alpha is {alpha}; give a finite number above zero")


def _partition(parts: Sequence[Rows], y: np.ndarray) -> Partition:
    parts = [np.sort(rows) for rows in parts]
    return Partition(parts, summarize(parts, y))


def _simplex(rng: np.random.Generator, alpha: float, n: int) -> NDArray[np.float64]:
    p = rng.dirichlet(np.full(n, alpha))
    # alpha -> 0 puts all on one client; that near to zero, numpy's arithmetic gives out
    return p if np.isfinite(p).all() and p.sum() > 0.5 else np.eye(n)[rng.integers(n)]


def _rounded(quota: np.ndarray, rng: np.random.Generator) -> Counts:
    """Whole numbers with the same (whole) sum, each its quota rounded up or down, and right on average.

    Rounding cumulative sums as they stand would favour the same clients in every class; hence the random
    order and the random offset.
    """
    order = rng.permutation(len(quota))
    steps = np.cumsum(quota[order])
    total = round(steps[-1])
    edges = np.floor(steps * (total / steps[-1]) + rng.random()).astype(np.int64)
    edges[-1] = total
    counts = np.empty(len(quota), np.int64)
    counts[order] = np.diff(np.minimum(edges, total), prepend=0)
    return counts


def _dealt(rows_of: Sequence[Rows], counts: Counts) -> Parts:
    """counts[c, i] rows of pile c to client i."""
    piles = [np.split(rows, np.cumsum(row)[:-1]) for rows, row in zip(rows_of, counts, strict=True)]
    return [np.concatenate(own) for own in zip(*piles, strict=True)]


def _filled(parts: Parts, min_size: int, rng: np.random.Generator) -> Parts:
    """Random samples of whoever is largest move until everyone has `min_size`."""
    sizes = np.array([len(rows) for rows in parts])
    if sizes.min() >= min_size:
        return parts
    piles = [rng.permutation(rows).tolist() for rows in parts]
    for i in np.flatnonzero(sizes < min_size).tolist():
        while sizes[i] < min_size:
            largest = int(np.argmax(sizes))
            piles[i].append(piles[largest].pop())
            sizes[[largest, i]] += [-1, 1]
    return [np.array(pile, np.int64) for pile in piles]


def _shared(y: np.ndarray, classes: np.ndarray, owns: NDArray[np.bool_], rng: np.random.Generator) -> Partition:
    """Every class divided evenly, at random, among its owners."""
    parts: list[list[Rows]] = [[] for _ in range(owns.shape[1])]
    for c, owned in zip(classes, owns, strict=True):
        owners, rows = rng.permutation(np.flatnonzero(owned)), rng.permutation(np.flatnonzero(y == c))
        require(
            len(rows) >= len(owners),
            f"class {c} has {len(rows)} samples for {len(owners)} clients that should hold it; "
            "give fewer clients or fewer classes per client",
        )
        for i, piece in zip(owners, np.array_split(rows, len(owners)), strict=True):
            parts[i].append(piece)
    return _partition([np.concatenate(own) for own in parts], y)
