"""Run folders to report on; and a browser, where there is one."""

import shutil
import subprocess

import pytest

from tests.report import folders

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def five(tmp_path_factory):
    """Five methods, one of them with broken replies, and a run that was stopped."""
    root = tmp_path_factory.mktemp("five")
    stopped = folders.write(root, "stopped", algorithm="scaffpd_secure", finished=False, seed=9)
    return [*folders.several(root), stopped]


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    return [folders.write(tmp_path_factory.mktemp("alone"), n=2)]


@pytest.fixture(scope="session")
def regression(tmp_path_factory):
    """RMSE, where less is better; client 3 has no score."""
    plain = ("FedAvg", {"algorithm": "fedavg", "end": (4.2, 1.2), "weighted": False, "exchanges": 1})
    fair = ("SCAFF-PD", {"end": (4.3, 0.6)})
    root = tmp_path_factory.mktemp("regression")
    return folders.several(root, n=15, task="regression", missing=(3,), methods=(plain, fair))


@pytest.fixture(scope="session")
def thousand(tmp_path_factory):
    return folders.several(tmp_path_factory.mktemp("thousand"), n=1000, rows=12)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """`browser(page, *flags)`: the page as the browser sees it, after its scripts ran."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium here to open the page with")

    def dom(page, *flags):
        profile = tmp_path_factory.mktemp("profile")
        path = profile / "page.html"
        path.write_text(page, "utf-8")
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return dom
