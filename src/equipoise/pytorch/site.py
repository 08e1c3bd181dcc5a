"""A site whose model, loss and data are PyTorch's takes part in every algorithm, through the same `work` functions.

    site = torch_site(module, torch.nn.MSELoss(), loader)
    job = site.job(eq.algorithms.scaffpd(site.task, dual, ...))     # one of a Participant's jobs
    site.save(x, "model.pt")                                        # the trained weights, as a state_dict

The algorithm asks its task for losses, gradients and local steps; this task calls back into PyTorch for them. The model
vector is the module's parameters in their order, flat; buffers (a batch norm's statistics) stay at the site.
"""

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from equipoise import artifact
from equipoise.data.shards import Shards
from equipoise.deploy.site.messages import Job
from equipoise.errors import require
from equipoise.files import write_whole
from equipoise.protocol import Algorithm, Vector
from equipoise.pytorch.task import TEST, TRAIN, Callbacks, callback_task, rows
from equipoise.tasks import Task

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs, labels
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of (outputs, labels), the mean over a batch
drawing = threading.Lock()  # PyTorch's random numbers are of the whole process, and sites may share one


class TorchSite(NamedTuple):
    """A module and its data, as a task."""

    task: Task
    shard: Shards  # the training examples
    x: Vector  # the module's parameters as they were
    put: Callable[[Vector], None]  # weights into the module
    module: torch.nn.Module
    test: Shards | None  # the examples that were held out
    outputs: tuple[int, ...] | None  # of one example; None: the module returns no array
    lock: threading.Lock  # there is one module, and training and evaluation both put weights into it
    batches: Mapping[int, Iterable[Batch]]  # TRAIN and TEST

    def job(self, algorithm: Algorithm, **options: Any) -> Job:
        """The site's part in an algorithm that was built with its task."""
        return Job(algorithm, self.x, self.shard, compiled=False, **options)

    def save(self, x: Vector, path: str | PathLike[str]) -> None:
        """Puts the weights x into the module and writes its state_dict, for torch.load(..., weights_only=True)."""
        buffer = io.BytesIO()
        with self.lock:
            self.put(x)
            torch.save(self.module.state_dict(), buffer)
        write_whole(Path(path), buffer.getvalue())


