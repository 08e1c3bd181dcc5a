"""Train-Convexify-Train (Yu et al. 2022): from a trained network to a convex problem on the same rows.

Stage 1 trains the network of [model] by [convexify]'s algorithm, stage 2 makes features of its gradients at every
client, stage 3 is the run itself: [algorithm] trains least squares on the features. The network's run has a folder of
its own inside the run's (`run.py`; over Flower `deploy/server/run.py`); here is what stage 1 is, and what is made of
its end, where all rows are at hand (`convexify`) and where they are elsewhere (`problem_on_features`).
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Float

from equipoise import artifact, cohorts, models, tasks
from equipoise._jax import compiled
from equipoise.algorithms.moments import moments, scaling
from equipoise.data.pool import Pool
from equipoise.data.shards import ClientData, Shards, client_shapes
from equipoise.engines.simulator import simulate
from equipoise.errors import InputError, not_none, require
from equipoise.experiment import choice, records
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import features as gradients
from equipoise.experiment.problems import Network, Problem, Sent, cached, with_own_parts
from equipoise.models.model import Model, Params, saved
from equipoise.protocol import Vector


def network_config(config: Config) -> Config:
    """Stage 1 as a run of its own: [convexify]'s algorithm on the network."""
    settings, federation = not_none(config.convexify), config.federation
    own = {"rounds": max(settings.rounds, 1)} if isinstance(settings.rounds, int) else None
    length = choice.network_rounds(config) if own is None else own
    if federation is not None:  # defences that only SCAFF-PD on a convex model has
        federation = federation.model_copy(update={"project": False, "clip_gradients": None})
    stage: dict[str, object] = {"name": "network", "convexify": None, "federation": federation}
    stage |= {"algorithm": settings.algorithm, "objective": settings.objective}
    stage["model"] = config.model.model_copy(update={"metric": "none"})
    stage["run"] = config.run.model_copy(update={**length, "until_gap": None})
    return choice.settled(config.model_copy(update=stage))


def load_network(path: str | Path, model: Model) -> Params:
    """The parameters of a network that was trained before: of a run folder, or of its model.safetensors."""
    path = Path(path)
    file = path / records.MODEL if path.is_dir() else path
    require(file.is_file(), f"there is no model {file}; give the folder of a finished run, or a model.safetensors")
    artifact_of_network = artifact.load(file)
    models_saved = saved(artifact_of_network.model), saved(model)
    given, wanted = (json.dumps(one, sort_keys=True) for one in models_saved)
    what, asked = (
        f"{one['name']} of {', '.join(f'{key} {value}' for key, value in one['arguments'].items())}"
        for one in models_saved
    )
    wrong = f"{file} is a {what}, and [model] is a {asked}; give the same [model] as that run had"
    require(given == wanted, wrong)
    return artifact_of_network.params


Examples = TypeVar("Examples", Pool, Shards)
Rows = Array | np.ndarray  # inputs


class Trained(NamedTuple):
    """A network, and how it came about."""

    theta: Params
    how: str  # for the notes
    sent: Sent = Sent()


def trained_network(folder: Path, stage: Config, model: Model) -> Trained:
    """What stage 1 has left in its folder."""
    done = records.read(folder)
    outcome = not_none(done.outcome)
    why = f"the network of [convexify] did not end with a model: {'; '.join(outcome.events)}; see {folder}"
    require((folder / records.MODEL).is_file(), why)
    how = f"trained by {outcome.rounds} rounds of {stage.algorithm.name}"
    return Trained(load_network(folder, model), how, Sent(done.rows[-1].bytes_down, done.rows[-1].bytes_up))


def given_network(config: Config, model: Model, start: Callable[[], Params]) -> Trained | None:
    """A network that stage 1 does not have to train; None: it has to. `start` makes its first parameters."""
    settings = not_none(config.convexify)
    if settings.network is not None:
        return Trained(load_network(settings.network, model), f"from {Path(settings.network).name}")
    return Trained(start(), "that is not trained") if settings.rounds == 0 else None


class Scaling(NamedTuple):
    """Features are used as (phi - mean) * scale."""

    mean: Float[Array, " p"]
    scale: Float[Array, " p"]


