"""A site whose model, loss and data are PyTorch's takes part in every algorithm, through the same `work` functions.

    site = torch_site(module, torch.nn.MSELoss(), loader)
    job = site.job(eq.algorithms.scaffpd(site.task, dual, ...))     # one of a Participant's jobs
    site.save(x, "model.pt")                                        # the trained weights, as a state_dict

The algorithm asks its task for losses, gradients and local steps; this task calls back into PyTorch for them. The model
vector is the module's parameters in their order, flat; buffers (a batch norm's statistics) stay at the site.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jaxtyping import Int

from equipoise.deploy.client import Job
from equipoise.errors import require
from equipoise.files import write_whole
from equipoise.protocol import Algorithm, RandomKey, Vector
from equipoise.tasks import Task

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, labels


class Rows(NamedTuple):
    """A site's data as far as JAX knows it: how many examples there are."""

    sizes: Int[Array, ""]


class TorchSite(NamedTuple):
    """A module and its data, as a task."""

    task: Task
    shard: Rows
    x: Vector  # the module's parameters as they were
    put: Callable[[Vector], None]  # weights into the module
    module: torch.nn.Module

    def job(self, algorithm: Algorithm, **how: Any) -> Job:
        """The site's part in an algorithm that was built with its task."""
        return Job(algorithm, self.x, self.shard, compiled=False, **how)

    def save(self, x: Vector, path: str | PathLike[str]) -> None:
        """Puts the weights x into the module and writes its state_dict, for torch.load(..., weights_only=True)."""
        self.put(x)
        buffer = io.BytesIO()
        torch.save(self.module.state_dict(), buffer)
        write_whole(Path(path), buffer.getvalue())


def torch_site(
    module: torch.nn.Module,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    loader: Iterable[Batch],
    *,
    l2: float = 0.0,
    stochastic: bool = False,
) -> TorchSite:
    """f_i(x) = mean of the loss over the loader's examples + l2/2 |x|^2.

    Args:
        module: any model; all its parameters that require a gradient are trained.
        loss: of (outputs, labels), the mean over a batch.
        loader: a DataLoader, or anything to iterate over more than once.
        l2: as in `equipoise.tasks`.
        stochastic: gradients and local steps on one batch each, in the loader's order (shuffled by the run's key, if it
            shuffles), instead of on all of them.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    require(parameters, "the module has no parameters to train")
    kinds = {p.dtype for p in parameters}
    require(len(kinds) == 1, f"the module's parameters are of types {kinds}; give all the same, e.g. module.double()")
    size, examples = sum(p.numel() for p in parameters), sum(len(labels) for _, labels in loader)
    require(examples > 0, "the loader has no examples; leave the site out or give it at least one")

    def put(x: Any) -> None:
        flat = torch.as_tensor(np.array(x), dtype=parameters[0].dtype, device=parameters[0].device)
        require(flat.shape == (size,), f"the weights have shape {tuple(flat.shape)}; the module has {size} parameters")
        torch.nn.utils.vector_to_parameters(flat, parameters)

    def flat() -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(parameters).detach().clone()

    def lost(batch: Batch) -> torch.Tensor:
        device = parameters[0].device
        return loss(module(batch[0].to(device)), batch[1].to(device))

    def slope(batches: Iterable[Batch], count: int | None) -> torch.Tensor:
        """The gradient over batches that hold `count` examples (None: a single batch)."""
        module.train()
        module.zero_grad(set_to_none=True)
        for batch in batches:
            (lost(batch) * (1 if count is None else len(batch[1]) / count)).backward()
        zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.cat([g.reshape(-1) for g in zeros]) + l2 * flat()

    def draws() -> Iterator[tuple[Iterable[Batch], int | None]]:
        if stochastic:
            return (([batch], None) for batch in chain.from_iterable(repeat(loader)))
        return ((loader, examples) for _ in repeat(None))

    # What JAX calls back: NumPy in, NumPy out.

    def value(x: Any) -> np.ndarray:
        put(x)
        module.eval()
        with torch.no_grad():
            mean = sum(float(lost(batch)) * len(batch[1]) for batch in loader) / examples
        x = np.asarray(x)
        return np.asarray(mean + l2 / 2 * (x @ x), x.dtype)

    def gradient(x: Any, words: Any) -> np.ndarray:
        put(x)
        with seeded(words):
            return slope(*next(draws())).cpu().numpy().astype(np.asarray(x).dtype)

    def walk(steps: int, x: Any, words: Any, lr: Any, shift: Any, pull: Any, snapshot: Any) -> tuple:
        put(x)
        u = start = seen = flat()
        drift = torch.as_tensor(np.array(shift), dtype=u.dtype, device=u.device)
        with seeded(words):
            for t, draw in zip(range(1, steps + 1), draws(), strict=False):
                u = u - float(lr) * (slope(*draw) + drift + float(pull) * (u - start))
                torch.nn.utils.vector_to_parameters(u, parameters)
                seen = u if t == int(snapshot) else seen
        return tuple(a.cpu().numpy().astype(np.asarray(x).dtype) for a in (u, seen))

    # And the task, as any other.

    def of_loss(x: Vector, shard: Any, key: RandomKey | None = None) -> Array:
        return jax.pure_callback(value, jax.ShapeDtypeStruct((), x.dtype), x)

    def of_grad(x: Vector, shard: Any, key: RandomKey | None = None) -> Vector:
        return jax.pure_callback(gradient, jax.ShapeDtypeStruct(x.shape, x.dtype), x, in_words(key))

    def descend(
        x: Vector,
        shard: Any,
        key: RandomKey | None,
        *,
        steps: int,
        lr: Any,
        shift: Vector | None = None,
        pull: float = 0.0,
        snapshot: Any = None,
    ) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        shift, at = jnp.zeros_like(x) if shift is None else shift, -1 if snapshot is None else snapshot
        u, seen = jax.pure_callback(
            lambda *given: walk(steps, *given), (like, like), x, in_words(key), lr, shift, pull, at
        )
        return u if snapshot is None else (u, seen)

    x = jnp.asarray(flat().cpu().numpy())
    task = Task("torch", size, of_loss, of_grad, descend, lambda key: x, None, lambda shard: shard)
    return TorchSite(task, Rows(jnp.int32(examples)), x, put, module)


def in_words(key: RandomKey | None) -> Array:
    return jnp.zeros(2, jnp.uint32) if key is None else jax.random.key_data(key)


@contextmanager
def seeded(words: Any) -> Iterator[None]:
    """Within it PyTorch draws by the run's key; afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.bitwise_xor.reduce(np.asarray(words, np.uint32))))  # it uses 32 bits
        yield
