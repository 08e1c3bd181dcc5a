"""An algorithm over z = W^-1 x, told in x: what goes in and what comes out are models as everybody knows them."""

import numpy as np

from equipoise.leaves import numbers_are_leaves
from equipoise.protocol import Algorithm, Client, Cuts, Server, Vector
from equipoise.tasks.metric import Metric, from_model, gradients_of_model, linear_of, stretch, to_model
from equipoise.tasks.task import Task


@numbers_are_leaves
def told_in_x(algorithm: Algorithm[Server, Client], task: Task, metric: Metric) -> Algorithm[Server, Client]:
    """`algorithm`, built on `tasks.in_metric(task)`: it starts from a model x, and `model` gives x.

    The states of server and clients, and what crosses, are in z.
    """
    linear = linear_of(task)

    def model(server: Server) -> Vector:
        return to_model(linear, metric, algorithm.model(server))

    def cuts(server: Server) -> Cuts | None:
        tangents = algorithm.cuts(server)
        if tangents is None:
            return None
        return tangents._replace(
            points=np.stack([np.asarray(to_model(linear, metric, z), np.float64) for z in tangents.points]),
            gradients=gradients_of_model(linear, metric, tangents.gradients),
            off=tangents.off / stretch(linear, metric) ** 0.5,
        )

    return algorithm._replace(
        cuts=cuts,
        init=lambda x: algorithm.init(from_model(linear, metric, x)),
        init_client=lambda x: algorithm.init_client(from_model(linear, metric, x)),
        model=model,
    )
