"""Real data from the loader to a table of clients, and how much memory that takes."""

import operator
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import models
from equipoise.evaluation import evaluate, standing
from equipoise.report.clients import report
from tests.problems import assert_identical
from tests.report.test_clients import shown

N, KEY = 20, jax.random.key(0)
EVERYONE, DUAL = eq.cohorts.everyone(N), eq.objectives.chi2(N, 0.1)


@pytest.fixture(scope="module")
def digits():
    """20 clients, Dir(0.1), of which 30% lost 70% of their training samples."""
    data = eq.data.load("digits").flat()
    parts = eq.data.partition.dirichlet(data.labels, N, 0.1, KEY).parts
    return eq.data.pools(data, parts, key=KEY, thin=(0.3, 0.7))


def softmax(train):
    task = eq.tasks.softmax_regression(64, 10, l2=1e-2)
    rule, local_lr, _ = eq.steps.tuned(task, train.padded(), task.init(KEY), DUAL, steps=10, mu=1e-2)
    return task, rule, local_lr


def mlp(train):
    model = models.mlp(64, 32, 10)
    task = eq.tasks.task_of(model.init, model.apply, models.cross_entropy)
    return task, eq.steps.constant(tau=1.0, sigma=0.02, theta=0.0), 0.1


def algorithms(task, rule, local_lr):
    how = {"steps": 10, "local_lr": local_lr}
    return {
        "fedavg": eq.algorithms.fedavg(task, EVERYONE, **how),
        "scaffold": eq.algorithms.scaffold(task, EVERYONE, **how),
        "drfa": eq.algorithms.drfa(task, DUAL, EVERYONE, **how, dual_lr=0.01),
        "scaffpd": eq.algorithms.scaffpd(task, DUAL, EVERYONE, rule, **how),
    }


@pytest.mark.parametrize("model", [softmax, mlp])
@pytest.mark.thorough(witness="cli/test_experiments.py::test_from_silo_files_to_predictions")
def test_digits_over_twenty_clients(digits, model):
    train, test = digits
    task, *rule = model(train)
    x, ends = task.init(KEY), {"before": task.init(KEY)}
    for name, algorithm in algorithms(task, *rule).items():
        result, again = (eq.simulate(algorithm, x, train, KEY, rounds=20) for _ in range(2))
        assert_identical((result.server, result.clients), (again.server, again.clients))
        ends[name] = algorithm.model(result.server)
    tables = evaluate(task, jnp.stack(list(ends.values())), test)  # all in one run
    worst = {}
    for k, name in enumerate(ends):
        table = jax.tree.map(operator.itemgetter(k), tables)
        summary = standing(table).summary
        worst[name] = summary["worst20"]
        if name != "before":
            assert table.sizes.tolist() == np.asarray(test.sizes).tolist()
            assert table.scores["loss"].mean() < tables.scores["loss"][0].mean() / 2, name
            assert summary["mean"] > 0.7, name
    assert worst["scaffpd"] > worst["fedavg"] + 0.1  # what it is for
    text = shown(report(table))
    assert all(word in text for word in ("loss", "accuracy", "worst20", "gini", "interval"))


def test_the_code_of_the_docs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block.replace("rounds=20", "rounds=2"), {})
    assert "worst20" in capsys.readouterr().out


MEMORY = """
import sys
import jax, numpy as np
import equipoise as eq

def kilobytes(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

task = eq.tasks.softmax_regression(784, 10, batch=50)
algorithm = eq.algorithms.fedavg(task, eq.cohorts.everyone(100), steps=5, local_lr=0.1)

def run(data):
    return eq.simulate(algorithm, task.init(jax.random.key(0)), data, 0, rounds=2)

run(eq.data.federate(np.zeros((200, 784), np.uint8), np.arange(200) % 10, np.split(np.arange(200), 100), scale=1 / 255))
before = kilobytes("VmRSS")  # imports and a compiler that has run once
labels = np.arange(60_000) % 10
images = np.random.default_rng(0).integers(0, 256, (60_000, 784), np.uint8)
pool = eq.data.federate(images, labels, eq.data.partition.dirichlet(labels, 100, 0.1, 0).parts, scale=1 / 255)
assert np.isfinite(np.asarray(run(pool).server.x)).all()
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.thorough(witness="engines/test_stream.py::test_only_the_rows_of_the_cohort_are_read")
def test_a_run_over_fashion_mnist_sized_data_takes_less_than_twice_the_float32s():
    """The growth of the peak resident set over an empty run, the images that the pool was made from included."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 <= 2 * 60_000 * 784 * 4


def test_ten_thousand_clients_of_a_few_samples():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 60_000)
    images = (rng.integers(0, 100, (60_000, 32)) + 100 * (labels[:, None] == np.arange(32) % 10)).astype(np.uint8)
    parts = eq.data.partition.quantity(labels, 10_000, 3.0, 0, min_size=2).parts
    pool = eq.data.federate(images, labels, parts, scale=1 / 255)
    task = eq.tasks.softmax_regression(32, 10)
    algorithm = eq.algorithms.fedavg(task, eq.cohorts.uniform(10_000, 50), steps=5, local_lr=0.5)
    result = eq.simulate(algorithm, task.init(KEY), pool, 0, rounds=20)
    table = evaluate(task, algorithm.model(result.server), pool)
    assert result.tally.answered.tolist() == [20 * 50]
    assert table.sizes.sum() == 60_000
    assert np.average(table.scores["accuracy"], weights=table.sizes) > 0.5  # a tenth would be chance
