"""Rounds to the saddle point: SCAFF-PD with a model at the server beside what has to be tuned. Prints Markdown.

    python experiments/model_rounds.py                                     # everything
    python experiments/model_rounds.py synthetic adult --grid 8 --lost 0.1
    python experiments/model_rounds.py adult digits --metric full 16 --alone    # in the metric (docs/mathematics.md)

Rounds until (P(x_r) - P*)/(P(x_0) - P*) is below 1e-2, 1e-3, 1e-4 and 1e-6, P the robust objective; 10 local steps,
float64 unless --single. With --lost, clients in the metric say their gradients again (`repeat`). P* is exact for
squared losses (Newton's method on the weights); for the others it is the best value of a run of 600 rounds. Adult and
the features are read from --data (or $EQUIPOISE_DATA), Fashion-MNIST from --fashion. The grid is tau in {.3, .6, .9,
1.2, 1.8} of its largest stable value, sigma in ten powers, theta 0.
"""

import argparse
import gzip
import os
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import equipoise as eq
from equipoise.algorithms.in_metric import told_in_x
from equipoise.algorithms.server_model import saddle
from equipoise.tasks.metric import WithMetric, stretch

LEVELS, STEPS = (1e-2, 1e-3, 1e-4, 1e-6), 10


class Problem(NamedTuple):
    words: str
    task: Any
    clients: list[tuple[np.ndarray, np.ndarray]]
    squared: bool


def synthetic(shift: float = 1.0, dim: int = 10, spread: float = 1.0) -> Problem:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(5, 100, dim))
    truth, moved = rng.normal(size=dim), shift * rng.normal(size=(5, dim))
    inputs = inputs * np.geomspace(1, spread, dim)
    labels = np.einsum("nmd,nd->nm", inputs, truth + moved)
    if spread > 1:
        labels = labels / np.abs(inputs @ truth).std()
    return Problem(
        f"synthetic, shift {shift:g}", eq.tasks.ridge(dim, 0.1), list(zip(inputs, labels, strict=True)), True
    )


def divided(x: np.ndarray, y: np.ndarray, tests: np.ndarray, n: int, alpha: float, *, least: int, thin: bool) -> list:
    """Dirichlet shares of every class, of training and test rows alike; three clients in ten keep 30% of their rows."""
    rng, classes = np.random.default_rng(0), y.max() + 1
    while True:
        parts: list[list[int]] = [[] for _ in range(n)]
        tested = np.zeros(n, int)
        for c in range(classes):
            cuts = np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1]
            rows = rng.permutation(np.flatnonzero(y == c))
            for i, part in enumerate(np.split(rows, (cuts * len(rows)).astype(int))):
                parts[i] += list(part)
            rows = rng.permutation(np.flatnonzero(tests == c))
            tested += [len(part) for part in np.split(rows, (cuts * len(rows)).astype(int))]
        if min(map(len, parts)) >= least:
            break
    if thin:
        for i in rng.choice(n, int(0.3 * n), replace=False):
            parts[i] = list(rng.permutation(parts[i])[: max(1, int(0.3 * len(parts[i])))])
    return [(x[part], y[part]) for part, seen in zip(parts, tested, strict=True) if part and seen]


def squares(words: str, clients: list, classes: int) -> Problem:
    task = eq.tasks.least_squares(clients[0][0].shape[1], classes, l2=1e-3, centred=True)
    return Problem(words, task, clients, True)


def tiny_imagenet(data: Path, n: int) -> Problem:
    z = np.load(data / "features" / "tiny-imagenet-efficientnet-lite0.npz")
    x = z["train_inputs"].astype(np.float32) * z["scale"] + z["offset"]
    x = (x / x.std()).astype(float)
    clients = divided(x, z["train_labels"].astype(int), z["test_labels"].astype(int), n, 0.01, least=0, thin=True)
    return squares(f"Tiny ImageNet features, {len(clients)} clients", clients, 200)


