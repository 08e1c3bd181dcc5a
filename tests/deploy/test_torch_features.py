"""Train-Convexify-Train with a PyTorch module: its features are those that JAX makes of the same weights."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import artifact
from equipoise.algorithms.moments import Moments, scaling
from equipoise.errors import InputError
from equipoise.experiment import config, records
from equipoise.experiment.convexify.features import draw_projection, gradient_features, random_layer
from tests.deploy.test_module_site import SITES, grid, trained
from tests.flower import torch_silos

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'equipoise[torch]')")

from equipoise.deploy.server.run import run_federation  # noqa: E402
from equipoise.pytorch.features import load_convexified, module_features  # noqa: E402

P = torch_silos.DIM * torch_silos.HIDDEN + torch_silos.HIDDEN + torch_silos.HIDDEN + 1
STAGES = {"features": 12, "rounds": 0, "l2": 1e-3, "last": "2", "seed": 3, "algorithm": {"steps": 2}}


def settings(**convexify):
    return torch_silos.settings(
        model={"l2": 0.0, "metric": "none"},
        algorithm={"local_lr": 0.5},
        convexify={**STAGES, **convexify},
        run={"rounds": 3},
    )


def in_jax(kind, features, inputs, layers=None):
    model, start = torch_silos.network_of_jax()
    found = gradient_features(model, kind=kind, features=features)
    params = found.with_random_layer(start if layers is None else layers, 3)
    return np.asarray(jax.jit(found.apply)(params, found.projection(3), jnp.asarray(inputs)))


@pytest.mark.parametrize(("kind", "features"), [("sketch", 7), ("coordinates", 7), ("coordinates", P), ("last", 7)])
def test_features_are_those_of_jax(kind, features, tmp_path):
    torch_silos.write(tmp_path, SITES)
    module, *_ = torch_silos.network("east", tmp_path / "east.npz")
    inputs = np.random.default_rng(0).normal(size=(9, torch_silos.DIM))
    p = torch_silos.HIDDEN if kind == "last" else features
    layer = random_layer(3, torch_silos.HIDDEN, jnp.float64)
    before = [p.detach().clone() for p in module.parameters()]
    phi = module_features(module, "2", layer, draw_projection(3, kind, p, P))(torch.tensor(inputs))
    np.testing.assert_allclose(phi.numpy(), in_jax(kind, features, inputs), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    shapes = [(name, p.shape) for name, p in module.named_parameters()]
    sizes = eq.models.module_features(shapes, "2", kind=kind, features=features)
    assert (sizes.size, sizes.parameters) == (p, P)


def test_layers_that_cannot_be_vectorised_go_row_by_row():
    """A network of the user's own; each row against a backward pass of PyTorch's."""
    torch.manual_seed(0)

    class Reads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = torch.nn.LSTM(2, 3, batch_first=True), torch.nn.Linear(3, 4)

        def forward(self, a):
            return self.out(self.lstm(a)[0][:, -1])

    module, inputs = Reads().double(), torch.randn(5, 6, 2, dtype=torch.float64)
    layer = np.array([0.3, -0.2, 0.1, 0.5])
    total = sum(p.numel() for p in module.lstm.parameters()) + 4
    phi = module_features(module, "out", layer, draw_projection(0, "coordinates", total, total))(inputs)
    order, w = np.asarray(draw_projection(0, "coordinates", total, total).order[0]), torch.tensor(layer)
    weights = list(module.lstm.parameters())
    for row, example in zip(phi.numpy(), inputs, strict=True):
        h = module.lstm(example[None])[0][0, -1]
        parts = torch.autograd.grad(h @ w[:3], weights)
        want = np.concatenate([*(p.numpy().ravel() for p in parts), h.detach().numpy(), [1.0]])
        np.testing.assert_allclose(row, want[order], rtol=1e-12, atol=1e-12)


def test_a_run_is_that_of_jax_on_the_same_features(tmp_path):
    """From the network as it begins, so that both have the same; the artifact predicts from raw inputs."""
    done = trained(tmp_path, settings(), "network")
    rows = [torch_silos.read(site, tmp_path / f"{site}.npz") for site in SITES]
    labels = [(y > 0).astype(np.int32) for _, y in rows]
    raw = [in_jax("sketch", 12, x.astype(np.float32).astype(float)) for x, _ in rows]
    pooled = np.concatenate([phi[:30] for phi in raw])  # no test row enters
    mean, scale = scaling(Moments(len(pooled), pooled.sum(axis=0), (pooled**2).sum(axis=0)))
    phi = [(part - mean) * scale for part in raw]
    shards = eq.data.stack([(part[:30], y[:30]) for part, y in zip(phi, labels, strict=True)])
    task = eq.tasks.least_squares(12, 2, centred=True, l2=1e-3)
    algorithm = eq.algorithms.scaffpd(
        task,
        eq.objectives.chi2(2, rho=0.1),
        eq.cohorts.everyone(2),
        eq.steps.constant(tau=1.5, sigma=0.5, theta=0.5),
        steps=3,
        local_lr=0.5,
    )
    result = eq.simulate(algorithm, jnp.zeros(24), shards, 0, rounds=3)
    saved = artifact.load(done.path / records.MODEL)
    np.testing.assert_allclose(saved.params["mean"], mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.ravel(saved.params["head"]), result.server.x, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(done.rows[-1].loss, eq.tasks.losses(task, result.server.x, shards), rtol=1e-9)
    assert any(
        "12 features of a PyTorch module that is not trained: a sketch of its 21" in n for n in done.federation.notes
    )
    assert done.federation.classes == ("0", "1")

    module, *_ = torch_silos.network("east", tmp_path / "east.npz")
    with torch.no_grad():
        module[0].weight.zero_()  # the file has them
    outputs = load_convexified(module, done.path / records.MODEL)
    for k, (x, _) in enumerate(rows):
        made = outputs(torch.tensor(x[30:].astype(np.float32).astype(float))).numpy()
        want = phi[k][30:] @ np.asarray(result.server.x).reshape(2, 12).T
        np.testing.assert_allclose(made, want, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(done.rows[-1].scores["accuracy"][k], np.mean(made.argmax(1) == labels[k][30:]))
    with pytest.raises(InputError, match="load_convexified"):
        saved.outputs(np.zeros((1, torch_silos.DIM)))


def test_all_stages_and_a_resume_in_the_last(tmp_path):
    torch_silos.write(tmp_path, SITES)
    told = config.parse(settings(rounds=2, algorithm={"steps": 5, "local_lr": 0.5}, kind="last"))
    network = grid(told, tmp_path, "network")

    def killed(message, reply):
        at = message.content.get("at", {})
        if at.get("part") == "train" and at["round"] == 1 and (tmp_path / "run" / "agreement.json").is_file():
            raise SystemExit
        return reply

    network.fault = killed
    with pytest.raises(SystemExit):
        run_federation(told, tmp_path / "run", network)
    done = run_federation(told, tmp_path / "run", grid(told, tmp_path, "network"))
    inside = records.read(done.path / records.STAGE_1)
    assert inside.outcome.rounds == 2
    assert inside.rows[-1].objective < inside.rows[0].objective
    assert done.federation.parameters == 2 * torch_silos.HIDDEN
    assert done.rows[-1].objective < done.rows[0].objective
    theta = artifact.load(inside.path / records.MODEL).params["0.weight"]
    np.testing.assert_array_equal(artifact.load(done.path / records.MODEL).params["network"]["0.weight"], theta)


@pytest.mark.parametrize(
    ("function", "last", "sentence"),
    [
        ("network", "3", "is no torch.nn.Linear of the module; give one of 0, 2"),
        ("network", "0", "whose outputs are not what the module returns"),
        ("with_softmax", "2", "whose outputs are not what the module returns"),
        ("with_batch_norm", "3", "use GroupNorm or LayerNorm"),
    ],
)
def test_what_cannot_be_is_said_at_the_site_before_the_first_round(function, last, sentence, tmp_path, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(Exception, match="'east' did not answer 'statistics'"):
        trained(tmp_path, settings(last=last), function)
    assert sentence in caplog.text


@pytest.mark.parametrize(
    ("convexify", "sentence"),
    [
        ({"last": None}, "name it: convexify.last = 'fc'"),
        ({"kind": "linearised"}, "which is for networks of JAX; give 'sketch', 'coordinates' or 'last'"),
        ({"algorithm": {"optimizer": "adam"}}, "convexify.algorithm.optimizer is of optax"),
    ],
)
def test_mistakes_are_sentences(convexify, sentence):
    told = settings(**convexify)
    told["convexify"] = {key: value for key, value in told["convexify"].items() if value is not None}
    with pytest.raises(InputError, match=sentence):
        config.parse(told)
