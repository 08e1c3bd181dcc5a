"""Every client goes on with its own model, which is its state; nothing is sent in either direction.

The server keeps the start, and sends it to nobody.
"""

from jax.typing import ArrayLike

from equipoise.algorithms.fedavg import Server
from equipoise.algorithms.messages import Nothing, send_nothing
from equipoise.cohorts import everyone
from equipoise.protocol import Algorithm, Data, Exchange, RandomKey, Replies, Reply, Vector
from equipoise.tasks import Task


def alone(task: Task, n: int, *, steps: int, local_lr: ArrayLike) -> Algorithm[Server, Vector]:
    """Local steps on every client."""

    def train(message: Nothing, own: Vector, data: Data, key: RandomKey) -> tuple[Vector, Reply]:
        return task.descend(own, data, key, steps=steps, lr=local_lr), Reply()

    def learn(server: Server, replies: Replies) -> Server:
        return server

    exchange = Exchange("train", everyone(n).open, send_nothing, train, learn, writes=True)
    return Algorithm("alone", n, task.size, task.prepare, Server, lambda x: x, (exchange,))
