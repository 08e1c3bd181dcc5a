"""The federations that are part of the package."""

import numpy as np
import pytest

import equipoise as eq

FACTS = {  # rows, owners, inputs, share of the second class
    "exam": (4059, 65, 2 + 2 + 3 + 3 + 2, 0.5),
    "contraception": (1934, 60, 1 + 4 + 2, 0.392),
    "insteval": (73421, 14, 4 + 6 + 2, 0.45),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_federation_of_the_package(name):
    data = eq.data.load(name)
    rows, owners, inputs, share = FACTS[name]
    assert data.inputs.shape == (rows, inputs)
    assert np.isfinite(data.inputs).all()
    assert len(data.group_names) == owners == len(np.unique(data.groups))
    assert data.labels.mean() == pytest.approx(share, abs=0.05)
    assert len(data.classes) == 2
