"""A setting that was chosen: what, why, and what would have been next."""

from typing import Any, NamedTuple

from equipoise.experiment.problems import Sent


class Choice(NamedTuple):
    """One setting."""

    key: str  # "section.key": set it, and nothing is chosen
    value: Any
    why: str  # a sentence for people
    by: str  # the name of the numbers in `tried`
    tried: tuple[tuple[Any, float | None], ...]  # every candidate, and how good it was; None: not a finite number
    runner_up: Any  # None: nothing else was usable
    rounds: int = 0  # of communication that it took
    sent: Sent = Sent()
