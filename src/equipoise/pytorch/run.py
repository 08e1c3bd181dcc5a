"""A site of a run whose model is a PyTorch module: its own function makes the module and reads its own data.

The node's configuration, which is the site's own, names it:

    torch   "module:function": called with the site's name and its file, it returns (module, loss, loader), and then
            held_out, a loader or None, and scores of the site's own; `path` may say where the Python module is
    data    the site's file, of any kind; may be left out

The server is told the names and shapes of the module's parameters, and how many examples there are. In the site's
folder stand model.pt, the state_dict of the last model that was evaluated there, and the module's buffers, which no
message carries.
"""

import io
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from equipoise.algorithms.first_model import first_model
from equipoise.data.shards import OwnerRows
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.site import run as site_run
from equipoise.deploy.site.messages import Job, Participant
from equipoise.deploy.site.owner import check_shares
from equipoise.errors import not_none, require
from equipoise.evaluation import ScoreRecord
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.features import draw_projection, random_layer
from equipoise.experiment.convexify.features import module_features as sizes_of_module
from equipoise.experiment.convexify.stages import feature_seed
from equipoise.experiment.problems import precision
from equipoise.files import write_whole
from equipoise.privacy import policy
from equipoise.protocol import Message, Vector
from equipoise.pytorch.features import check_last, check_returned, module_features, on_features
from equipoise.pytorch.site import TorchSite, seeded, torch_site, trained
from equipoise.pytorch.spec import ModuleSpec
from equipoise.pytorch.task import TEST, TRAIN, callback_score

MODEL = "model.pt"


def open_module_site(config: Config, name: str, node: Mapping[str, object], folder: Path) -> Participant:
    """The site, its module made when it is first needed."""

    @cache
    def load_module() -> Made:
        return made(config, name, node)

    def setup(agreed: Agreement) -> Setup:
        module = load_module()
        scores = {name: callback_score(in_torch(score)) for name, score in module.scores.items()}
        task = module.site.task if agreed.network is None else None  # on features it is JAX's own
        return agreement.setup(agreement.stage(config, agreed), agreed, task, scores)

    def rows(agreed: Agreement) -> OwnerRows:
        site, rules = load_module().site, policy.load(site_run.policy_file(node, folder))
        check_shares(rules, config, name, site_run.rows_of_all(agreed), int(site.shard.sizes))
        return OwnerRows(site.shard, not_none(site.test))

    def features(agreed: Agreement) -> OwnerRows:
        theta = not_none(agreed.network).theta
        rows(agreed)  # a Refusal where the site takes no part with so many

        def make() -> OwnerRows:
            site = load_module().site
            x = jnp.asarray(agreement.as_vector(theta, config, site.x.size))
            return made_of_module(config, site, x, np.dtype(config.run.precision))

        return site_run.kept_features(folder, [config.toml(), agreed.run, theta], make)

    trained_on = site_run.RowsSite(config, name, folder, rows, features, setup)

    def statistics(_: str) -> str:
        site, held_out, scores = load_module()
        test = int(site.test.sizes) if held_out and site.test is not None else 0
        spec = described(site, scores).model_dump_json()
        return site_run.SiteStatistics(statistics=spec, train=int(site.shard.sizes), test=test).model_dump_json()

    def start() -> Job:
        site, now = load_module().site, setup(site_run.read_agreement(folder, name))
        return site.job(first_model(now.problem.n, site.x), config=now.digest)

    def buffers_of(agreed: Agreement) -> Buffers:
        """As the last message of the run has left them."""
        buffers = Buffers(load_module().site.module, folder / f"buffers-{agreed.run}.pt")
        buffers.restore()
        return buffers

    def in_module(job: Job, then: Callable[[Message, object], None]) -> Job:
        return job._replace(x=load_module().site.x, compiled=False, then=then)

    def train() -> Job:
        job, agreed = trained_on.train(), trained_on.agreed()
        if agreed.network is not None:  # with [convexify], once there are features the site works on these
            return job
        buffers = buffers_of(agreed)
        return in_module(job, lambda message, state: buffers.keep())

    def evaluate() -> Job:
        job, agreed = trained_on.evaluate(), trained_on.agreed()
        if agreed.network is not None:
            return job
        buffers_of(agreed)
        return in_module(job, lambda message, state: load_module().site.save(message[0], folder / MODEL))

    jobs = {**trained_on.jobs, "start": start, "train": train, "evaluate": evaluate}
    answers = {"statistics": statistics, "agreement": trained_on.accept_agreement}
    return Participant(name, folder, jobs, answers, within=lambda: precision(config))


