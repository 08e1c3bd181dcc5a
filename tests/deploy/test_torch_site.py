"""Sites with PyTorch models do what sites with JAX models do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.algorithms import ALGORITHMS
from equipoise.deploy import flower
from tests.deploy.grid import InProcess
from tests.deploy.setting import HASTY, SITES, serve
from tests.problems import DIM, EVERY, N, assert_same, build, rows, start, unequal

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'equipoise[torch]')")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from equipoise.pytorch.site import torch_site  # noqa: E402

KEY = jax.random.key(3)


def linear():
    return torch.nn.Sequential(torch.nn.Linear(DIM, 1, bias=False), torch.nn.Flatten(0)).double()


def loader(i, **how):
    inputs, labels = rows(unequal())[i]
    data = TensorDataset(torch.tensor(inputs), torch.tensor(labels))
    return DataLoader(data, **{"batch_size": 4, **how})  # the last batch is smaller


def ridge_by_torch(i, **how):
    """tests.problems' task: mean squared error and an l2 term."""
    return torch_site(linear(), torch.nn.MSELoss(), loader(i), l2=0.1, **how)


@pytest.mark.parametrize("name", EVERY)
def test_torch_sites_as_jax_sites(name, tmp_path):
    """Three sites with PyTorch and two with JAX in one federation, against the simulator."""
    algorithm = build(name, m=3)
    sample = eq.cohorts.uniform(N, 3)

    def open_site(context):
        site = flower.site_name(context)
        i = SITES.index(site)

        def job():
            if i > 2:
                return flower.Job(algorithm, start(), unequal().client(i))
            torch_ = ridge_by_torch(i)
            return torch_.job(ALGORITHMS[name].build_example(torch_.task, eq.objectives.chi2(N, 0.1), sample))._replace(
                x=start()
            )

        return flower.Participant(site, tmp_path / site, {"train": job})

    federation = flower.gather(InProcess(flower.client_app(open_site), SITES), sites=SITES, timeouts=HASTY)
    outcome = serve(algorithm, federation, KEY, rounds=3)
    expected = eq.simulate(algorithm, start(), unequal(), KEY, rounds=3, clients_per_batch=N, devices=1)
    assert [e for e in outcome.ledger.events if e.what != "joined"] == []
    assert_same(outcome.result.server, expected.server)


def test_the_task_is_that_of_jax():
    site, task = ridge_by_torch(2), eq.tasks.ridge(DIM, 0.1)
    shard, x = unequal().client(2), start()
    assert int(site.shard.sizes) == int(shard.sizes)
    how = {"steps": 4, "lr": 0.05, "shift": jnp.ones(DIM), "pull": 0.3, "snapshot": jnp.int32(2)}
    for jit in (lambda f: f, jax.jit):
        assert_same(jit(lambda x: site.task.loss(x, site.shard))(x), task.loss(x, shard))
        assert_same(jit(lambda x: site.task.grad(x, site.shard))(x), task.grad(x, shard))
        assert_same(
            jit(lambda x: site.task.descend(x, site.shard, None, **how))(x), task.descend(x, shard, None, **how)
        )


def test_batches_follow_the_key_and_leave_the_generator_alone():
    site = torch_site(linear(), torch.nn.MSELoss(), loader(2, shuffle=True), stochastic=True)
    before = torch.random.get_rng_state()
    one, again, other = (site.task.grad(start(), site.shard, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    moved = site.task.descend(start(), site.shard, jax.random.key(1), steps=5, lr=0.01)  # more steps than batches
    assert np.isfinite(moved).all()
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_go_back_into_the_module_and_into_a_state_dict(tmp_path):
    site = ridge_by_torch(0)
    site.save(start(), tmp_path / "model.pt")
    np.testing.assert_array_equal(site.module[0].weight.detach().numpy().ravel(), start())
    other = linear()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    inputs = torch.tensor(rows(unequal())[0][0])
    np.testing.assert_allclose(other(inputs).detach(), inputs.numpy() @ np.asarray(start()))
    with pytest.raises(eq.errors.InputError, match=r"shape \(3,\); the module has 4"):
        site.put(np.ones(3))


def test_a_site_can_keep_the_final_model(tmp_path):
    """The last message of an evaluation is the model; `then` sees it."""
    from equipoise.evaluation import evaluation

    site, models = ridge_by_torch(0), start()[None]
    scoring = evaluation(site.task, eq.cohorts.everyone(1), models, scores={})
    job = site.job(scoring, then=lambda x, state: site.save(x, tmp_path / "final.pt"))
    application = flower.client_app(lambda context: flower.Participant("a", tmp_path, {"test": lambda: job}))
    federation = flower.gather(InProcess(application, ["a"]), n=1, timeouts=HASTY)
    outcome = flower.serve(scoring, start(), federation, KEY, shard=site.shard, rounds=1, part="test")
    assert isinstance(outcome.result.server.heard.scores["loss"], jax.Array)
    saved = torch.load(tmp_path / "final.pt", weights_only=True)
    np.testing.assert_array_equal(saved["0.weight"].numpy().ravel(), start())


def test_a_network_in_single_precision_learns(tmp_path):
    """Anything that PyTorch can differentiate: here two layers and a dropout, with SCAFFOLD over three sites."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(DIM, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
    x = torch_site(net, torch.nn.CrossEntropyLoss(), [(torch.zeros(1, DIM), torch.zeros(1, dtype=torch.long))]).x
    assert x.dtype == np.float32

    def open_site(context):
        name = flower.site_name(context)
        rng = np.random.default_rng("abc".index(name))
        inputs = rng.normal(size=(64, DIM)).astype(np.float32)
        labels = (inputs @ np.arange(1.0, DIM + 1) > 0).astype(np.int64)
        batches = DataLoader(TensorDataset(torch.tensor(inputs), torch.tensor(labels)), batch_size=16, shuffle=True)
        site = torch_site(net, torch.nn.CrossEntropyLoss(), batches, stochastic=True)
        algorithm = eq.algorithms.scaffold(site.task, eq.cohorts.everyone(3), steps=8, local_lr=0.2)
        return flower.Participant(name, tmp_path / name, {"train": lambda: site.job(algorithm)._replace(x=x)})

    federation = flower.gather(InProcess(flower.client_app(open_site), "abc"), n=3, timeouts=HASTY)
    site = torch_site(net, torch.nn.CrossEntropyLoss(), [(torch.zeros(1, DIM), torch.zeros(1, dtype=torch.long))])
    algorithm = eq.algorithms.scaffold(site.task, eq.cohorts.everyone(3), steps=8, local_lr=0.2)
    outcome = flower.serve(algorithm, x, federation, KEY, shard=site.shard, rounds=6)
    site.put(outcome.result.server.x)
    inputs = torch.tensor(np.random.default_rng(9).normal(size=(500, DIM)).astype(np.float32))
    wanted = (inputs.numpy() @ np.arange(1.0, DIM + 1) > 0).astype(int)
    assert np.mean(net.eval()(inputs).argmax(1).numpy() == wanted) > 0.9


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: torch_site(torch.nn.Flatten(), torch.nn.MSELoss(), loader(0)), "no parameters to train"),
        (lambda: torch_site(linear(), torch.nn.MSELoss(), []), "no examples"),
        (
            lambda: torch_site(torch.nn.Sequential(linear(), torch.nn.Linear(1, 1)), torch.nn.MSELoss(), loader(0)),
            "give all the same",
        ),
    ],
)
def test_sites_that_cannot_be(make, sentence):
    with pytest.raises(eq.errors.InputError, match=sentence):
        make()
