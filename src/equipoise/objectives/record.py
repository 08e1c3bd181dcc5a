"""What is known of an objective apart from its operators; the configuration, the report and the laws read it."""

import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

from equipoise.objectives.dual import Dual


class Record(NamedTuple):
    """One objective; calling the record calls its factory, with the number of clients first."""

    name: str
    factory: Callable[..., Dual]
    example: Mapping[str, object] = {}  # settings with which the laws build it
    defaults: Mapping[str, object] = {}  # in a configuration, of settings without a default of their own
    not_settings: tuple[str, ...] = ()  # arguments that a configuration cannot give
    average: bool = False  # its weights are always equal: training for it is training for the average client

    def __call__(self, *args: object, **settings: object) -> Dual:
        return self.factory(*args, **settings)

    @property
    def settings(self) -> tuple[inspect.Parameter, ...]:
        """What a configuration may give."""
        arguments = tuple(inspect.signature(self.factory, eval_str=True).parameters.values())
        return tuple(a for a in arguments[1:] if a.name not in self.not_settings)


def record_of(factory: Callable[..., Dual] | Record, name: str) -> Record:
    """The record of a factory that comes without one."""
    return factory._replace(name=name) if isinstance(factory, Record) else Record(name, factory)
