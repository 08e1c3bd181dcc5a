"""Local steps by any optax transformation."""

from functools import partial

from equipoise.local import Optimizer
from equipoise.tasks.task import Task


def with_local_optimizer(task: Task, optimizer: Optimizer) -> Task:
    """`task`, whose local steps are u += local_lr * (the optimizer's update of the gradient).

    Its state is fresh in every round, and its schedules count local steps. Give local_lr = 1 where the optimizer has
    the learning rate: with_local_optimizer(task, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))).
    For FedAvg, FedProx, AFL, DRFA, q-FedAvg, TERM, PropFair and Delta-FL; SCAFFOLD and SCAFF-PD, whose corrections are
    read off plain descent, decline it.
    """
    return task._replace(descend=partial(task.descend, optimizer=optimizer))
