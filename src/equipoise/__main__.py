"""The command `equipoise`, and `python -m equipoise`."""

import os
import signal
import sys


def main() -> None:
    """Ctrl-C while the libraries are loaded, which takes a second, ends at once and without a traceback."""
    before = signal.signal(signal.SIGINT, _stop)
    from equipoise.cli import app

    signal.signal(signal.SIGINT, before)
    app(prog_name="equipoise")


def _stop(*_: object) -> None:
    sys.stderr.write("stopped; nothing was begun\n")
    sys.stderr.flush()
    os._exit(130)  # an exception would end in whatever library is being loaded


if __name__ == "__main__":
    main()
