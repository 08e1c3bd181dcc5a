"""The command `equipoise`, and `python -m equipoise`."""

import os
import signal
import sys
import warnings
from types import FrameType


def main() -> None:
    """Ctrl-C while libraries are loaded, which takes a second, ends at once and without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if any(action == "error" for action, *_ in warnings.filters):  # PYTHONWARNINGS=error
        # Libraries warn of each other; a command that ended there would help nobody.
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
    from equipoise.cli import app

    app(prog_name="equipoise")


def _stop(number: int, frame: FrameType | None) -> None:
    if not _loading(frame):
        raise KeyboardInterrupt
    sys.stderr.write("stopped\n")
    sys.stderr.flush()
    os._exit(130)  # an exception would end in whatever library is being loaded, and some make another one of it


def _loading(frame: FrameType | None) -> bool:
    """Whether `main` is importing something."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()
