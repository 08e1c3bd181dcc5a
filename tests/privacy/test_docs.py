"""docs/privacy.md and docs/personal.md name tests that exist, and settings that do."""

import ast
import re
import tomllib
from pathlib import Path

from equipoise.experiment import config
from equipoise.privacy.policy import Policy

ROOT = Path(__file__).parents[2]
PRIVACY, PERSONAL = ((ROOT / "docs" / name).read_text() for name in ("privacy.md", "personal.md"))


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    """By name and by file, in every row of every table; there is no promise without a test."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    known = {name for path in files for name in functions_of(path)}
    named = set(re.findall(r"`(test_\w+)`", PRIVACY + PERSONAL))
    assert len(named) > 25
    assert sorted(named - known) == []
    paths = set(re.findall(r"`(tests/[\w/]+\.py)`", PRIVACY + PERSONAL))
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    short = set(re.findall(r"`(test_\w+\.py)`", PRIVACY + PERSONAL))
    assert [name for name in short if not any(path.name == name for path in files)] == []


def test_every_threat_has_a_test():
    rows = [line.strip("| ").split(" | ") for line in PRIVACY.splitlines() if line.startswith("|")]
    tables = [k for k, row in enumerate(rows) if row[0] == "threat"]
    assert len(tables) >= 4
    for start in tables:
        for row in rows[start + 2 :]:
            if len(row) != len(rows[start]) or row[0] == "threat" or set(row[0]) <= set("-:"):
                break
            assert "test" in row[-1], row[0]


def test_the_settings():
    blocks = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PRIVACY + PERSONAL, re.DOTALL)]
    assert len(blocks) == 3
    site, private, own = blocks
    Policy.model_validate(site)
    method = {"name": "fedavg", "local_lr": 0.1}
    assert config.parse({**private, "algorithm": method}).privacy.epsilon == private["privacy"]["epsilon"]
    assert config.parse({**own, "algorithm": method}).personal == config.PersonalSettings()
