"""The steps of optax in a configuration: of the clients, of the server, and how the clients' step size falls."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from equipoise.errors import InputError
from equipoise.experiment.config import OptimizerSettings
from equipoise.experiment.problems import cached
from equipoise.tasks import Task, with_local_optimizer

if TYPE_CHECKING:
    import optax


LATE = 3  # of the rounds, in so many parts, the last: the share in which a late schedule falls


def _optax() -> Any:
    """Loaded when it is first asked for: most runs need none of it."""
    import optax

    return optax


SCHEDULES: dict[str, Callable[[float, int], "optax.Schedule"]] = {
    "constant": lambda start, rounds: _optax().constant_schedule(start),
    "linear": lambda start, rounds: _optax().linear_schedule(start, 0.0, rounds),
    "late": lambda start, rounds: _optax().linear_schedule(start, 0.0, late(rounds), rounds - late(rounds)),
    "cosine": lambda start, rounds: _optax().cosine_decay_schedule(start, rounds),
}


def late(rounds: int) -> int:
    """How many rounds at the end are those in which a late schedule falls."""
    return max(1, rounds // LATE)


def build_optimizer(key: str, settings: OptimizerSettings) -> "optax.GradientTransformation":
    """`key` is where the settings stand."""
    optax = _optax()
    try:
        optimizer = getattr(optax, settings.name)(settings.learning_rate, **settings.options)
    except TypeError as error:
        raise InputError(f"{key}.options does not fit optax.{settings.name} ({error}); see its documentation") from None
    return optimizer if settings.clip is None else optax.chain(optax.clip_by_global_norm(settings.clip), optimizer)


def with_own_steps(task: Task, settings: OptimizerSettings) -> Task:
    """The task whose local steps are the optimizer's."""
    return cached(_with_own_steps)(task, settings.model_dump_json())


def _with_own_steps(task: Task, settings: str) -> Task:
    chosen = OptimizerSettings.model_validate_json(settings)
    return with_local_optimizer(task, build_optimizer("algorithm.optimizer", chosen))