def convexify(config: Config, problem: Problem, trained: Trained) -> Problem:
    """The convex problem at the network that `problem` is about; its rows are at hand."""
    trained = trained._replace(theta=jax.tree.map(lambda a: jnp.asarray(a, problem.x.dtype), trained.theta))
    if not_none(config.convexify).kind == "linearised":
        return linearised_problem(config, problem, trained)
    make = feature_maker(config, problem.model, trained.theta)
    train, *others = make(problem.train), *(None if d is None else make(d) for d in (problem.test, problem.validation))
    agreed = Scaling(*(jnp.asarray(numbers, problem.x.dtype) for numbers in agreed_scaling(train)))
    train, test, validation = (None if data is None else scaled(data, agreed) for data in (train, *others))
    return replace(problem_on_features(config, problem, trained, agreed, train, test), validation=validation)


def linearised_problem(config: Config, problem: Problem, trained: Trained) -> Problem:
    """On the rows as they are."""
    settings, network, (theta, how, sent) = not_none(config.convexify), problem.model, trained
    options: dict[str, Any] = {"l2": settings.l2, "batch": settings.batch, "bend": models.BENDS[problem.loss]}
    task = tasks.linearised(theta, network.apply, models.LOSSES[problem.loss], **options)
    _, unravel = ravel_pytree(theta)

    def insert(x: ArrayLike) -> Params:
        return {"network": theta, "change": unravel(jnp.asarray(x))}

    def extract(params: Params) -> Vector:
        return ravel_pytree(params["change"])[0]

    sent = _sent_since(sent, problem, numbers=task.size)
    made_of = Network(problem.train, problem.test, theta, insert, extract, sent)
    note = f"the model is the first-order expansion of a {network.name} {how}"
    return _convex(config, replace(problem, model=gradients.linearised(network), network=made_of), task, note)


def _convex(config: Config, problem: Problem, task: tasks.Task, note: str) -> Problem:
    """With the convex task, started from zero."""
    settings, x = not_none(config.convexify), jnp.zeros(task.size, problem.x.dtype)
    return with_own_parts(config, replace(problem, task=task, l2=settings.l2, x=x, notes=(*problem.notes, note)))


def feature_sizes(config: Config, network: Model, outputs: int) -> tuple[gradients.GradientFeatures, Model]:
    """Of features that were not made yet, and the model X (phi(a) - mean) * scale.

    `network` may be a PyTorch module, of which only its site can make features.
    """
    settings, seed = not_none(config.convexify), feature_seed(config)
    options: dict[str, Any] = {"kind": settings.kind, "features": settings.features}
    if network.name == "torch":
        parameters, last = network.arguments["parameters"], not_none(settings.last)
        model = gradients.torch_convexified(parameters, last, outputs, seed=seed, **options)
        return gradients.module_features(parameters, last, **options), model
    model = gradients.convexified(network, outputs, seed=seed, **options)
    return _programs(json.dumps(saved(network)), **options), model


def feature_seed(config: Config) -> int:
    """All clients draw the random layer and the projection by it."""
    seed = not_none(config.convexify).seed
    return config.run.seed if seed is None else seed


def feature_maker(config: Config, network: Model, theta: Params) -> Callable[[Examples], Examples]:
    """From clients' data to the same with features for inputs, not yet scaled."""
    settings, seed = not_none(config.convexify), np.uint32(feature_seed(config))
    programs = _programs(json.dumps(saved(network)), kind=settings.kind, features=settings.features)
    params, projection = programs.with_random_layer(theta, seed), programs.projection(seed)
    at_once = gradients.rows_at_once(programs.parameters)
    return lambda data: on_features(data, lambda rows: programs.apply(params, projection, rows), at_once)


