"""How much noise a run needs for the epsilon and delta that its configuration promises, and what each reply costs."""

import math
from collections.abc import Mapping

from equipoise import algorithms
from equipoise.errors import not_none
from equipoise.experiment.config import Config
from equipoise.privacy.accounting import mu_for
from equipoise.tasks.private import Noise

LOSS_NOISE = 4.0  # times that of gradients: losses then cost 6% of what gradients do


def releases(config: Config) -> Mapping[str, tuple[int, int]]:
    """Gradients and losses that a site tells in every exchange."""
    return not_none(algorithms.named(config.algorithm.name).releases)(config.algorithm.steps)


def noise_of(config: Config) -> Noise:
    """So much that all rounds together cost what is promised, if every site answers in all of them."""
    settings = not_none(config.privacy)
    each = sum(gradients + losses / LOSS_NOISE**2 for gradients, losses in releases(config).values())
    z = math.sqrt(config.run.rounds * each) / mu_for(settings.epsilon, settings.delta)
    return Noise(settings.clip, z, settings.loss_bound, LOSS_NOISE * z)


def costs(config: Config) -> dict[str, float]:
    """mu^2 of a reply, by the exchange's name."""
    noise = noise_of(config)
    return {name: g / noise.gradient**2 + l / noise.loss**2 for name, (g, l) in releases(config).items()}


def promise(config: Config) -> str:
    """For the report."""
    epsilon, delta = not_none(config.privacy).epsilon, not_none(config.privacy).delta
    times = f"{math.exp(epsilon):.3g}" if epsilon < 100 else f"e^{epsilon:g}"
    return (
        f"differential privacy of every record in what sites send for training: epsilon {epsilon:g} at delta {delta:g} "
        f"over all {config.run.rounds} rounds. Whatever else is known, anything that is concluded from it is at most "
        f"{times} times as likely with a record as without it, but for a chance of {delta:g}; "
        "statistics of columns and evaluations are not covered"
    )