def trained(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of the model vector, in its order."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def load_weights(module: torch.nn.Module, path: str | PathLike[str]) -> None:
    """Puts the model of a run folder (model.safetensors) into a module of the same parameters; buffers stay."""
    saved, parameters = artifact.load(path), trained(module)
    weights = {name: torch.as_tensor(np.array(value)) for name, value in saved.params.items()}
    given, wanted = ({name: tuple(a.shape) for name, a in part.items()} for part in (weights, parameters))
    require(given == wanted, f"{path} has the parameters {given}, the module {wanted}; give the module of that run")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def torch_site(
    module: torch.nn.Module,
    loss: Loss,
    loader: Iterable[Batch],
    *,
    held_out: Iterable[Batch] | None = None,
    l2: float = 0.0,
    stochastic: bool = False,
) -> TorchSite:
    """f_i(x) = mean of the loss over the loader's examples + l2/2 |x|^2.

    Args:
        module: any model; all its parameters that require a gradient are trained.
        loss: of (outputs, labels), the mean over a batch.
        loader: a DataLoader, or anything to iterate over more than once.
        held_out: examples to score the model on; they are read once and kept.
        l2: as in `equipoise.tasks`.
        stochastic: gradients and local steps on one batch each, in the loader's order (shuffled by the run's key, if it
            shuffles), instead of on all of them.
    """
    parameters = [*trained(module).values()]
    require(parameters, "the module has no parameters to train")
    kinds = {p.dtype for p in parameters}
    require(len(kinds) == 1, f"the module's parameters are of types {kinds}; give all the same, e.g. module.double()")
    examples = sum(len(labels) for _, labels in loader)
    require(examples > 0, "the loader has no examples; leave the site out or give it at least one")
    kept = None if held_out is None else [batch for batch in held_out if len(batch[1])]
    require(kept is None or kept, "no examples are held out; give at least one, or leave the held-out loader away")
    sets: dict[int, Iterable[Batch]] = {TRAIN: loader, TEST: kept or ()}
    flat = FlatModule(module, loss, parameters, sets, examples, l2, stochastic, threading.Lock())
    start = flat.vector().cpu().numpy()
    real = start.dtype
    first = next(iter(kept or loader))
    module.eval()
    with torch.no_grad():
        made = flat.applied(first[0])
    shape = tuple(made.shape[1:]) if isinstance(made, torch.Tensor) and made.shape[:1] == first[1].shape[:1] else None
    x = jnp.asarray(start)
    task = callback_task("torch", x, Callbacks(flat.value, flat.gradient, flat.curve, flat.walk, flat.outputs), shape)
    train = rows(TRAIN, in_numpy(first[1][:1], real), examples)
    labels = [in_numpy(labels, real) for _, labels in kept or ()]
    test = rows(TEST, np.concatenate(labels), sum(map(len, labels))) if labels else None
    return TorchSite(task, train, x, flat.put, module, test, shape, flat.lock, sets)


class FlatModule(NamedTuple):
    """A module with its loss and its examples, as JAX calls it back: NumPy in, NumPy out."""

    module: torch.nn.Module
    loss: Loss
    parameters: Sequence[torch.nn.Parameter]  # those that require a gradient: one flat vector
    sets: Mapping[int, Iterable[Batch]]  # TRAIN and TEST
    examples: int  # of TRAIN
    l2: float
    stochastic: bool  # gradients and local steps on one batch each
    lock: threading.Lock

    def tensor(self, a: object) -> torch.Tensor:
        """Like the parameters, on their device."""
        return torch.as_tensor(np.array(a), dtype=self.parameters[0].dtype, device=self.parameters[0].device)

    def put(self, x: ArrayLike) -> None:
        weights, size = self.tensor(x), sum(p.numel() for p in self.parameters)
        require(
            weights.shape == (size,), f"the weights have shape {tuple(weights.shape)}; the module has {size} parameters"
        )
        torch.nn.utils.vector_to_parameters(weights, self.parameters)

    @contextmanager
    def at_weights(self, x: ArrayLike, *, training: bool) -> Iterator[None]:
        """Within it the module has the weights x, for one caller at a time."""
        with self.lock:
            self.put(x)
            self.module.train(training)
            yield

    def vector(self) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(self.parameters).detach().clone()

    def applied(self, inputs: torch.Tensor) -> Any:
        return self.module(inputs.to(self.parameters[0].device))

    def lost(self, batch: Batch) -> torch.Tensor:
        return self.loss(self.applied(batch[0]), batch[1].to(self.parameters[0].device))

    def draws(self) -> Iterator[tuple[Iterable[Batch], int | None]]:
        """The batches of every gradient in turn, and how many examples they hold (None: a single batch)."""
        if self.stochastic:
            return (([batch], None) for batch in chain.from_iterable(repeat(self.sets[TRAIN])))
        return ((self.sets[TRAIN], self.examples) for _ in repeat(None))

    def slope(self, batches: Iterable[Batch], count: int | None) -> torch.Tensor:
        """The gradient over batches that hold `count` examples (None: a single batch)."""
        self.module.zero_grad(set_to_none=True)
        for batch in batches:
            (self.lost(batch) * (1 if count is None else len(batch[1]) / count)).backward()
        zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return torch.cat([g.reshape(-1) for g in zeros]) + self.l2 * self.vector()

    # What JAX calls.

    def value(self, x: ArrayLike, which: np.ndarray) -> np.ndarray:
        with self.at_weights(x, training=False), torch.no_grad():
            losses = [(float(self.lost(batch)), len(batch[1])) for batch in self.sets[int(which)]]
        x = np.asarray(x)
        mean = sum(value * count for value, count in losses) / sum(count for _, count in losses)
        return np.asarray(mean + self.l2 / 2 * (x @ x), x.dtype)

    def outputs(self, x: ArrayLike, which: np.ndarray) -> np.ndarray:
        with self.at_weights(x, training=False), torch.no_grad():
            return like(x, torch.cat([self.applied(inputs) for inputs, _ in self.sets[int(which)]]))

    def gradient(self, x: ArrayLike, words: object) -> np.ndarray:
        with self.at_weights(x, training=True), seeded(words):
            return like(x, self.slope(*next(self.draws())))

    def curve(self, x: ArrayLike, v: object, words: object) -> np.ndarray:
        """The derivative of the gradient along v."""
        along = self.tensor(v)
        pieces = zip(along.split([p.numel() for p in self.parameters]), self.parameters, strict=True)
        parts = [piece.view_as(p) for piece, p in pieces]
        total = self.l2 * along
        with self.at_weights(x, training=True), seeded(words):
            batches, count = next(self.draws())
            for batch in batches:
                value = self.lost(batch) * (1 if count is None else len(batch[1]) / count)
                slopes = torch.autograd.grad(value, self.parameters, create_graph=True, materialize_grads=True)
                rise = sum((g * part).sum() for g, part in zip(slopes, parts, strict=True))
                if isinstance(rise, torch.Tensor) and rise.requires_grad:  # not of a loss that is linear
                    curves = torch.autograd.grad(rise, self.parameters, materialize_grads=True)
                    total = total + torch.cat([c.reshape(-1) for c in curves])
        return like(x, total)

    def walk(
        self,
        steps: int,
        x: ArrayLike,
        words: object,
        lr: np.ndarray,
        shift: object,
        pull: np.ndarray,
        after: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Local steps: where they end, and where they are after so many."""
        drift = self.tensor(shift)
        with self.at_weights(x, training=True), seeded(words):
            u = start = seen = self.vector()
            for t, draw in zip(range(1, steps + 1), self.draws(), strict=False):
                u = u - float(lr) * (self.slope(*draw) + drift + float(pull) * (u - start))
                torch.nn.utils.vector_to_parameters(u, self.parameters)
                seen = u if t == int(after) else seen
        return like(x, u), like(x, seen)


def like(x: ArrayLike, made: torch.Tensor) -> np.ndarray:
    """In NumPy, of the type of x."""
    return made.cpu().numpy().astype(np.asarray(x).dtype)


def in_numpy(labels: torch.Tensor, real: np.dtype) -> np.ndarray:
    """Labels as JAX takes them: classes are int32, numbers of the model's type."""
    return labels.cpu().numpy().astype(real if labels.is_floating_point() else np.int32)


@contextmanager
def seeded(words: object) -> Iterator[None]:
    """Within it PyTorch draws by the run's key; afterwards as if nothing had been drawn."""
    with drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.bitwise_xor.reduce(np.asarray(words, np.uint32))))  # it uses 32 bits
        yield
