"""What docs/deep_models.md says is planned, not believed."""

import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.experiment import config, library, plan
from equipoise.experiment.config import ConvexifySettings

DOC = (Path(__file__).parents[1] / "docs" / "deep_models.md").read_text()
BLOCKS = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)]


def test_the_files_can_be_planned():
    convexified, module, steps = BLOCKS
    assert config.parse(module).convexify.last == "fc"
    jobs = {job.label: job.config for job in plan.compare(convexified)}
    assert jobs["FedAvg"].convexify == jobs["SCAFF-PD"].convexify
    assert jobs["SCAFF-PD"].convexify.features == ConvexifySettings().features
    assert jobs["FedAvg, direct"].convexify is None
    parsed = config.parse(steps).algorithm
    assert (parsed.optimizer.name, parsed.server_optimizer.learning_rate, parsed.schedule) == ("adam", 0.9, "cosine")


def test_every_setting_is_named():
    for name in (*ConvexifySettings.model_fields, "keep_best", "patience", "validation"):
        assert re.search(rf"\b{name}\b", DOC), name


def test_the_small_size_is_one():
    (command,) = re.findall(r"    equipoise reproduce (tct-fashion --set.*?)\n\n", DOC, re.DOTALL)
    name, *words = shlex.split(command.replace("\\\n", " "))
    assignments = [word for word in words if word != "--set"]
    assert assignments
    study = plan.sweep(library.settings(name, assignments), source=name)
    assert all(job.config.run.rounds == 2 and job.config.partition.clients == 4 for job in study.trials)


class Dense:
    """As flax's: `init` makes a tree of arrays by name, `apply` takes it."""

    def __init__(self, outputs):
        self.outputs = outputs

    def init(self, key, inputs):
        shape = (inputs.shape[1], self.outputs)
        return {"params": {"kernel": jax.random.normal(key, shape), "bias": jnp.zeros(self.outputs)}}

    def apply(self, variables, inputs):
        return inputs @ variables["params"]["kernel"] + variables["params"]["bias"][None]


class Sequential:
    def __init__(self, layers):
        self.layers = {f"layers_{k}": layer for k, layer in enumerate(layers)}

    def init(self, key, inputs):
        made = {}
        for name, layer in self.layers.items():
            if isinstance(layer, Dense):
                made[name] = layer.init(key, inputs)["params"]
            inputs = self._one(name, made, inputs)
        return {"params": made}

    def _one(self, name, made, inputs):
        layer = self.layers[name]
        return layer.apply({"params": made[name]}, inputs) if name in made else layer(inputs)

    def apply(self, variables, inputs):
        for name in self.layers:
            inputs = self._one(name, variables["params"], inputs)
        return inputs


@pytest.mark.parametrize("flax", ["a stand-in", "flax"])
def test_a_module_of_flax_is_trained(flax, monkeypatch):
    """The code of the docs, with flax where it is installed, and with a pair of functions of the same form."""
    if flax == "flax":
        pytest.importorskip("flax", reason="flax is not installed")
    else:
        linen = SimpleNamespace(Dense=Dense, Sequential=Sequential, relu=jax.nn.relu)
        package = ModuleType("flax")
        package.linen = linen
        monkeypatch.setitem(sys.modules, "flax", package)
        monkeypatch.setitem(sys.modules, "flax.linen", linen)
    (code,) = re.findall(r"```python\n(import flax.*?)```", DOC, re.DOTALL)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, 40, 5)).astype(np.float32)
    labels = (inputs @ rng.normal(size=5) > 0).astype(np.int32)
    names = {"eq": eq, "inputs": inputs[0]}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):  # as flax expects, and as users have it
        exec(code, names)
        task, shards = names["task"], eq.data.stack(list(zip(inputs, labels, strict=True)))
        assert task.size == 5 * 32 + 32 + 32 * 10 + 10
        x = task.init(jax.random.key(0))
        algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(2), steps=5, local_lr=0.1)
        trained = eq.simulate(algorithm, x, shards, 0, rounds=5).server.x
        before, after = (np.mean(eq.tasks.losses(task, v, shards)) for v in (x, trained))
    assert after < 0.8 * before
