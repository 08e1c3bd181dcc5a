"""A Flower Grid in this process: messages go through Flower's own bytes, sites through the real ClientApp."""

import itertools
from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def carried(message):
    """The message as it arrives: taken apart into bytes, hashed, and put together again."""
    number = message.object_id
    arrived = inflate_object_from_contents(
        number, {i: part.deflate() for i, part in get_all_nested_objects(message).items()}
    )
    arrived.metadata.__dict__["_message_id"] = number
    return arrived


class InProcess(Grid):
    """`fault(message, reply)` may change a reply, lose it (None) or raise."""

    def __init__(
        self,
        app,
        sites: Iterable[str],
        fault: Callable | None = None,
        node: Callable[[str], dict] = lambda site: {},
        run_config: dict | None = None,
    ):
        self.app, self.fault = app, fault or (lambda message, reply: reply)
        self.node, self.run_config = node, run_config or {}
        self.numbers, self.contexts, self.replies, self.asked = itertools.count(1), {}, {}, []
        for site in sites:
            self.start(site)
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def start(self, site: str | None) -> int:
        node = next(self.numbers)
        config = {} if site is None else {"site": site, **self.node(site)}
        self.contexts[node] = Context(1, node, config, RecordDict(), self.run_config)
        return node

    def stop(self, site: str) -> None:
        self.contexts = {n: c for n, c in self.contexts.items() if c.node_config.get("site") != site}

    def site(self, message: Message) -> str:
        return self.contexts[message.metadata.dst_node_id].node_config.get("site", "")

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in map(carried, messages):
            ids.append(message.metadata.message_id)
            self.asked.append(message)
            node = message.metadata.dst_node_id
            if node not in self.contexts:
                continue
            try:
                reply = self.fault(message, self.app(message, self.contexts[node]))
            except Exception as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            if reply is not None:
                self.replies[ids[-1]] = carried(reply)
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def set_run(self, run):
        raise AssertionError("the server does without this")

    @property
    def run(self):
        return Run.create_empty(1)

    def create_message(self, *args, **kwargs):
        raise AssertionError("the server does without this")

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the server does without this")
