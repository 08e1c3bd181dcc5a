"""How commands speak: what a user typed is text, never markup; what goes wrong is one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from equipoise.errors import EquipoiseError


class Command(TyperCommand):
    """A command whose help is text: some versions of typer escape its brackets for markup that is not there."""

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("\\[", "[")


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, *arguments: Any, **options: Any) -> Any:
        return super().command(*arguments, **{"cls": Command, **options})


def say(text: Any, *, error: bool = False) -> None:
    """One line, as it is: no markup, no colours, no folding; letters that the terminal does not have are escaped."""
    stream = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    plain = str(text).encode(encoding, "backslashreplace").decode(encoding)
    Console(stderr=error).print(plain, markup=False, highlight=False, emoji=False, soft_wrap=True)


def sentence(text: str) -> None:
    """As `say`, folded between words at the width of the terminal."""
    Console().print(Text(text), soft_wrap=False)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Says what is being done while it takes its time; nothing where nobody watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(Text(what)):
        yield


@contextmanager
def in_sentences() -> Iterator[None]:
    """An error is one line instead of a traceback; Ctrl-C is no error."""
    try:
        yield
    except EquipoiseError as error:
        say(f"error: {' '.join(str(error).split())}", error=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped", error=True)
        raise typer.Exit(130) from None
