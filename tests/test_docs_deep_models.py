"""What docs/deep_models.md says is planned, not believed."""

import re
import shlex
import tomllib
from pathlib import Path

from equipoise.experiment import config, library, plan
from equipoise.experiment.config import ConvexifySettings

DOC = (Path(__file__).parents[1] / "docs" / "deep_models.md").read_text()
BLOCKS = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)]


def test_the_files_can_be_planned():
    convexified, steps = BLOCKS
    jobs = {job.label: job.config for job in plan.compare(convexified)}
    assert jobs["FedAvg"].convexify == jobs["SCAFF-PD"].convexify
    assert jobs["SCAFF-PD"].convexify.features == ConvexifySettings().features
    assert jobs["FedAvg, direct"].convexify is None
    parsed = config.parse(steps).algorithm
    assert (parsed.optimizer.name, parsed.server_optimizer.learning_rate, parsed.schedule) == ("adam", 0.9, "cosine")


def test_every_setting_is_named():
    for name in (*ConvexifySettings.model_fields, "keep_best", "patience", "validation"):
        assert re.search(rf"\b{name}\b", DOC), name


def test_the_small_size_is_one():
    (command,) = re.findall(r"    equipoise reproduce (tct-fashion --set.*?)\n\n", DOC, re.DOTALL)
    name, *words = shlex.split(command.replace("\\\n", " "))
    assignments = [word for word in words if word != "--set"]
    assert assignments
    study = plan.sweep(library.settings(name, assignments), source=name)
    assert all(job.config.run.rounds == 2 and job.config.partition.clients == 4 for job in study.trials)
