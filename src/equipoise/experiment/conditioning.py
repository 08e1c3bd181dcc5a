"""The metric of a run (`tasks/metric.py`): whether there is one, the exchange that makes it, what crosses for it."""

from dataclasses import replace
from typing import NamedTuple

from equipoise import metric, tasks
from equipoise.data.shards import client_shapes
from equipoise.engines.kernel import Lost
from equipoise.errors import InputError, require
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Conditioning, Problem, Sent, cached
from equipoise.tasks.task import Linear, least


class Plan(NamedTuple):
    """Which metric."""

    linear: Linear
    rank: int | None  # None: of all directions


def planned(config: Config, problem: Problem) -> Plan | None:
    """What the settings ask for; None: the model is trained as it is."""
    wanted, linear = config.model.metric, problem.task.linear
    if wanted == "none" or (wanted == "auto" and (linear is None or config.privacy is not None)):
        return None  # "auto": not where noise hides every row
    if linear is None:
        what = f"model.metric is {wanted!r}, which is for models that are linear in their inputs"
        raise InputError(f"{what}, and this is a {problem.model.name}; leave it out")
    if wanted == "auto":
        return Plan(linear, metric.chosen_rank(linear))
    if wanted == "full":
        return Plan(linear, None)
    require(isinstance(wanted, int), f"model.metric is {wanted!r}; give auto, full, none or a number of directions")
    return Plan(linear, int(wanted) if int(wanted) < linear.features else None)


def with_metric(config: Config, problem: Problem, lost: Lost | None = None) -> Problem:
    """The problem in the metric that its clients agree on, where the settings ask for one; their rows are at hand."""
    plan = planned(config, problem)
    if plan is None:
        return problem
    agreed = metric.agree(
        problem.task, problem.train, rank=plan.rank, dtype=problem.x.dtype, key=config.run.seed, lost=lost
    )
    return problem if agreed is None else conditioned(problem, plan, agreed, client_shapes(problem.train))


def conditioned(problem: Problem, plan: Plan, agreed: tasks.Metric, like: object) -> Problem:
    """The problem in a metric that is known; `like` is a client's shard, of any number of rows."""
    linear, rank = plan
    sent = Sent(*metric.bytes_of_agreement(linear, problem.n, rank, like, problem.x.dtype))
    which = "all directions" if rank is None else f"the {rank} steepest of {linear.features} directions"
    note = (
        f"trained in the metric of the second moments of all clients' inputs, {which}: before the first round "
        f"{sent.up + sent.down:,} bytes crossed for it, which are counted; models, losses and gaps are those of the "
        "model itself"
    )
    if least(linear.l2) == 0:
        note += "; as model.l2 is 0 the metric has a ridge, and where the rows leave the model open training ends at "
        note += "another one"
    made = Conditioning(agreed, cached(tasks.in_metric)(problem.task), sent)
    return replace(problem, conditioning=made, notes=(*problem.notes, note))
