"""What the owner of the rows decides, whatever the server asks for: how the table is read and split, how many rows
stand behind an answer, and how much of it a single row may be.

split.json       in the site's folder: which rows are held out, made for the first run and kept for all others
statistics.json  what was told of the table: who asks again is told the same
draws.key        of which minibatches are drawn, whatever random key the server sends
"""

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax import Array
from jaxtyping import Float

from equipoise._jax import cached_program
from equipoise.data.shards import Shards
from equipoise.data.silos import Encoding, Options, Site, Statistics
from equipoise.data.silos.cells import open_table
from equipoise.data.silos.site import Pair
from equipoise.deploy.site.messages import Job
from equipoise.errors import not_none, refuse_unless
from equipoise.experiment.chosen.folds import Row
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.stages import network_config
from equipoise.experiment.problems import Problem
from equipoise.files import make_folder, write_whole
from equipoise.privacy.policy import Policy
from equipoise.protocol import Message, Vector
from equipoise.tasks.baseline import WithBaseline
from equipoise.tasks.metric import ShardInMetric, linear_of, to_model
from equipoise.tasks.private import AT_ONCE, NUMBERS
from equipoise.tasks.task import Convexity, Own, shrink
from equipoise.tensors import named

log = logging.getLogger("equipoise.flower")
SPLIT, STATISTICS, DRAWS = "split.json", "statistics.json", "draws.key"
# What may differ between two questions about the same rows: all else says which rows and cells there are.
FREE = ("label", "task", "categorical", "drop", "max_categories", "min_count", "indicators", "scale_label")
HELD_OUT_TOO = ("evaluate", "personal")  # parts whose answers are of the held-out rows as well


def options_of(config: Config, rules: Policy) -> Options:
    """How the table is read: as the run asks, and no value of it is told that too few rows have."""
    options = config.data.silo_options
    drop, categorical = (
        tuple(c for c in names if rules.columns is None or c in rules.columns)
        for names in (options.drop, options.categorical)
    )
    least = max(options.min_count, rules.min_count)
    return options._replace(min_count=least, drop=drop, categorical=categorical)


def visible(frame: pl.LazyFrame, config: Config, rules: Policy) -> pl.LazyFrame:
    """The table with the columns that the owner gives, and no others."""
    if rules.columns is None:
        return frame
    unit = config.data.unit
    refuse_unless(
        unit is None or unit in rules.columns,
        f"this site gives the columns {', '.join(rules.columns)}, and data.unit is '{unit}'; take one of these, or let "
        "its owner add it to `columns` in site.toml",
    )
    wanted = {*rules.columns, config.data.label}
    return frame.select(name for name in frame.collect_schema().names() if name.strip() in wanted)


def with_kept_split(site: Site, config: Config, folder: Path, rules: Policy, table: str) -> Site:
    """The site with the split that was made first; a Refusal to a run that asks for another.

    `table` is a digest of the file. A table that has changed by fewer rows than may be told of is refused: two answers
    about nearly the same rows tell the difference.
    """
    if rules.split == "asked":
        return site
    options = config.data.silo_options
    reading = {k: v for k, v in options._asdict().items() if k not in FREE} | {"separator": config.data.separator}
    asked = json.loads(json.dumps({"test": config.data.test, "seed": config.run.seed, "reading": reading}))
    path, rows = folder / SPLIT, len(site.held_out)
    kept = json.loads(path.read_text()) if path.is_file() else None
    if kept is not None and kept["table"] != table:
        refuse_unless(
            abs(rows - kept["rows"]) >= rules.min_rows,
            f"the table of '{site.name}' has changed by fewer than {rules.min_rows} rows since it was told of, and "
            f"both answers together would tell these; its owner starts over by removing {SPLIT} from the site's folder",
        )
        kept = None
    if kept is None:
        check_rows(rules, config, site.name, train=int((~site.held_out).sum()))
        held_out = np.packbits(site.held_out).tobytes().hex()
        make_folder(folder)
        write_whole(path, json.dumps({**asked, "rows": rows, "table": table, "held_out": held_out}))
        (folder / STATISTICS).unlink(missing_ok=True)
        return site
    for key, said in (("test", "data.test"), ("seed", "run.seed")):
        refuse_unless(
            kept[key] == asked[key],
            f"'{site.name}' has split its rows once and for all, with data.test = {kept['test']:g} and run.seed = "
            f"{kept['seed']}, and this run has {said} = {asked[key]:g}; use the same, or let its owner remove {SPLIT}",
        )
    other = next((key for key, value in reading.items() if kept["reading"].get(key) != asked["reading"][key]), "")
    refuse_unless(
        not other,
        f"'{site.name}' has told of its table with another data.{other}, and both answers together could tell single "
        f"rows; use the same, or let its owner remove {SPLIT}",
    )
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(kept["held_out"]), np.uint8), count=rows)
    return site._replace(held_out=bits.astype(bool))