def fashion(folder: Path) -> Problem:
    def read(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.open(folder / name).read(), np.uint8, offset=skip)

    x = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784) / 255
    y, tests = (read(f"{part}-labels-idx1-ubyte.gz", 8).astype(int) for part in ("train", "t10k"))
    return squares("Fashion-MNIST pixels, 20 clients", divided(x, y, tests, 20, 0.1, least=50, thin=True), 10)


def adult(data: Path, *, logistic: bool = False) -> Problem:
    names, numbers = [1, 5, 6, 7, 8, 9, 13], [0, 4, 10, 11, 12]

    def rows(name: str) -> list[list[str]]:
        lines = (data / "adult" / name).read_text().splitlines()
        return [[cell.strip().rstrip(".") for cell in line.split(",")] for line in lines if line.count(",") >= 14]

    train, test = rows("adult.data"), rows("adult.test")
    known = {j: sorted({row[j] for row in train + test}) for j in names}
    numeric = np.array([[float(row[j]) for j in numbers] for row in train])
    numeric = (numeric - numeric.mean(0)) / numeric.std(0)
    coded = [np.array([[row[j] == value for value in known[j]] for row in train], float) for j in names]
    x = np.concatenate([numeric, *coded, np.ones((len(train), 1))], axis=1)
    y = np.array([row[14] == ">50K" for row in train]).astype(int)
    schools = [row[3] for row in train]
    of = [np.flatnonzero(np.array(schools) == school) for school in sorted(set(schools))]
    if logistic:
        return Problem("Adult, logistic", *softmax([(x[r[:400]], y[r[:400]]) for r in of], 2), False)
    return squares("Adult by education", [(x[r], y[r]) for r in of], 2)


def softmax(clients: list, classes: int) -> tuple[Any, list]:
    """The bias is a feature, so that it is penalised like the others."""
    features = clients[0][0].shape[1]

    def losses(w: Any, inputs: Any, labels: Any) -> Any:
        logits = inputs @ w.reshape(classes, features).T
        hit = jax.nn.one_hot(labels, classes, dtype=logits.dtype)
        return jax.nn.logsumexp(logits, axis=1) - jnp.sum(logits * hit, axis=1)

    task = eq.tasks.over_examples("softmax", features * classes, losses, l2=1e-3, convex=True)
    return task._replace(linear=eq.tasks.Linear(features, classes, False, 0.1, 1e-3, task.loss)), clients


def digits() -> Problem:
    from sklearn.datasets import load_digits

    z = load_digits()
    x = np.concatenate([z.data / 16, np.ones((len(z.data), 1))], axis=1)
    order = np.random.default_rng(1).permutation(len(x))
    x, y = x[order], z.target[order]
    clients = divided(x[:1300], y[:1300], y[1300:], 10, 0.1, least=20, thin=False)
    return Problem("digits, softmax", *softmax(clients, 10), False)


def problems(data: Path, images: Path) -> dict[str, tuple[Callable[[], Problem], tuple[str, ...]]]:
    return {
        "synthetic": (synthetic, ("chi2 0.05", "agnostic", "cvar 0.4", "kl 0.05")),
        "condition834": (lambda: synthetic(0.3, 30, np.sqrt(9000) / 5), ("agnostic", "chi2 0.1", "kl 0.05")),
        "tiny20": (lambda: tiny_imagenet(data, 20), ("chi2 0.05", "agnostic", "cvar 0.3", "kl 0.02")),
        "tiny50": (lambda: tiny_imagenet(data, 50), ("chi2 0.05", "agnostic")),
        "fashion": (lambda: fashion(images), ("chi2 0.05",)),
        "adult": (lambda: adult(data), ("chi2 0.05", "agnostic", "cvar 0.3", "kl 0.02")),
        "adultlog": (lambda: adult(data, logistic=True), ("chi2 0.05", "agnostic")),
        "digits": (digits, ("chi2 0.05", "agnostic")),
    }


