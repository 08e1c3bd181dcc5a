"""Gradient features of a PyTorch module, as `equipoise.experiment.convexify.features` has them for networks of JAX.

The random layer and the projection are drawn by JAX from the seed that all sites share; the gradients are PyTorch's, in
the order of the module's parameters.

    outputs = load_convexified(module, "run/model.safetensors")    # what a run leaves: from raw inputs to outputs
"""

import copy
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, cast

import numpy as np
import torch
from jax.typing import ArrayLike
from torch.func import functional_call, grad, vmap

from equipoise import artifact
from equipoise.data.shards import Shards, stack
from equipoise.errors import require
from equipoise.experiment.convexify.features import Kind, Projection, draw_projection, rows_at_once
from equipoise.experiment.convexify.features import module_features as sizes_of_module
from equipoise.pytorch.site import Batch, in_numpy, trained

Features = Callable[[torch.Tensor], torch.Tensor]  # inputs [b, ...] -> [b, p]


def module_features(module: torch.nn.Module, last: str, layer: ArrayLike, projection: Projection | None) -> Features:
    """phi of inputs, at the module's present weights.

    Args:
        module: stays as it is.
        last: the name of its last layer, a torch.nn.Linear whose outputs the module returns.
        layer: w and b of the random one in its place, fan_in + 1 numbers.
        projection: of the gradient; None: phi is the input of the last layer.
    """
    check_last(module, last)
    module = with_one_output(module, last, layer)
    if projection is None:
        return lambda inputs: _into_last(module, last, inputs)[0]
    weights = {name: p.detach() for name, p in trained(module).items()}
    like = next(iter(weights.values()))
    order = torch.as_tensor(np.array(projection.order), dtype=torch.int64, device=like.device)
    factors = torch.as_tensor(np.array(projection.factors), dtype=like.dtype, device=like.device)
    at_once = rows_at_once(sum(p.numel() for p in weights.values()))

    def score(parameters: dict[str, torch.Tensor], example: torch.Tensor) -> torch.Tensor:
        return functional_call(module, parameters, (example[None],)).sum()

    def gradients(inputs: torch.Tensor) -> torch.Tensor:
        try:
            slopes = vmap(grad(score), in_dims=(None, 0), chunk_size=at_once)(weights, inputs)
        except RuntimeError:  # some layers, such as torch.nn.LSTM, cannot be vectorised: one row after the other
            rows = [grad(score)(weights, example) for example in inputs]
            slopes = {name: torch.stack([row[name] for row in rows]) for name in weights}
        return torch.cat([slopes[name].reshape(len(inputs), -1) for name in weights], dim=1)

    def features(inputs: torch.Tensor) -> torch.Tensor:
        parts = inputs.to(like.device).split(at_once)
        return torch.cat([(factors * gradients(part)[:, order]).sum(dim=1) for part in parts])

    return features


def check_last(module: torch.nn.Module, last: str) -> None:
    """The named layer is there, and nothing that differs from site to site has a say in its inputs."""
    linear = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    require(
        last in linear,
        f"convexify.last is '{last}', which is no torch.nn.Linear of the module; give one of {', '.join(linear)}",
    )
    statistics = [name for name, _ in module.named_buffers() if name.endswith("running_mean")]
    require(
        not statistics,
        f"the module keeps statistics of its batches ({', '.join(statistics)}), which stay at each site, so that "
        "features would differ from site to site; use GroupNorm or LayerNorm",
    )


def check_returned(module: torch.nn.Module, last: str, inputs: torch.Tensor) -> None:
    """The module returns what its last layer makes."""
    module.eval()
    _, made, returned = _into_last(module, last, inputs)
    require(
        isinstance(returned, torch.Tensor) and torch.equal(returned.reshape(-1), made.reshape(-1)),
        f"convexify.last is '{last}', whose outputs are not what the module returns; name its last layer, and leave "
        "what comes after it to the loss",
    )


def _into_last(module: torch.nn.Module, last: str, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The last layer's inputs and outputs, and what the module returns."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = module.get_submodule(last).register_forward_hook(lambda _, given, made: seen.append((given[0], made)))
    device = next(module.parameters()).device
    try:
        with torch.no_grad():
            returned = module(inputs.to(device))
    finally:
        hook.remove()
    return *seen[-1], returned


def with_one_output(module: torch.nn.Module, last: str, layer: ArrayLike) -> torch.nn.Module:
    """A copy in evaluation mode, with (w, b) for its last layer."""
    module = copy.deepcopy(module).eval()
    old: Any = module.get_submodule(last)
    new = torch.nn.Linear(old.in_features, 1, old.bias is not None, device=old.weight.device, dtype=old.weight.dtype)
    drawn = torch.as_tensor(np.array(layer), dtype=old.weight.dtype, device=old.weight.device)
    with torch.no_grad():
        new.weight.copy_(drawn[None, : old.in_features])
        if old.bias is not None:
            new.bias.copy_(drawn[old.in_features :])
    parent, _, name = last.rpartition(".")
    setattr(module.get_submodule(parent), name, new)
    return module


def on_features(batches: Iterable[Batch], features: Features, real: np.dtype) -> Shards:
    """Examples with features for inputs, in the order in which they come."""
    made = [(features(inputs).cpu().numpy(), in_numpy(labels, real).reshape(len(labels))) for inputs, labels in batches]
    inputs, labels = (np.concatenate(part) for part in zip(*made, strict=True))
    return stack([(inputs, labels)]).client(0)


def load_convexified(module: torch.nn.Module, path: str | PathLike[str]) -> Features:
    """The model of a run folder (model.safetensors), from raw inputs to outputs; `module` is like the run's.

    Its weights become those of the run; the last layer's stay as they are.
    """
    saved = artifact.load(path)
    require(
        saved.model.name == "torch_convexified",
        f"{path} is a {saved.model.name}, not a model on features of a PyTorch module",
    )
    about, network = saved.model.arguments, saved.params["network"]
    last, kind = str(about["last"]), cast(Kind, about["kind"])
    given = {name: tuple(p.shape) for name, p in trained(module).items()}
    wanted = {name: tuple(shape) for name, shape in about["parameters"]}
    require(
        given == wanted, f"{path} is of the parameters {wanted}, the module has {given}; give the module of that run"
    )
    with torch.no_grad():
        for name, p in trained(module).items():
            if not name.startswith(f"{last}."):
                p.copy_(torch.as_tensor(np.array(network[name])))
    layer = np.concatenate([np.ravel(network[name]) for name in (f"{last}.weight", f"{last}.bias") if name in network])
    sizes = sizes_of_module(about["parameters"], last, kind=kind, features=about["features"])
    projection = draw_projection(about["seed"], kind, sizes.size, sizes.parameters)
    features = module_features(module, last, layer, projection)
    mean, scale, head = (torch.as_tensor(np.array(saved.params[name])) for name in ("mean", "scale", "head"))

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        phi = features(inputs)
        return ((phi - mean.to(phi)) * scale.to(phi)) @ head.to(phi).T

    return outputs
