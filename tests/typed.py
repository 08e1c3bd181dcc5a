"""What an editor knows of a run; mypy reads this file, nothing runs it."""

from typing import Any, assert_type

import jax.numpy as jnp
import optax
from jax import Array

import equipoise as eq
from equipoise.algorithms.fedavg import Server as FedAvgServer
from equipoise.algorithms.scaffpd import Client, Server
from equipoise.algorithms.wrapping import Beside
from equipoise.tasks import Task


def of_a_run(task: Task, shards: eq.data.Shards, x: Array) -> None:
    rule = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.7)
    everyone, dual = eq.cohorts.everyone(), eq.objectives.chi2(6, 0.1)
    scaffpd = eq.algorithms.scaffpd(task, dual, everyone, rule, steps=5, local_lr=0.02)
    result = eq.simulate(scaffpd, x, shards, 0, rounds=3, record=lambda server: server.losses)
    assert_type(result.server, Server)
    assert_type(result.clients, Client)
    assert_type(result.model, Array)
    assert_type(result.server.lam, Array)
    assert_type(eq.debug(scaffpd, x, shards, 0, rounds=1).server, Server)
    assert_type(eq.kernel.init(scaffpd, x).server, Server)


def of_a_tree(params: dict[str, Array], shards: eq.data.Shards) -> None:
    task = eq.tasks.task_of(lambda key: params, loss=lambda params, batch: jnp.zeros(()))
    assert_type(task, Task[dict[str, Array]])
    assert_type(task.load("model.safetensors"), dict[str, Array])
    fedavg = eq.algorithms.fedavg(task, eq.cohorts.everyone(6), steps=5, local_lr=0.02)
    assert_type(eq.simulate(fedavg, params, shards, 0, rounds=3).model, dict[str, Array])
    adam = eq.algorithms.with_server_optimizer(fedavg, optax.adam(0.1))
    assert_type(eq.simulate(adam, params, shards, 0, rounds=3).server, Beside[FedAvgServer, Any])