def best_possible(problem: Problem, shards: Any, dual: Any) -> float:
    """P* of squared losses: Newton's method on the weights, until the duality gap is rounding."""
    task, n = problem.task, len(problem.clients)
    features, outputs = problem.clients[0][0].shape[1], task.size // problem.clients[0][0].shape[1]
    prepared = [task.prepare(shards.client(i)) for i in range(n)]
    zero = jnp.zeros(task.size)
    b = -np.stack([np.asarray(task.grad(zero, p)) for p in prepared]).reshape(n, outputs, features)
    constant = np.array([float(task.loss(zero, p)) for p in prepared])
    scale, l2 = (2.0, 0.1) if outputs == 1 else (1.0, 1e-3)
    H = np.stack([scale / len(a) * a.T @ a + l2 * np.eye(features) for a, _ in problem.clients])
    solve = jax.jit(lambda f, Q: saddle.solve(dual.interior, f, jnp.zeros((n, 0)), jnp.zeros((n, 0, 0)), Q).lam)

    def at(lam: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        whole = np.tensordot(lam, H, 1)
        x = np.linalg.solve(whole, np.tensordot(lam, b, 1).T).T
        C = x @ H - b
        return whole, C, ((C - b) * x[None]).sum((1, 2)) / 2 + constant

    lam, best = np.full(n, 1 / n), np.inf
    for _ in range(60):
        whole, C, f = at(lam)
        low = lam @ f - float(dual.penalty(jnp.asarray(lam)))
        best = min(best, float(dual.value(jnp.asarray(f))))
        if best - low < 1e-12 * abs(best):
            break
        Z = np.linalg.solve(whole, C.reshape(-1, features).T).T.reshape(C.shape)
        Q = C.reshape(n, -1) @ Z.reshape(n, -1).T
        aim = np.asarray(solve(jnp.asarray(f + Q @ lam), jnp.asarray((Q + Q.T) / 2)))
        for half in range(30):
            trial = lam + 0.5**half * (aim - lam)
            if trial @ at(trial)[2] - float(dual.penalty(jnp.asarray(trial))) >= low - 1e-15 * abs(low):
                break
        lam = trial
    return best


def robust(task: Any, dual: Any, data: Any, x: Any) -> Any:
    return dual.value(jax.lax.map(lambda shard: task.loss(x, shard), data))


def grid(problem: Problem, shards: Any, dual: Any, rounds: int, size: int) -> np.ndarray:
    """Robust objectives [setting, round] of constant steps, one program for all."""
    task, n = problem.task, len(problem.clients)
    lr = 1 / eq.steps.smoothness(task, shards, jnp.zeros(task.size))
    taus = np.array([0.3, 0.6, 0.9, 1.2, 1.8]) * STEPS * lr
    sigmas = np.geomspace(1e-3, 1e2, max(1, size // len(taus)))
    settings = jnp.asarray([(tau, sigma) for tau in taus for sigma in sigmas])
    data = jax.jit(jax.vmap(task.prepare))(shards)

    def run(setting: Any) -> Any:
        rule = eq.steps.constant(tau=setting[0], sigma=setting[1], theta=0.0)
        algorithm = eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(n), rule, steps=STEPS, local_lr=lr)
        federation = eq.kernel.prepare(algorithm, shards)

        def one(state: Any, _: Any) -> tuple[Any, Any]:
            state = eq.kernel.step(algorithm, state, federation, jax.random.key(0))
            return state, robust(task, dual, data, algorithm.model(state.server))

        return jax.lax.scan(one, eq.kernel.init(algorithm, jnp.zeros(task.size)), length=rounds)[1]

    return np.asarray(jax.jit(lambda: jax.lax.map(run, settings))())


def is_lost(seed: Any, share: Any, r: Any, exchange: int, ids: Any) -> Any:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), r), exchange)
    return jax.random.bernoulli(key, share, jnp.shape(ids))


def judge_of(problem: Problem, exact: Any, dual: Any) -> Callable[[Any], Any]:
    """P of a model, in double precision on `exact`."""
    data = jax.jit(jax.vmap(problem.task.prepare))(exact)
    return jax.jit(lambda x: robust(problem.task, dual, data, x.astype(exact.inputs.dtype)))


