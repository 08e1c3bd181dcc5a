"""Without Flower there is nothing to test here."""

import importlib.util

import pytest

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.hookimpl
def pytest_report_header():
    if importlib.util.find_spec("flwr") is None:
        return "tests/deploy: left out, Flower is not installed (pip install 'equipoise[flower]')"
    return None
