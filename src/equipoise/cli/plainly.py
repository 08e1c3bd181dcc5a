"""How commands speak when something goes wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from equipoise.errors import EquipoiseError


@contextmanager
def in_sentences() -> Iterator[None]:
    """An error is one line instead of a traceback; Ctrl-C is no error."""
    try:
        yield
    except EquipoiseError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        Console(stderr=True).print(str(stop) or "stopped", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