def table_digest(path: Path | None, frame: pl.LazyFrame) -> str:
    """Of a file, by its bytes; of what a function gives, by its rows."""
    if path is None:
        return hashlib.sha256(frame.collect().hash_rows(seed=0).to_numpy().tobytes()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def told_statistics(site: Site, config: Config, folder: Path, rules: Policy) -> str:
    """The site's statistics, without what too few rows stand behind; the same answer to the same question."""
    options = options_of(config, rules)
    question = hashlib.sha256(repr((options, rules.min_rows, rules.columns)).encode()).hexdigest()
    path = folder / STATISTICS
    answers: dict[str, str] = json.loads(path.read_text()) if path.is_file() and rules.split == "kept" else {}
    if question not in answers:
        statistics = site.statistics(options)
        statistics = withheld(statistics, rules.min_rows, nearly_constant(site, statistics, options))
        refuse_unless(
            statistics.label.categories is None or statistics.label.categories,
            f"no value of the label '{config.data.label}' is in {options.min_count} rows or more of '{site.name}', so "
            "that none of them is told; name another label",
        )
        answers[question] = statistics.to_json()
        if rules.split == "kept":
            make_folder(folder)
            write_whole(path, json.dumps(answers))
    return answers[question]


class Encoded(NamedTuple):
    """A site's rows."""

    train: Pair
    test: Pair | None
    unit: np.ndarray | None  # of every training row, with `data.unit`


def encoded(site: Site, encoding: Encoding, config: Config, rules: Policy) -> Encoded:
    """The site's rows as all have agreed, if that is what the run was approved for, and without values of few rows.

    Rows of a class that too few of the training rows have are left out of training: a gradient has a part for every
    class, which is the sum of that class's rows.
    """
    options = options_of(config, rules)
    kept_back = {f.name for f in encoding.features} & {options.label, options.unit, *config.data.drop}
    same = (encoding.missing, encoding.conventions) == (options.missing, options.conventions)
    refuse_unless(
        encoding.target.name == options.label and not kept_back and same,
        f"the encoding that '{site.name}' was sent reads its table in another way than the run's configuration says",
    )
    (inputs, labels), test = site.encode(encoding, options.min_count, rules.min_rows)
    unit = None if site.unit is None else site.unit[~site.held_out]
    if encoding.task == "classification":
        common = (np.bincount(labels) >= options.min_count)[labels]
        if not common.all():
            few = np.sum(~common)
            log.warning("%s: %d rows of classes of fewer than %d are not trained on", site.name, few, options.min_count)
        inputs, labels = inputs[common], labels[common]
        unit = None if unit is None else unit[common]
    return Encoded((inputs, labels), test, unit)


def withheld(statistics: Statistics, least: int, also: Collection[str] = ()) -> Statistics:
    """Without the mean and the spread of a column that fewer rows have a number in: as if it were empty."""
    nothing: dict[str, Any] = {"n": 0, "mean": 0.0, "rest": 0.0, "m2": 0.0, "missing": statistics.rows}
    columns, others = (
        tuple(c._replace(**nothing) if 0 < c.n < least or c.name in also else c for c in some)
        for some in (statistics.columns, statistics.others)
    )
    return statistics._replace(columns=columns, others=others)


def nearly_constant(site: Site, statistics: Statistics, options: Options) -> set[str]:
    """The columns of numbers and dates in which fewer than `min_count` training rows have another than most have.

    Such as 0 or 1 for an illness that hardly anybody has: it is a value of few rows, written as a number.
    """
    names = [c.name for c in statistics.columns if c.n]
    table = open_table(site.frame, site.file, options.missing, options.conventions.percent)
    texts = {name: table.cells(name).text.drop_nulls() for name in names}
    most = {name: text.value_counts(sort=True).struct.field("count").first() for name, text in texts.items()}
    questions = {(name, "others"): text.len() - most[name] for name, text in texts.items()}
    answers = table.ask(questions, ~site.held_out)
    return {name for name, answer in answers.items() if 0 < answer["others"] < options.min_count}


def own_key(folder: Path, rules: Policy, run: str, words: list[int]) -> list[int]:
    """A random key that only the site knows, the same for the same message.

    With a key of the server's, which knows what it draws, gradients of as many minibatches as there are rows would be
    equations from which every row's gradient follows.
    """
    if rules.draws == "asked":
        return words
    path = folder / DRAWS
    if not path.is_file():
        make_folder(folder)
        write_whole(path, os.urandom(32), secret=True)
    drawn = hmac.digest(path.read_bytes(), json.dumps([run, words]).encode(), "sha256")
    return np.frombuffer(drawn, "<u4")[: len(words)].tolist()


class Counts(NamedTuple):
    """The rows of a site."""

    train: int
    test: int  # 0: none are held out, and scores are of the training rows


def counts_of(site: Site) -> Counts:
    test = int(site.held_out.sum())
    return Counts(len(site.held_out) - test, test)


def check_rows(rules: Policy, config: Config, name: str, *, train: int, scored: int | None = None) -> None:
    """A Refusal where fewer rows stand behind an answer than the owner wants."""
    ways = f"; take another data.test than {config.data.test:g}, or let its owner say min_rows in site.toml"
    refuse_unless(
        train >= rules.min_rows,
        f"'{name}' would train on {train} rows and tells nothing of fewer than {rules.min_rows}{ways}",
    )
    refuse_unless(
        scored is None or scored >= rules.min_rows,
        f"'{name}' has {scored} rows to score a model with and tells no score of fewer than {rules.min_rows}{ways}",
    )


def stages(config: Config) -> tuple[Config, ...]:
    """What is trained one after the other: with [convexify], the network first."""
    return (config,) if config.convexify is None else (network_config(config), config)


def rows_count(config: Config) -> bool:
    """Whether a site counts for as much of a masked sum as it has rows."""
    return bool(not_none(config.federation).secure) and getattr(config.algorithm, "weights", None) == "samples"


def check_shares(rules: Policy, config: Config, name: str, train: Mapping[str, int], mine: int) -> None:
    """A Refusal where rows are what a site counts for in a masked sum, and nearly all of them are one site's.

    In averages over samples, and in the sums of features of [convexify].
    Every site checks its own number, and masks cancel among those who were told the same numbers.
    """
    sampled = any(map(rows_count, stages(config)))
    if not sampled and not (not_none(config.federation).secure and config.convexify is not None):
        return
    refuse_unless(train[name] == mine, f"'{name}' has told of {mine} rows, and all were told of {train[name]}")
    share = max(train.values()) / sum(train.values())
    instead = "set algorithm.weights = 'uniform', or " if sampled else ""
    refuse_unless(
        share <= rules.most_weight,
        f"a site has {share:.4g} of all rows and so of the masked sums, and this site takes part up to "
        f"{rules.most_weight:g}; {instead}let the sites say most_weight in site.toml",
    )


def behind(counts: Counts, batch: int | None) -> tuple[str, ...]:
    """How many rows stand behind each answer, for whoever approves."""
    train, test = counts
    held = f"{test} rows that are held out" if test else f"the same {train} rows: none are held out"
    step = () if batch is None else (f"behind every local step stand {min(batch, train)} rows, drawn anew",)
    first = f"behind every statistic, loss and gradient stand {train} rows of this site"
    return (first, *step, f"behind every score stand {held}")


def overseen_jobs(
    jobs: Mapping[str, Callable[[], Job]],
    config: Config,
    name: str,
    rules: Callable[[], Policy],
    problem: Callable[[], Problem] | None,
) -> dict[str, Callable[[], Job]]:
    """The jobs, each with a look at every message before it is worked out.

    `problem` is what is trained, where a row's own gradient can be computed.
    """

    def watched(part: str, open_job: Callable[[], Job]) -> Job:
        job = open_job()
        both = part in HELD_OUT_TOO
        train = job.shard.train if both else job.shard
        train = train.data if isinstance(train, WithBaseline) else train
        located = isinstance(train, ShardInMetric | Row)
        metric = train.metric if located else None  # then models come in its coordinates
        train = train.shard if located else train
        scored = int(job.shard.test.sizes) if both else None

        def check(round: int, message: Message) -> None:
            now = rules()
            check_rows(now, config, name, train=int(train.sizes), scored=scored)
            x = model_in(message, job)
            if x is None or part not in ("train", "evaluate", "path"):
                return
            if metric is not None and problem is not None:
                x = np.asarray(to_model(linear_of(problem().task), metric, jnp.asarray(x)))
            rounds = round + 1 if part == "train" else config.run.rounds
            check_step(x, job.x, now.most_step * rounds)
            if problem is not None and config.privacy is None and now.most_of_row < 1:
                check_dominance(problem(), x, getattr(train, "data", train), now.most_of_row)

        return job._replace(check=check)

    return {part: partial(watched, part, open_job) for part, open_job in jobs.items()}


def model_in(message: Message, job: Job) -> np.ndarray | None:
    """The model that a message brings, if it does; papers call it x or w."""
    leaves = named(message)
    models = [a for name, a in leaves if name.rpartition(".")[2] in ("x", "w") and a.shape == job.x.shape]
    if not models and job.algorithm.name == "scoring":
        models = [a for _, a in leaves if a.shape == job.x.shape]
    return np.asarray(models[0]) if models else None


def check_step(x: np.ndarray, start: Vector, most: float) -> None:
    far = float(np.sqrt(np.mean((np.asarray(x, np.float64) - np.asarray(start, np.float64)) ** 2)))
    refuse_unless(
        far <= most,
        f"the model is {far:.3g} away from where it began, and this site accepts up to {most:.3g} in this round; it "
        "is no model that training leads to, or let the sites say most_step in site.toml",
    )


def check_dominance(problem: Problem, x: np.ndarray, shard: Shards, most: float) -> None:
    task = problem.plain_task
    longest, total = lengths(task.grad, task.own, problem.l2)(jnp.asarray(x), shard)
    share = float(longest) / float(total) if total > 0 else 0.0
    refuse_unless(
        share <= most,
        f"at this model a single row would make {share:.2g} of the gradient, and this site tells none of which one row "
        f"makes more than {most:g} (most_of_row in site.toml)",
    )


@cached_program
def lengths(grad: Callable[..., Vector], own: Own | None, l2: Convexity) -> Callable[..., tuple[Array, Array]]:
    """The longest of the rows' own gradients, without what l2 adds, and the sum of their lengths; compiled.

    With a part of the owner's own they are those at the part that all rows make. Sites of one process share it.
    """

    @jax.jit
    def measure(x: Vector, shard: Shards) -> tuple[Float[Array, ""], Float[Array, ""]]:
        part = None if own is None else own.fit(x, shard)

        def of_row(inputs: Array, label: Array) -> Array:
            row = Shards(inputs[None], label[None], jnp.ones((), shard.sizes.dtype))
            slope = grad(x, row) if own is None else jax.grad(own.loss)(x, part, row)
            return jnp.linalg.norm(slope - shrink(l2, x))

        rows, few = shard.labels.shape[0], max(1, min(AT_ONCE, NUMBERS // x.size, shard.labels.shape[0]))
        indices = jnp.arange(-(-rows // few) * few, dtype=jnp.int32).reshape(-1, few)

        def some(part: Array) -> Array:
            kept = jnp.minimum(part, rows - 1)
            real = part < shard.sizes.astype(part.dtype)
            return jnp.where(real, jax.vmap(of_row)(shard.inputs[kept], shard.labels[kept]), 0)

        norms = jax.lax.map(some, indices)
        return jnp.max(norms), jnp.sum(norms)

    return measure
