"""What is known of an algorithm apart from its rounds.

The overview, the configuration, the report and the laws read it, and ask for no algorithm by name.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from equipoise.cohorts import Sample, by_weight, everyone
from equipoise.errors import require
from equipoise.objectives import DUALS
from equipoise.objectives.dual import Dual
from equipoise.protocol import Algorithm
from equipoise.steps import Rule, constant
from equipoise.tasks import Task

PARTS = ("task", "dual", "sample", "rule")  # what a factory may take, by these names; the rest are settings
Settings = Mapping[str, Any]  # of a factory, by the names of its arguments
SADDLE = "max_λ Σλ_i f_i − ψ(λ)"
LOCAL_DEFAULTS: Settings = {"steps": 10, "local_lr": "auto"}
LOCAL_EXAMPLE: Settings = {"steps": 5, "local_lr": 0.02}
# Of every algorithm that takes them.
USUAL_DEFAULTS: Settings = {**LOCAL_DEFAULTS, "lr": "auto"}
USUAL_EXAMPLE: Settings = {**LOCAL_EXAMPLE, "lr": 0.1, "rule": constant(tau=0.1, sigma=0.5, theta=0.7)}


class Record(NamedTuple):
    """One algorithm; calling the record calls its factory."""

    name: str
    factory: Callable[..., Algorithm]
    objective: str  # what it minimises, as a formula
    paper: str
    example: Settings  # settings with which the laws build it, and its rule if it takes one
    average: bool = False  # it trains for the average client, which is what fairness is measured against
    defaults: Mapping[str, Any] = {}  # in a configuration, of settings without a default of their own
    not_settings: tuple[str, ...] = ()  # arguments that a configuration cannot give
    cohorts: Literal["uniform", "by_weight", "everyone"] = "uniform"  # how its paper draws them
    # What in the example makes it plain descent for one client; None: nothing does, its steps are its own.
    descent: Mapping[str, Any] | None = {}
    only_dual: str | None = None  # the one objective that it is for, of those that it could be given
    # Its rule on networks of so many clients, where none is given and none is measured.
    network_rule: Callable[[int], Mapping[str, float]] | None = None
    weighs_itself: bool = False  # every client keeps its own weight, which moves by its own loss alone
    corrected: bool = False  # what it makes for everybody is `Algorithm.corrected`
    # Gradients and losses that a client tells in each exchange, of so many local steps; None: no noise is known for it.
    releases: Callable[[int], Mapping[str, tuple[int, int]]] | None = None
    minibatch_form: str | None = None  # the algorithm to take instead where gradients are of minibatches

    @staticmethod
    def usual(factory: Callable[..., Algorithm], objective: str, paper: str, **facts: Any) -> "Record":
        """The record of a factory under its own name; what its `example` and `defaults` do not say is as usual."""
        arguments = inspect.signature(factory).parameters
        open_ones = [name for name, argument in arguments.items() if argument.default is inspect.Parameter.empty]
        example = {name: value for name, value in USUAL_EXAMPLE.items() if name in arguments}
        defaults = {name: value for name, value in USUAL_DEFAULTS.items() if name in open_ones}
        facts |= {"example": example | facts.get("example", {}), "defaults": defaults | facts.get("defaults", {})}
        return Record(factory.__name__, factory, objective, paper, **facts)

    def __call__(self, *args: object, **settings: object) -> Algorithm:
        return self.factory(*args, **settings)

    @property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.factory, eval_str=True).parameters

    @property
    def settings(self) -> tuple[inspect.Parameter, ...]:
        """What a configuration may give."""
        return tuple(a for name, a in self.arguments.items() if name not in (*PARTS, *self.not_settings))

    @property
    def about(self) -> str:
        """The first line of what its factory says of itself."""
        return (inspect.getdoc(getattr(self.factory, "func", self.factory)) or "").split("\n")[0]

    @property
    def takes_dual(self) -> bool:
        """Whether it trains for the objective that it is given; otherwise it has its own."""
        return "dual" in self.arguments

    @property
    def takes_rule(self) -> bool:
        return "rule" in self.arguments

    def build(self, task: Task, dual: Dual, sample: Sample, rule: Rule | None = None, **settings: object) -> Algorithm:
        """The algorithm, from those of the parts that it takes."""
        parts = {"task": task, "dual": dual, "sample": sample, "rule": rule}
        return self.factory(**{name: part for name, part in parts.items() if name in self.arguments}, **settings)

    def build_example(self, task: Task, dual: Dual, sample: Sample | None = None, **changes: Any) -> Algorithm:
        """The algorithm as in `example`, with `sample` or, where its paper draws otherwise, as many as that draws.

        An algorithm for one objective only gets that one instead of `dual`.
        """
        needed = [a.name for a in self.settings if a.default is inspect.Parameter.empty and a.name not in self.example]
        require(
            not needed, f"the Record of {self.name} has no example of {', '.join(needed)}; put one into its `example`"
        )
        sample = sample or everyone(dual.n)
        if self.only_dual is not None and dual.name != self.only_dual:
            dual = DUALS[self.only_dual](dual.n, **DUALS[self.only_dual].example)
        if self.cohorts == "everyone":
            sample = everyone(dual.n)
        elif self.cohorts == "by_weight" and sample.m < dual.n:
            sample = by_weight(sample.m)
        return self.build(task, dual, sample, **{**self.example, **changes})


def record_of(factory: Callable[..., Algorithm] | Record, name: str) -> Record:
    """The record of a factory that comes without one."""
    if isinstance(factory, Record):
        return factory._replace(name=name)
    return Record(name, factory, objective="its own", paper="", example={})
