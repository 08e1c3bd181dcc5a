"""A result is resumed by what it came from, and by nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.data.pool import Pool
from equipoise.engines.made_from import differs, made_from
from equipoise.engines.sweep import grid
from equipoise.errors import InputError
from tests.problems import DIM, N, build, start, unequal

METHODS = sorted(eq.algorithms.ALGORITHMS)


def chi2(rho=0.3, steps=3, l2=0.1, local_lr=0.02, sigma=0.3):
    task, dual = eq.tasks.ridge(DIM, l2), eq.objectives.chi2(N, rho)
    rule = eq.steps.constant(tau=0.1, sigma=sigma, theta=0.8)
    return eq.algorithms.scaffpd(task, dual, eq.cohorts.everyone(N), rule, steps=steps, local_lr=local_lr)


@pytest.mark.parametrize("change", [{"rho": 0.4}, {"steps": 4}, {"l2": 0.2}, {"local_lr": 0.03}, {"sigma": 0.31}])
def test_other_numbers_are_seen_and_the_same_ones_made_again_are_not(change):
    before = made_from(chi2(), unequal())
    assert differs(before, made_from(chi2(), unequal())) is None
    assert "settings" in differs(before, made_from(chi2(**change), unequal()))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_made_twice_is_the_same(name):
    one, other = (build.__wrapped__(name) for _ in range(2))
    assert differs(made_from(one, unequal()), made_from(other, unequal())) is None


def test_other_data_is_seen_and_the_same_elsewhere_is_not():
    data, algorithm = unequal(), chi2()
    before = made_from(algorithm, data)
    assert differs(before, made_from(algorithm, jax.tree.map(np.asarray, data))) is None
    padded = data._replace(
        inputs=np.pad(data.inputs, ((0, 0), (0, 5), (0, 0))), labels=np.pad(data.labels, ((0, 0), (0, 5)))
    )
    assert differs(before, made_from(algorithm, padded)) is None
    assert "rows of some clients" in differs(before, made_from(algorithm, data._replace(labels=data.labels + 1)))
    fewer = data._replace(sizes=data.sizes - 1)
    assert "other numbers of rows" in differs(before, made_from(algorithm, fewer))


@pytest.mark.parametrize("where", [(0, 1, 0), (3, 2, 1), (4, 1, 2)])
def test_one_other_number_anywhere_is_seen(where):
    """Not only in the first and the last rows."""
    data = jax.tree.map(np.array, unequal())
    other = jax.tree.map(np.array, data)
    other.inputs[where] += 0.01
    assert differs(made_from(None, data), made_from(None, other)) == "data: rows of some clients are not the same"
    swapped = data._replace(inputs=data.inputs[..., ::-1])
    assert differs(made_from(None, data), made_from(None, swapped)) is not None


def test_a_pool_is_looked_at_by_its_clients():
    inputs, labels = np.arange(12.0).reshape(6, 2), np.arange(6.0)

    def pool(inputs):
        return Pool(inputs, labels, np.array([0, 2]), np.array([2, 4]), None, None, 4, np.float64)

    before = made_from(None, pool(inputs))
    assert differs(before, made_from(None, pool(inputs.copy()))) is None
    assert differs(before, made_from(None, pool(inputs + 1))) is not None


def test_memory_mapped_rows_are_hardly_read(tmp_path):
    data = unequal()
    np.save(tmp_path / "inputs.npy", data.inputs)
    mapped = data._replace(inputs=np.load(tmp_path / "inputs.npy", mmap_mode="r"))
    assert differs(made_from(None, data), made_from(None, mapped)) is None


def test_simulate_refuses_to_resume_with_another_penalty_or_other_data():
    data, algorithm = unequal(), chi2()
    begun = eq.simulate(algorithm, start(), data, 0, rounds=1)
    with pytest.raises(InputError, match=r"made with other settings .*; resume with the same ones, or start over"):
        eq.simulate(chi2(rho=0.4), start(), data, 0, rounds=2, resume=begun)
    with pytest.raises(InputError, match="made with other data: rows of some clients are not the same"):
        eq.simulate(algorithm, start(), data._replace(labels=data.labels + 1), 0, rounds=2, resume=begun)
    assert eq.simulate(algorithm, start(), jax.tree.map(np.asarray, data), 0, rounds=2, resume=begun).rounds == 2


def test_inside_another_program_the_way_to_the_kernel_is_shown():
    data, algorithm = unequal(), chi2()

    def model(x):
        return jnp.sum(algorithm.model(eq.simulate(algorithm, x, data, 0, rounds=1).server))

    def of_rho(rho):
        return jnp.sum(eq.simulate(chi2(rho), start(), data, 0, rounds=1).server.x)

    for act in (
        lambda: jax.jit(model)(start()),
        lambda: jax.grad(model)(start()),
        lambda: jax.vmap(model)(start()[None]),
        lambda: jax.grad(of_rho)(0.3),
        lambda: jax.jit(lambda x: eq.sweep(grid(chi2(), x, data), rounds=1)[0].server)(start()),
    ):
        with pytest.raises(InputError, match=r"called inside jit, vmap, grad or scan; there, use eq.kernel"):
            act()


def test_a_state_that_no_memory_holds_is_refused():
    task, dual = eq.tasks.ridge(DIM, 0.1), eq.objectives.chi2(N, 0.3)
    algorithm = eq.algorithms.scaffpd_model(task, dual, eq.cohorts.everyone(N), steps=1, memory=10**9)
    with pytest.raises(InputError, match=r"the state of scaffpd_model takes .* GiB .* and this device has"):
        eq.simulate(algorithm, start(), unequal(), 0, rounds=1)


def test_seeds_alone_are_a_sweep():
    """It once ended in "what clients prepare depends on a setting"."""
    data = unequal()
    found = eq.sweep(grid(chi2(), start(), data, (0, 1)), rounds=2)
    assert [result.rounds for result in found] == [2, 2]
    alone = eq.simulate(chi2(), start(), data, 1, rounds=2)
    np.testing.assert_allclose(found[1].server.x, alone.server.x, rtol=1e-10)
