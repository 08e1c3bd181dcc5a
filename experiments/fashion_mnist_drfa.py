"""Figure 2 of DRFA (Deng, Kamani, Mahdavi 2020): Fashion-MNIST, ten clients of one class each, softmax regression.

    python experiments/fashion_mnist_drfa.py --seeds 3

Writes curves (png), every round's accuracies (npz) and a table (md) to out/fashion_mnist; docs/fashion_mnist.md
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
from equipoise.evaluation import evaluate
from equipoise.protocol import Algorithm

N, BATCH, TAU, GAMMA = 10, 50, 10, 8e-3
LAST = 50  # rounds that the table averages over


class Curve(NamedTuple):
    """Test accuracies [seeds, rounds, clients] of the server's model, and of the mean of its models so far."""

    algorithm: Algorithm
    last: np.ndarray
    mean: np.ndarray


def methods(task: eq.tasks.Task) -> dict[str, Algorithm]:
    """The paper's step sizes (eta = 0.1) first, then a tenth of its eta; gamma and tau are the paper's throughout."""
    make, dual = eq.algorithms, eq.objectives.agnostic(N)
    everyone, drawn = eq.cohorts.everyone(N), eq.cohorts.by_weight(N)

    def with_eta(eta: float) -> dict[str, Algorithm]:
        local: dict[str, Any] = {"steps": TAU, "local_lr": eta}
        # The same primal and dual steps as DRFA's: a mean of the clients' models, and tau * gamma.
        rule = eq.steps.constant(tau=TAU * eta, sigma=TAU * GAMMA, theta=0.0)
        return {
            "DRFA, 10 drawn by λ": make.drfa(task, dual, drawn, **local, dual_lr=GAMMA),
            "DRFA, full form": make.drfa(task, dual, everyone, **local, dual_lr=GAMMA),
            "SCAFF-PD": make.scaffpd(task, dual, everyone, rule, **local),
        }

    return {
        "FedAvg": make.fedavg(task, everyone, steps=TAU, local_lr=0.1),
        "q-FedAvg, q = 0.2": make.qfedavg(task, everyone, q=0.2, steps=TAU, local_lr=0.1),
        "AFL": make.afl(task, dual, everyone, local_lr=0.1, dual_lr=GAMMA),
        **with_eta(0.1),
        "FedAvg, η = 0.01": make.fedavg(task, everyone, steps=TAU, local_lr=0.01),
        **{f"{name}, η = 0.01": method for name, method in with_eta(0.01).items()},
    }


def main(
    rounds: int = 300,
    seeds: int = 1,
    out: Path = Path("out/fashion_mnist"),
    data_dir: Annotated[Path | None, typer.Option(envvar="EQUIPOISE_DATA")] = None,
) -> None:
    """Ten methods over Fashion-MNIST, ten clients of one class each; minutes for each seed."""
    data = eq.data.load("fashion-mnist", data_dir=data_dir).flat()
    # Client i holds class i, of the training set and of the test set.
    train, test = eq.data.pools(data, eq.data.partition.one_class(data.labels, N, 0).parts, key=0)
    task = eq.tasks.softmax_regression(train.inputs.shape[1], N, batch=BATCH)
    x, algorithms = task.init(jax.random.key(0)), methods(task)
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    curves = {}
    with Progress(*columns, console=Console(stderr=True)) as bar:
        for name, algorithm in algorithms.items():
            row = bar.add_task(name, total=rounds * seeds)
            pairs = []
            for seed in range(seeds):

                def progress(done: int, total: int, _: Any, row: Any = row, seed: int = seed) -> None:
                    bar.update(row, completed=seed * total + done)

                path = eq.simulate(
                    algorithm, x, train, seed, rounds=rounds, record=algorithm.model, progress=progress, devices=1
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
    plot(curves, out / "curves.png")
    Console().print(Markdown(text))
    Console().print(f"written to {out}: curves.png, accuracies.npz, table.md", highlight=False)


def table(curves: dict[str, Curve]) -> str:
    """One line per method; mean over the seeds (smallest to largest)."""
    heads = (
        *("method", "exchanges a round", "rounds to 50% worst", "worst client", "average", "std over clients"),
        *("worst client, mean model", "average, mean model"),
    )
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, (algorithm, last, mean) in curves.items():
        cells = [name, str(len(algorithm.round)), reached(last.min(-1))]
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
    """Worst client, average and spread, as the paper's panels; of the first seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True)
    panels = (("worst client", np.min), ("average", np.mean), ("std over clients", np.std))
    for name, curve in curves.items():
        low = "0.01" in name
        for axis, (_, measure) in zip(axes[int(low)], panels, strict=True):
            axis.plot(measure(curve.last[0], axis=-1), label=name.removesuffix(", η = 0.01"), linewidth=1)
    for line, eta in zip(axes, ("0.1 (the paper's)", "0.01"), strict=True):
        for axis, (title, _) in zip(line, panels, strict=True):
            axis.set(title=f"{title}, η = {eta}", xlabel="round")
            axis.grid(alpha=0.3)
        line[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
