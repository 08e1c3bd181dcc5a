"""One evaluated model, client by client, for a terminal."""

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from equipoise.errors import require
from equipoise.evaluation import PerClient, higher_is_better, standing
from equipoise.evaluation.rules import SHARE, worst_clients
from equipoise.protocol import RandomKey


def report(
    table: PerClient,
    names: Sequence[str] | None = None,
    *,
    score: str | None = None,
    k: float = SHARE,
    level: float = 0.95,
    key: RandomKey | int = 0,
    rows: int = 50,
    title: str | None = None,
) -> Group:
    """What to print (with rich): a row per client, the worst ones beyond `rows` clients; then the summary."""
    ranges = standing(table, score, k=k, level=level, key=key)
    n = len(table.sizes)
    names = [str(i) for i in range(n)] if names is None else names
    require(len(names) == n, f"there are {len(names)} names for {n} clients; give one each")
    values = np.asarray(table.scores[ranges.score], np.float64)
    up = higher_is_better(ranges.score)
    order = np.argsort(values if up else -values, kind="stable")  # NaN last
    shown = np.sort(order[:rows]) if n <= rows else order[:rows]
    worst = set(worst_clients(values, up, k).tolist())

    columns = {name: table.scores[name] for name in sorted(table.scores, key=lambda s: s != "loss")}
    clients = Table(title=title, caption=f"the {rows} worst of {n:,} clients" if n > rows else None)
    clients.add_column("client")
    for heading in ("rows", *columns, f"{ranges.score}, {level:.0%} interval"):
        clients.add_column(heading, justify="right")
    for i in shown:
        cells = [_cell(float(column[i])) for column in columns.values()]
        bounds = _bounds(ranges.low[i], ranges.high[i])
        rest = [f"{int(table.sizes[i]):,}", *cells, bounds] if table.sizes[i] else ["no answer"]
        clients.add_row(escape(names[i]), *rest, style="red" if int(i) in worst else None)

    summary = Table(title=f"{ranges.score} over the clients", show_header=False)
    for name, value in ranges.summary.items():
        summary.add_row(name, _cell(value), "")
        if name.startswith("worst") and np.isfinite(ranges.worst.estimate):
            low, estimate, high = ranges.worst
            summary.add_row(f"{name}, corrected for chance", _cell(estimate), _bounds(low, high))
    if ranges.left_out:
        summary.add_row("left out", f"{len(ranges.left_out)} clients", "")
    return Group(clients, summary)


def _cell(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def _bounds(low: float, high: float) -> str:
    return "-" if np.isnan(low) else f"{_cell(float(low))} .. {_cell(float(high))}"