def made_of_module(config: Config, site: TorchSite, theta: Vector, real: np.dtype) -> OwnerRows:
    """Features of all examples, in an order that the run's seed gives where a loader shuffles."""
    settings = not_none(config.convexify)
    last = not_none(settings.last)
    assert settings.kind != "linearised"
    parameters = [(name, p.shape) for name, p in trained(site.module).items()]
    sizes = sizes_of_module(parameters, last, kind=settings.kind, features=settings.features)
    seed = feature_seed(config)
    layer = random_layer(seed, sizes.fan_in, real)
    projection = draw_projection(seed, settings.kind, sizes.size, sizes.parameters)
    with site.lock, seeded([config.run.seed]):
        site.put(theta)
        features = module_features(site.module, last, layer, projection)
        return OwnerRows(*(on_features(site.batches[which], features, real) for which in (TRAIN, TEST)))


class Made(NamedTuple):
    """What a site's own function makes."""

    site: TorchSite
    held_out: bool  # whether examples were held out
    scores: Mapping[str, Any]  # of (outputs, labels), as tensors; a ScoreRecord says which way is better


def made(config: Config, name: str, node: Mapping[str, object]) -> Made:
    """What the site's own function makes; all sites draw the same random numbers in it."""
    where = node.get("torch")
    require(
        where,
        f"the model of this run is a PyTorch module and '{name}' names none; start it with --torch module:function",
    )
    data = Path(str(node["data"])) if node.get("data") else None
    function = site_run.own_function(str(where), str(node.get("path", "")))
    with seeded([config.run.seed]):
        returned = function(name, data)
    require(
        isinstance(returned, tuple) and len(returned) in (3, 4, 5) and isinstance(returned[0], torch.nn.Module),
        f"{where} returns no (module, loss, loader), nor one with held_out, or held_out and scores",
    )
    module, loss, loader, *rest = returned
    held_out, scores = rest[0] if rest else None, rest[1] if len(rest) > 1 else {}
    require(
        isinstance(scores, Mapping) and all(isinstance(key, str) and callable(score) for key, score in scores.items()),
        f"the scores of {where} are {scores!r}; give functions of (outputs, labels) by their names",
    )
    batch = config.model.batch
    if batch is not None:
        largest = max(len(labels) for _, labels in loader)
        require(
            largest == batch,
            f"model.batch is {batch} and the loader of '{name}' gives batches of {largest}; give both the same",
        )
    site = torch_site(
        module,
        loss,
        loader,
        held_out=list(loader) if held_out is None else held_out,
        l2=config.model.penalty,
        stochastic=batch is not None,
    )
    if config.convexify is not None:
        last = not_none(config.convexify.last)
        check_last(module, last)
        check_returned(module, last, next(iter(loader))[0])
        require(
            described(site, scores).scored and np.prod(site.shard.labels.shape[1:]) == 1,
            f"[convexify] is for one label of each example, a class or a number; {where} has others",
        )
    require(
        not scores or described(site, scores).scored,
        f"{where} has scores of its own, which need outputs for each example and a label to compare them with",
    )
    return Made(site, held_out is not None, scores)


def in_torch(score: object) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A score as JAX calls it back; classes are int64, as PyTorch has them."""
    called: Any = score.score if isinstance(score, ScoreRecord) else score

    def scored(outputs: object, labels: ArrayLike) -> np.ndarray:
        made, wanted = (torch.as_tensor(np.array(a)) for a in (outputs, labels))
        with torch.no_grad():
            value = called(made, wanted if wanted.is_floating_point() else wanted.long())
        return np.asarray(float(value), np.asarray(outputs).dtype)

    return scored


def described(site: TorchSite, scores: Mapping[str, object]) -> ModuleSpec:
    parameters, label = trained(site.module), site.shard.labels
    return ModuleSpec(
        parameters=tuple((name, tuple(p.shape)) for name, p in parameters.items()),
        dtype=str(next(iter(parameters.values())).dtype).removeprefix("torch."),
        outputs=site.outputs,
        label=tuple(label.shape[1:]),
        classes=bool(np.issubdtype(label.dtype, np.integer)),
        scores=tuple((name, getattr(score, "higher_is_better", True)) for name, score in sorted(scores.items())),
    )


class Buffers:
    """A module's buffers in a file: Flower's own nodes start a process for every message."""

    def __init__(self, module: torch.nn.Module, path: Path):
        self.module, self.path = module, path

    def keep(self) -> None:
        buffers = dict(self.module.named_buffers())
        if buffers:
            content = io.BytesIO()
            torch.save(buffers, content)
            write_whole(self.path, content.getvalue())

    def restore(self) -> None:
        if self.path.is_file():
            saved = torch.load(self.path, weights_only=True)
            with torch.no_grad():
                for name, buffer in self.module.named_buffers():
                    buffer.copy_(saved[name])
