"""Runs whose model is a PyTorch module at every site: what the server knows of it. PyTorch itself it does not need."""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from pydantic import ValidationError

from equipoise import models
from equipoise.data import ClientData
from equipoise.data.shards import Shards, shard_like
from equipoise.errors import InputError, require
from equipoise.experiment.config import Config
from equipoise.experiment.problems import Problem
from equipoise.experiment.records import JsonRecord
from equipoise.pytorch.task import ELSEWHERE, callback_score, callback_task

ITS_OWN = "the module's own"  # loss


class ModuleSpec(JsonRecord):
    """What has to be the same at all sites."""

    parameters: tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes, in the order of the model vector
    dtype: str  # of the parameters
    outputs: tuple[int, ...] | None  # of one example; None: no array, so the model has a loss and no other scores
    label: tuple[int, ...]  # the shape of one label
    classes: bool  # whether labels are numbers of classes
    scores: tuple[tuple[str, bool], ...] = ()  # of the sites' own: their names, and whether more is better

    @property
    def scored(self) -> bool:
        """Whether there are a row of outputs and a label to compare it with for every example."""
        return self.outputs is not None and (not self.classes or (len(self.outputs) == 1 and not self.label))

    @property
    def like(self) -> Shards:
        """The shapes of a set of examples."""
        return shard_like((), jnp.int32, self.label, jnp.int32 if self.classes else self.dtype)


def agreed_module(answers: Mapping[str, str]) -> ModuleSpec:
    """The module that all sites have, by what each says of its own."""
    specs: dict[str, ModuleSpec] = {}
    for site, text in answers.items():
        try:
            specs[site] = ModuleSpec.model_validate_json(text)
        except ValidationError:
            raise InputError(
                f"'{site}' told nothing of a PyTorch module; start it with --torch, and the same version of Equipoise"
            ) from None
    first, *others = specs
    for site in others:
        differ = [key for key in ModuleSpec.model_fields if getattr(specs[site], key) != getattr(specs[first], key)]
        require(
            not differ,
            f"the modules of '{first}' and '{site}' differ in {', '.join(differ)}; all sites need the same module",
        )
    return specs[first]


def module_problem(
    config: Config, spec: ModuleSpec, names: tuple[str, ...], train: ClientData | None, test: ClientData | None
) -> Problem:
    """The problem without its module; it starts from zeros until a site has told its start."""
    require(
        spec.dtype == config.run.precision,
        f"the sites' modules are {spec.dtype} and the run is {config.run.precision}; set run.precision = "
        f"'{spec.dtype}', or make the modules {config.run.precision}",
    )
    model = models.torch_module(spec.parameters)
    x = jnp.zeros(sum(a.size for a in jax.tree.leaves(model.shapes)))
    classes = tuple(map(str, range(spec.outputs[0]))) if spec.scored and spec.classes and spec.outputs else ()
    task = callback_task("torch", x, ELSEWHERE, spec.outputs if spec.scored else None)
    what = f"{len(names)} sites with a PyTorch module of {x.size:,} parameters"
    scores = {name: callback_score(ELSEWHERE.loss) for name, _ in spec.scores}
    problem = Problem(what, names, train, test, classes, model, ITS_OWN, None, task, config.model.penalty, x)
    return replace(problem, site_scores=scores)
