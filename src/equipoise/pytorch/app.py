"""A Flower app with PyTorch, with another strategy: the module, the loss and the loaders stay as they are.

    app = client_app(lambda context: (Net(), LOSS, loader_of(context)), method)     # in place of ClientApp()
    strategy = strategy_of(method, Net(), LOSS, example)                            # in place of FedAvg()
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10)        # as it was

`method` makes any algorithm of a task; both sides have to make the same one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from equipoise.deploy.server.events import Outcome
from equipoise.deploy.server.rounds import serve
from equipoise.deploy.server.sites import Timeouts, gather
from equipoise.deploy.site import messages
from equipoise.deploy.site.messages import Participant
from equipoise.errors import require
from equipoise.protocol import Algorithm
from equipoise.pytorch.site import Batch, Loss, TorchSite, torch_site, trained
from equipoise.tasks import Task

MakeAlgorithm = Callable[[Task], Algorithm]


def client_app(
    open_client: Callable[[Context], tuple],
    method: MakeAlgorithm,
    *,
    stochastic: bool = True,
    folder: str | Path = "flower-sites",
) -> ClientApp:
    """A ClientApp for the (module, loss, loader) that `open_client` makes of a node's context.

    `stochastic`: local steps on one batch each, as in `torch_site`. `folder` is where clients keep what they must not
    forget, each below its own name.
    """

    def open_site(context: Context) -> Participant:
        name = messages.site_name(context)
        site = torch_site(*open_client(context), stochastic=stochastic)
        return Participant(name, Path(folder) / name, {"train": lambda: site.job(method(site.task))})

    return messages.client_app(open_site)


class Strategy(NamedTuple):
    """What takes the place of a strategy of Flower's: `start` is called as theirs is."""

    algorithm: Algorithm
    site: TorchSite  # the server's copy of the module; of the data only the shapes
    timeouts: Timeouts | None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        seed: int = 0,
    ) -> Result:
        """Trains from the arrays of the module's state_dict over the nodes that are connected, all of them needed."""
        result = Result()
        self.site.module.load_state_dict(initial_arrays.to_torch_state_dict())
        start = torch.nn.utils.parameters_to_vector(trained(self.site.module).values())
        x = jnp.asarray(start.detach().cpu().numpy())

        def look(round: int, arrays: ArrayRecord) -> None:
            metrics = None if evaluate_fn is None else evaluate_fn(round, arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[round] = metrics

        def arrays_of(outcome: Outcome) -> ArrayRecord:
            self.site.put(self.algorithm.model(outcome.result.server))
            return ArrayRecord(self.site.module.state_dict())

        look(0, initial_arrays)
        outcome = serve(
            self.algorithm,
            x,
            gather(grid, n=self.algorithm.n, timeouts=self.timeouts),
            seed,
            shard=self.site.shard,
            rounds=num_rounds,
            callback=None if evaluate_fn is None else lambda now: look(now.rounds, arrays_of(now)),
        )
        result.arrays = arrays_of(outcome)
        return result


def strategy_of(
    method: MakeAlgorithm,
    module: torch.nn.Module,
    loss: Loss,
    example: Batch,
    *,
    stochastic: bool = True,
    timeouts: Timeouts | None = None,
) -> Strategy:
    """The strategy of a method, for clients with this module; `example` is a batch of any rows, for its shapes.

    `timeouts`: how long to wait for clients, see `flower.gather`.
    """
    require(len(example) == 2 and len(example[1]) > 0, "the example is no batch; give (inputs, labels) of a row")
    site = torch_site(module, loss, [example], stochastic=stochastic)
    return Strategy(method(site.task), site, timeouts)
