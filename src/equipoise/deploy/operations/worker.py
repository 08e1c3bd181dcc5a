"""The process of one or more warm sites: `python -m equipoise.deploy.operations.worker`.

Its first line of standard input says which, as JSON (`Work`); it ends within a second when the input is closed, or on
SIGTERM. `equipoise flower site` and `local` start it, and start it again when it crashes.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from equipoise._jax import keep_programs
from equipoise.deploy.operations.processes import REFUSED
from equipoise.deploy.status import JsonLines
from equipoise.errors import EquipoiseError
from equipoise.experiment.records import JsonRecord


class SiteWork(JsonRecord):
    """One site."""

    name: str
    folder: str
    config: dict[str, str]  # the node's: where its rows are
    key: str | None  # its private key; None: no authentication


class Work(JsonRecord):
    """What a worker does."""

    server: str  # HOST:PORT
    certificates: str | None  # None: no encryption
    compiled: str  # a folder for compiled programs
    sites: tuple[SiteWork, ...]


def main() -> int:
    """Runs until told to end; the exit code."""
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    work = Work.model_validate_json(sys.stdin.readline())

    def watch_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_parent, daemon=True).start()
    logger = logging.getLogger("equipoise.flower")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    console = logging.StreamHandler()
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(console)
    try:
        keep_programs(Path(work.compiled))
        Path(work.sites[0].folder).mkdir(parents=True, exist_ok=True)
        logger.addHandler(JsonLines(Path(work.sites[0].folder) / "log.jsonl"))
        from equipoise.deploy import entry_points  # noqa: F401 - JAX and all that a message needs, before it comes
        from equipoise.deploy.network import warm

        sites = [
            warm.WarmSite(
                work.server,
                Path(site.folder),
                site.config,
                certificates=None if work.certificates is None else Path(work.certificates),
                key=None if site.key is None else Path(site.key),
                stop=stop,
            )
            for site in work.sites
        ]
        names = ", ".join(site.name for site in sites)
        logger.info("%s: one process that stays (warm), pid %d", names, os.getpid())
        warm.run_sites(sites, stop)
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except BaseException:
        logger.exception("the process ends because of an error")
        return 1
    return 0


def line(work: Work) -> bytes:
    """What a worker reads first."""
    return (json.dumps(work.model_dump(mode="json")) + "\n").encode()


def _ended(code: int) -> Any:
    logging.shutdown()
    os._exit(code)  # threads may be in the middle of work that nobody waits for


if __name__ == "__main__":
    _ended(main())
