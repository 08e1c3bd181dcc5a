"""Runs of one method with other settings and seeds: their programs are compiled once, and run side by side if it pays.

What they share depends on the plan alone, not on how many of them are finished: a plan that was stopped and is begun
again ends bit for bit as if it had never stopped.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from equipoise.data.alike import alike
from equipoise.engines.sweep import Trial, side_by_side, total_memory
from equipoise.errors import InputError
from equipoise.experiment import build, records, run
from equipoise.experiment.build import Method, Problem
from equipoise.experiment.config import Config
from equipoise.experiment.run import Federated, Session, Watch
from equipoise.protocol import nbytes

MOST = 200  # runs whose folders are held at a time
SHARE = 0.125  # of the memory there is, for the data of several seeds


class Member(NamedTuple):
    """A run of a batch."""

    config: Config
    folder: Path
    label: str
    watch: Watch | None
    overwrite: bool

    @property
    def done(self) -> bool:
        return not self.overwrite and records.finished(self.folder)

    @property
    def data(self) -> str:
        """All that `build.problem` looks at."""
        settings = self.config.model_dump(mode="json", include={"data", "partition", "model"})
        return json.dumps([settings, self.config.run.seed, self.config.run.precision])


def run_batch(members: Sequence[Member], problems: dict[str, Problem], begin: Callable[[], None]) -> None:
    """Runs those that are not done, all of one precision; `begin` is called when the first data makes sense.

    `problems` are those that an earlier batch has built; afterwards, those of this one.
    """
    with build.precision(members[0].config):

        def keep_only(divisions: Sequence[Member]) -> None:
            found = {m.data: problems.get(m.data) or build.problem(m.config) for m in divisions}
            problems.clear()
            problems.update(found)

        keep_only(members[:1])
        begin()
        first = problems[members[0].data]
        for part in _parts(members, nbytes((first.train, first.test))):
            if not all(member.done for member in part):
                keep_only(list({member.data: member for member in part}.values()))
                _run_part(part, problems)


def _parts(members: Sequence[Member], size: int) -> Iterator[Sequence[Member]]:
    """At most MOST together; if their data, of about `size` bytes each, is too much for the memory, those with one."""
    divisions = list(dict.fromkeys(member.data for member in members))
    fits = len(divisions) * size <= SHARE * total_memory()
    for group in [members] if fits else [[m for m in members if m.data == told] for told in divisions]:
        for k in range(0, len(group), MOST):
            yield group[k : k + MOST]


def _run_part(members: Sequence[Member], problems: dict[str, Problem]) -> None:
    rows = _of_one_shape(problems)

    def opened(member: Member, method: Method | None) -> AbstractContextManager[Session]:
        known: dict[str, Any] = {"problem": problems[member.data], "data": rows[member.data], "method": method}
        if not member.overwrite and (member.folder / records.CONFIG).is_file():
            return run.resumed(member.folder, member.label, member.watch, **known)
        return run.begun(member.config, member.folder, member.label, member.watch, overwrite=member.overwrite, **known)

    families: dict[Any, list[tuple[Member, Method | None]]] = {}
    for member in members:
        method = build.method_of(member.config, problems[member.data]) if _may_share(member.config) else None
        families.setdefault(_family(member, method, len(families)), []).append((member, method))
    for family in families.values():
        left = [(member, method) for member, method in family if not member.done]
        width = _width(family, problems, rows) if len(family) > 1 else 1
        if width == 1:
            for member, method in left:
                with opened(member, method) as session:
                    run.alone(session)
        elif left:
            with ExitStack() as held:
                run.together([held.enter_context(opened(*one)) for one in left], width)


def _of_one_shape(problems: dict[str, Problem]) -> dict[str, Federated]:
    """The rows of every problem, filled up to the largest: one program serves them all."""
    trains, tests = [p.train for p in problems.values()], [p.test for p in problems.values()]
    try:
        trains = alike(trains)
        tests = tests if any(test is None for test in tests) else alike(tests)
    except InputError:  # data of a kind that cannot be filled up has programs of its own
        pass
    return {
        told: Federated(problems[told].task, *jax.device_put((train, test)))
        for told, train, test in zip(problems, trains, tests, strict=True)
    }


def _may_share(config: Config) -> bool:
    """Whether a run may go side by side with others: it ends when they do, and nothing is measured for it first."""
    measured = getattr(config.algorithm, "rule", None) == "tuned"
    return config.run.until_gap is None and config.run.devices in (None, 1) and not measured


def _family(member: Member, method: Method | None, alone: int) -> Any:
    """Equal for runs that one program serves."""
    if method is None or not isinstance(method.family, Partial):
        return alone
    settings = member.config.run
    numbers = tuple(sorted(method.family.keywords))
    return (
        id(method.family.func), numbers, settings.rounds, settings.evaluate_every, settings.clients_per_batch,
        bool(settings.lost),
    )  # fmt: skip


def _width(
    family: Sequence[tuple[Member, Method | None]], problems: dict[str, Problem], rows: dict[str, Federated]
) -> int:
    """How many of a family run side by side."""
    member, method = family[0]
    assert method is not None
    assert isinstance(method.family, Partial)
    x, data = problems[member.data].x, rows[member.data].train
    numbers = {name: jnp.asarray(value, x.dtype) for name, value in method.family.keywords.items()}
    trial = Trial(numbers, x, data, member.config.run.seed)
    together = max(Counter(member.data for member, _ in family).values())  # those with other data come after
    return side_by_side(method.family.func, trial, together)
