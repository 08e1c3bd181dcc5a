"""A Flower app as a method of the benchmark: its ClientApp for each owner, under its own strategy, in this process."""

import logging
from collections.abc import Iterable
from typing import Any

from equipoise.bench.federations import Federation
from equipoise.errors import InputError, needs

with needs("flower", "Flower apps"):
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity


def trained(
    federation: Federation, app: ClientApp, strategy: Strategy, start: ArrayRecord, *, rounds: int, **options: Any
) -> ArrayRecord:
    """The arrays after these rounds. Owner i is the node whose config says {"partition-id": i, "num-partitions": n}.

    `options` go to the strategy's `start`, such as `train_config`. An owner that fails ends it: no row is left out.
    """
    logging.getLogger("flwr").setLevel(logging.ERROR)  # twenty lines in a round
    return strategy.start(Owners(app, len(federation.owners)), start, rounds, **options).arrays


class Owners(Grid):
    """Flower's way from a server to its nodes, which are called one after the other."""

    def __init__(self, app: ClientApp, n: int):
        self.app = app
        self.contexts: dict[int, Context] = {}
        for i in range(n):
            node: dict[str, Any] = {"partition-id": i, "num-partitions": n}
            self.contexts[i + 1] = Context(1, i + 1, node, RecordDict(), {})
        self.replies: dict[str, Message] = {}
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # which messages are made with

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.object_id)
            self.replies[ids[-1]] = self.app(message, self.contexts[message.metadata.dst_node_id])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in message_ids if i in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Run) -> None:
        raise InputError("the benchmark has one run; leave set_run out")

    @property
    def run(self) -> Run:
        return Run.create_empty(1)