def problem_on_features(
    config: Config,
    problem: Problem,
    trained: Trained,
    agreed: Scaling,
    train: ClientData | None,
    test: ClientData | None,
) -> Problem:
    """Least squares on scaled features `train` and `test`, which may be elsewhere; `problem` is the network's."""
    settings, outputs, (theta, how, sent) = not_none(config.convexify), len(problem.classes) or 1, trained
    sizes, model = feature_sizes(config, problem.model, outputs)
    p = sizes.size
    options = {"l2": settings.l2, "batch": settings.batch}
    if problem.classes:
        task = cached(tasks.least_squares)(p, outputs, centred=True, **options)
    else:
        task = cached(tasks.ridge)(p, settings.l2, settings.batch)
    fixed = {"network": sizes.with_random_layer(theta, np.uint32(feature_seed(config))), **agreed._asdict()}
    full = {"sketch": "a sketch", "coordinates": "coordinates", "last": "the last layer's inputs"}[settings.kind]
    about = "" if settings.kind == "last" else f" of its {sizes.parameters:,} gradients"
    name = "PyTorch module" if problem.model.name == "torch" else problem.model.name
    note = (
        f"the model is linear in {p:,} features of a {name} {how}: {full}{about}, standardised by one exchange of "
        "sums; what crossed for both is counted"
    )
    sent = _sent_since(sent, problem, numbers=problem.x.size + 2 * p, sums=2 * p + 1)

    def insert(x: ArrayLike) -> Params:
        return {**fixed, "head": jnp.asarray(x).reshape(outputs, p)}

    made_of = Network(problem.train, problem.test, fixed, insert, lambda params: params["head"].ravel(), sent)
    loss = "squared" if problem.classes else "squared_error"
    linear = replace(problem, train=train, test=test, model=model, loss=loss, network=made_of)
    return _convex(config, linear, task, note)


def _sent_since(sent: Sent, problem: Problem, *, numbers: int, sums: int = 0) -> Sent:
    """Stage 2: every client is told the network and the scaling, and tells its `Moments`, in double precision."""
    n, real = problem.n, problem.x.dtype.itemsize
    return Sent(sent.down + n * real * numbers, sent.up + n * 8 * sums)


@lru_cache(maxsize=8)
def _programs(network: str, **options: Any) -> gradients.GradientFeatures:
    """Compiled once for a network, whatever its parameters and the seed."""
    features = gradients.gradient_features(models.build(**json.loads(network)), **options)
    sizes = features.size, features.parameters, features.fan_in
    return gradients.GradientFeatures(*sizes, *(compiled(part) for part in features[3:]))


def on_features(data: Examples, features: Callable[[Any], Array], at_once: int) -> Examples:
    """The clients' data with `features(inputs)` for inputs, `at_once` rows at a time."""
    match data:
        case Pool():
            inputs = _in_blocks(data.inputs, lambda rows: features(data.as_seen(rows)), at_once)
            return replace(data, inputs=inputs, scale=None, offset=None)
        case Shards():
            n, m = data.labels.shape[:2]
            rows = data.inputs.reshape(n * m, *data.inputs.shape[2:])
            return data._replace(inputs=_in_blocks(rows, features, at_once).reshape(n, m, -1))
    raise InputError("[convexify] makes features of examples with inputs, which this data has none of; leave it out")


def _in_blocks(rows: Rows, features: Callable[[Any], Array], at_once: int) -> Array:
    """One compiled program for all blocks: the last is filled up."""
    blocks = []
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        pad = np.pad if isinstance(some, np.ndarray) else jnp.pad
        blocks.append(features(pad(some, [(0, at_once - len(some))] + [(0, 0)] * (some.ndim - 1))))
    *full, last = blocks
    last = last[: len(rows) - at_once * len(full)]
    return jnp.concatenate([*full, last]) if full else last


def agreed_scaling(train: ClientData) -> tuple[np.ndarray, np.ndarray]:
    """(mean, scale) of the features of all clients, by one exchange of sums."""
    like = client_shapes(train).inputs
    with jax.enable_x64(True):
        algorithm = moments(math.prod(like.shape[1:]), cohorts.everyone(train.n))
        start = jnp.zeros(algorithm.size, like.dtype)
        sums = simulate(algorithm, start, train, 0, rounds=1, clients_per_batch=1).server
        return scaling(jax.tree.map(np.asarray, sums))


def scaled(data: Examples, agreed: Scaling) -> Examples:
    inputs = _shifted_and_scaled(data.inputs, *agreed)
    return data._replace(inputs=inputs) if isinstance(data, Shards) else replace(data, inputs=inputs)


@jax.jit
def _shifted_and_scaled(inputs: Array, mean: Array, scale: Array) -> Array:
    return (inputs - jnp.broadcast_to(mean, inputs.shape)) * jnp.broadcast_to(scale, inputs.shape)
