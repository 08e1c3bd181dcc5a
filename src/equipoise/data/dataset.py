"""What a data set is before it is divided among clients."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
    """One data set, not yet divided among clients. Arrays may be memory-mapped; small integers stay small.

    With a scale, what a model should see is inputs * scale + offset (`federate` does it, client by client).
    """

    name: str
    inputs: np.ndarray  # [total, ...]; images are [height, width, channels]
    labels: np.ndarray  # [total]
    classes: tuple[str, ...]  # names of the labels 0, 1, ...; empty when a number is predicted
    test_inputs: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    groups: np.ndarray | None = None  # the natural owner of every row, a number into group_names
    test_groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    scale: float | np.ndarray | None = None  # one number, or one per feature
    offset: float | np.ndarray = 0.0

    def flat(self) -> "Dataset":
        """Every example as one vector, for models that take features."""

        def per_feature(a: float | np.ndarray) -> float | np.ndarray:
            return a.reshape(-1) if isinstance(a, np.ndarray) and a.ndim else a

        tests = self.test_inputs
        return self._replace(
            inputs=self.inputs.reshape(len(self.inputs), -1),
            test_inputs=None if tests is None else tests.reshape(len(tests), -1),
            scale=None if self.scale is None else per_feature(self.scale),
            offset=per_feature(self.offset),
        )