def values(
    algorithm: Any, problem: Problem, shards: Any, judge: Callable, rounds: int, lost: float, seed: int = 0
) -> np.ndarray:
    """P after r rounds on `shards`, r = 0 first; a method that collects first shows x_0 in its first round."""
    task = problem.task
    x = jnp.zeros(task.size, jax.tree.leaves(shards)[0].dtype)

    run = eq.simulate(
        algorithm,
        x,
        shards,
        seed,
        rounds=rounds + 1,
        record=algorithm.model,
        lost=Partial(is_lost, seed, lost) if lost else None,
    )
    late = algorithm.name in ("scaffpd_model", "scaffpd_ls")
    found = [float(judge(x)) for x in (x, *run.history[1 if late else 0 :])]
    return np.array(found[: rounds + 1])


def cells(histories: list[np.ndarray], start: float, best: float) -> str:
    """Rounds to every level, of several seeds their medians (the lower) and all that lies between least and most."""
    errors = [np.where(np.isfinite(history), (history - best) / (start - best), np.inf) for history in histories]
    rounds = np.array([[np.argmax(e <= level) if (e <= level).any() else np.inf for level in LEVELS] for e in errors])

    def words(row: np.ndarray) -> str:
        return "/".join(f"{count:g}" if np.isfinite(count) else "-" for count in row)

    hits = words(np.sort(rounds, axis=0)[(len(rounds) - 1) // 2])
    if len(rounds) > 1:
        hits += f" ({words(rounds.min(axis=0))} to {words(rounds.max(axis=0))})"
    return f"{hits} | {max(np.median([e[-1] for e in errors]), 0):.0e}"


def methods(problem: Problem, dual: Any, shards: Any, exact: Any, judge: Callable, given: argparse.Namespace) -> Any:
    """Every method's name and the function that runs it with a seed."""
    task, everyone = problem.task, eq.cohorts.everyone(dual.n)

    def run(seed: int, algorithm: Any, data: Any = exact, lost: float = 0.0) -> np.ndarray:
        return values(algorithm, problem, data, judge, given.rounds, lost, seed)

    def measured(seed: int) -> np.ndarray:
        found = eq.steps.tuned(task, exact, jnp.zeros(task.size), dual, steps=STEPS, mu=task.strong_convexity)
        return run(seed, eq.algorithms.scaffpd(task, dual, everyone, found.rule, steps=STEPS, local_lr=found.local_lr))

    def searched(seed: int) -> np.ndarray:
        lr = 1 / eq.steps.smoothness(task, exact, jnp.zeros(task.size))
        mu = task.strong_convexity
        return run(seed, eq.algorithms.scaffpd_ls(task, dual, everyone, steps=STEPS, local_lr=lr, mu=mu))

    sample = eq.cohorts.uniform(dual.n, given.cohort) if given.cohort else everyone

    @cache
    def model_form() -> Any:
        return eq.algorithms.scaffpd_model(task, dual, sample, steps=STEPS, memory=given.memory)

    @cache
    def metric_form(rank: int | None) -> Any:
        return eq.metric.in_metric(
            lambda task: eq.algorithms.scaffpd_model(
                task, dual, sample, steps=given.steps, memory=given.memory, repeat=given.lost > 0
            ),
            task,
            shards,
            rank=rank,
        )

    def with_a_model(seed: int) -> np.ndarray:
        return run(seed, model_form(), shards, given.lost)

    def in_metric(rank: int | None, seed: int) -> np.ndarray:
        found = metric_form(rank)
        return run(seed, found.algorithm, found.data, given.lost)

    if given.sums:  # the forms whose server sees nothing but sums, as they are and in the metric
        agreed = eq.metric.agree(task, exact)
        l2 = float(task.strong_convexity)
        in_z = l2 * stretch(task.linear, agreed)
        for words, its_task, its_data, mu in (
            ("", task, exact, l2),
            (", in the metric", eq.tasks.in_metric(task), WithMetric(exact, agreed), in_z),
        ):
            found = eq.steps.tuned(its_task, its_data, jnp.zeros(task.size), dual, steps=STEPS, mu=mu)
            of_steps: Any = (dual, everyone, found.rule)
            how = {"steps": STEPS, "local_lr": found.local_lr}
            forms = {"scaffpd, secure": partial(eq.algorithms.scaffpd, secure=True)}
            if dual.name == "kl":
                forms["scaffpd_sums"] = eq.algorithms.scaffpd_sums
            for form, make in forms.items():
                algorithm = make(its_task, *of_steps, **how)
                algorithm = told_in_x(algorithm, task, agreed) if words else algorithm
                yield form + words, partial(run, algorithm=algorithm, data=its_data)
        return
    for words in given.metric:
        if words == "full" or int(words) < task.linear.features:
            rank = None if words == "full" else int(words)
            yield f"in the metric{'' if rank is None else f', rank {rank}'}", partial(in_metric, rank)
    if given.metric and given.alone:
        return
    if not (given.lost or given.single or given.cohort or given.alone):
        yield "steps measured", measured
        yield "line search", searched
        if given.grid:
            best = f"best of {given.grid} constants"
            yield best, lambda seed: np.nanmin(grid(problem, exact, dual, given.rounds, given.grid), axis=0)
    yield "with a model", with_a_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EQUIPOISE_DATA", "data")))
    parser.add_argument("--fashion", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--grid", type=int, default=50, help="settings of constant steps; 0: none")
    parser.add_argument("--memory", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="local steps in the metric")
    parser.add_argument("--metric", nargs="*", default=[], help="in the metric too: full, or a rank")
    parser.add_argument("--sums", action="store_true", help="the forms whose server sees sums only, and nothing else")
    parser.add_argument("--alone", action="store_true", help="only the new form")
    parser.add_argument("--objectives", nargs="*", help="only these, as 'agnostic' or 'chi2 0.05'")
    parser.add_argument("--cohort", type=int, help="clients in a round of the new form, which then runs alone")
    parser.add_argument("--lost", type=float, default=0.0, help="share of replies lost; the new form alone")
    parser.add_argument("--seed", type=int, default=0, help="of what is lost and who is asked")
    parser.add_argument("--seeds", type=int, default=1, help="so many seeds from --seed on: the median, least and most")
    parser.add_argument("--single", action="store_true", help="clients in single precision; the new form alone")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    table = problems(given.data, given.fashion)
    print("| problem | objective | method | rounds to 1e-2/1e-3/1e-4/1e-6 | error at the end | seconds |")
    print("|---|---|---|---|---:|---:|")
    for name in given.names or table:
        make, duals = table[name]
        problem = make()
        task, n = problem.task, len(problem.clients)
        exact = eq.data.stack(problem.clients)
        shards = exact
        if given.single:
            kinds = [np.float32 if np.issubdtype(b.dtype, np.floating) else b.dtype for _, b in problem.clients]
            narrow = zip(problem.clients, kinds, strict=True)
            shards = eq.data.stack([(a.astype(np.float32), b.astype(kind)) for (a, b), kind in narrow])
        for words in duals if given.objectives is None else given.objectives:
            objective, *number = words.split()
            dual = eq.objectives.DUALS[objective](n, *map(float, number))
            judge = judge_of(problem, exact, dual)
            if problem.squared:
                best = best_possible(problem, exact, dual)
            else:
                long = eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(n), steps=STEPS, memory=10)
                best = values(long, problem, exact, judge, 600, 0.0).min()
            start = float(robust(task, dual, jax.vmap(task.prepare)(exact), jnp.zeros(task.size)))
            for method, run in methods(problem, dual, shards, exact, judge, given):
                clock = time.perf_counter()
                histories = [run(seed) for seed in range(given.seed, given.seed + given.seeds)]
                histories = [h if len(h) > given.rounds else np.concatenate([[start], h]) for h in histories]
                row = (
                    problem.words,
                    words,
                    method,
                    cells(histories, start, best),
                    f"{time.perf_counter() - clock:.0f}",
                )
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
