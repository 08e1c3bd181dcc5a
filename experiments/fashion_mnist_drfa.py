"""Figure 2 of DRFA (Deng, Kamani, Mahdavi 2020): Fashion-MNIST, ten clients of one class each, softmax regression.

    python experiments/fashion_mnist_drfa.py --seeds 3

Writes curves (svg), every round's accuracies (npz) and a table (md) to out/fashion_mnist; docs/fashion_mnist.md
says what came out.
"""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import equipoise as eq
from equipoise.errors import require
from equipoise.evaluation import evaluate
from equipoise.files import write_whole
from equipoise.protocol import Algorithm
from equipoise.report import pictures

N, BATCH, TAU, GAMMA = 10, 50, 10, 8e-3
ETAS = (0.1, 0.03, 0.01)  # the first is the paper's
LAST = 50  # rounds that the table averages over


class Curve(NamedTuple):
    """Test accuracies [seeds, rounds, clients] of the server's model, and of the mean of its models so far."""

    algorithm: Algorithm
    last: np.ndarray
    mean: np.ndarray


def methods(task: eq.tasks.Task) -> dict[str, Algorithm]:
    """The paper's methods with its step sizes; then FedAvg, DRFA and SCAFF-PD with smaller eta, all else the same."""
    make, dual = eq.algorithms, eq.objectives.agnostic(N)
    everyone, drawn = eq.cohorts.everyone(N), eq.cohorts.by_weight(N)

    def with_eta(eta: float) -> dict[str, Algorithm]:
        local: dict[str, Any] = {"steps": TAU, "local_lr": eta}
        # The same primal and dual steps as DRFA's: a mean of the clients' models, and tau * gamma.
        rule = eq.steps.constant(tau=TAU * eta, sigma=TAU * GAMMA, theta=0.0)
        return {
            f"FedAvg, η = {eta}": make.fedavg(task, everyone, **local),
            f"DRFA, 10 drawn by λ, η = {eta}": make.drfa(task, dual, drawn, **local, dual_lr=GAMMA),
            f"DRFA, full form, η = {eta}": make.drfa(task, dual, everyone, **local, dual_lr=GAMMA),
            f"SCAFF-PD, η = {eta}": make.scaffpd(task, dual, everyone, rule, **local),
        }

    return {
        "q-FedAvg, q = 0.2, η = 0.1": make.qfedavg(task, everyone, q=0.2, steps=TAU, local_lr=0.1),
        "AFL, η = 0.1": make.afl(task, dual, everyone, local_lr=0.1, dual_lr=GAMMA),
        **{name: method for eta in ETAS for name, method in with_eta(eta).items()},
    }


def main(
    rounds: int = 300,
    seeds: int = 1,
    only: Annotated[str, typer.Option(help="Methods whose name contains this.")] = "",
    out: Path = Path("out/fashion_mnist"),
    data_dir: Annotated[Path | None, typer.Option(envvar="EQUIPOISE_DATA")] = None,
) -> None:
    """Fourteen runs over Fashion-MNIST, ten clients of one class each; minutes for each seed."""
    data = eq.data.load("fashion-mnist", data_dir=data_dir).flat()
    # Client i holds class i, of the training set and of the test set.
    train, test = eq.data.pools(data, eq.data.partition.one_class(data.labels, N, 0).parts, key=0)
    task = eq.tasks.softmax_regression(train.inputs.shape[1], N, batch=BATCH)
    x = task.init(jax.random.key(0))
    algorithms = {name: method for name, method in methods(task).items() if only in name}
    require(algorithms, f"no method's name contains '{only}'; the names are {', '.join(methods(task))}")
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    curves = {}
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for name, algorithm in algorithms.items():
            row = bar.add_task(name, total=rounds * seeds)
            pairs = []
            for seed in range(seeds):

                def progress(done: int, total: int, _: Any, row: Any = row, seed: int = seed) -> None:
                    bar.update(row, completed=seed * total + done)

                path = eq.simulate(
                    algorithm, x, train, seed, rounds=rounds, record=algorithm.model, progress=progress
                ).history
                means = np.cumsum(path, axis=0, dtype=np.float64) / np.arange(1, rounds + 1)[:, None]
                both = np.concatenate([path, means.astype(path.dtype)])  # so that this compiles once
                pairs.append(np.split(evaluate(task, both, test).scores["accuracy"], 2))
            curves[name] = Curve(algorithm, *(np.stack(part) for part in zip(*pairs, strict=True)))
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out / "accuracies.npz",
        **{f"{k}: {part}": getattr(c, part) for k, c in curves.items() for part in ("last", "mean")},
    )
    text = table(curves)
    (out / "table.md").write_text(text)
    plot(curves, out / "curves.svg")
    Console().print(Markdown(text))
    Console().print(f"written to {out}: curves.svg, accuracies.npz, table.md", highlight=False)


def table(curves: dict[str, Curve]) -> str:
    """One line per method; mean over the seeds (smallest to largest)."""
    heads = (
        *("method", "exchanges a round", "worst first at 50%", "worst at 50%", "worst client", "average"),
        *("std over clients", "worst client, mean model", "average, mean model"),
    )
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, (algorithm, last, mean) in curves.items():
        held = (last[:, -LAST:].min(-1) >= 0.5).mean()
        cells = [name, str(len(algorithm.round)), reached(last.min(-1)), f"{held:.0%}"]
        for a, measure in ((last, np.min), (last, np.mean), (last, np.std), (mean, np.min), (mean, np.mean)):
            each = measure(a[:, -LAST:], axis=-1).mean(-1)
            spread = f" ({each.min():.3f} to {each.max():.3f})" if len(each) > 1 else ""
            cells.append(f"{each.mean():.3f}{spread}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reached(worst: np.ndarray) -> str:
    """The first round at which the worst client has 50%, of each seed."""
    firsts = [int(np.argmax(row >= 0.5)) + 1 if (row >= 0.5).any() else None for row in worst]
    return ", ".join("never" if first is None else str(first) for first in firsts)


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Worst client, average and spread over the rounds, as the paper's panels; of the first seed."""
    measures = {"worst client": np.min, "average": np.mean, "std over clients": np.std}
    charts = {
        f"{title}, η = {eta}": {
            name.removesuffix(f", η = {eta}"): measure(curve.last[0], axis=-1)
            for name, curve in curves.items()
            if name.endswith(f", η = {eta}")
        }
        for eta in ETAS
        for title, measure in measures.items()
    }
    title = "DRFA, Figure 2: test accuracies of ten clients of one class each"
    write_whole(path, pictures.panels(title, charts, columns=len(measures), x_name="round"))


if __name__ == "__main__":
    typer.run(main)
