"""How commands speak: what a user typed is text, never markup; what goes wrong is one line."""

import errno
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from equipoise.errors import EquipoiseError, printable
from equipoise.files import reason

NO_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)


class Command(TyperCommand):
    """A command whose help is text: some versions of typer escape its brackets for markup that is not there."""

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("\\[", "[")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments with what their declaration says of them, which not every pair of typer and click hands on."""
        declared = inspect.signature(self.callback).parameters if self.callback else {}
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            name, text = param.get_help_record(ctx) or (None, "")
            if name is None:
                continue
            if param.param_type_name == "argument":
                notes = getattr(declared[str(param.name)].annotation, "__metadata__", ())
                said = next((note.help for note in notes if getattr(note, "help", None)), "")
                text = text if said in text else f"{said}  {text}".strip()
            rows["Arguments" if param.param_type_name == "argument" else "Options"].append((name, text))
        for title, options in rows.items():
            if options:
                with formatter.section(title):
                    formatter.write_dl(options)


class Commands(typer.Typer):
    """A group of such commands, whose errors are sentences."""

    def command(self, *arguments: Any, **options: Any) -> Any:
        register = super().command(*arguments, **{"cls": Command, **options})
        return lambda function: register(in_sentences()(function))


def show_any_letter() -> None:
    """From now on letters that the terminal does not have are escaped, wherever they come from."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: object, *, error: bool = False) -> None:
    """As it is: no markup, no colours, no folding; letters that the terminal does not have, or obeys, are escaped."""
    stream = sys.stderr if error else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    plain = printable(str(text), keep="\n\t").encode(encoding, "backslashreplace").decode(encoding)
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
    with console.status(Text(what), spinner="line" if console.options.ascii_only else "dots"):
        yield


@contextmanager
def in_sentences() -> Iterator[None]:
    """An error is one line instead of a traceback; Ctrl-C is no error."""
    try:
        yield
        sys.stdout.flush()  # or a full disk would be found when nobody listens any more
    except EquipoiseError as error:
        raise _told(str(error)) from None
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped", error=True)
        raise typer.Exit(130) from None
    except OSError as error:
        if error.errno in NO_PATHS and error.filename is not None:
            given = str(error.filename)
            shown = given if len(given) < 100 else f"{given[:60]}... ({len(given)} letters)"
            raise _told(f"{shown} cannot be a file or folder ({reason(error)}); give another name") from None
        if error.errno != errno.ENOSPC:
            raise
        with suppress(OSError, ValueError):  # what could not be written is not tried again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise _told(f"the output cannot be written ({reason(error)}); make room, or send it elsewhere") from None
    except (MemoryError, RuntimeError) as error:
        if (plain := _of_machine(error)) is None:
            raise
        raise _told(plain) from None


def _told(error: str) -> typer.Exit:
    say(f"error: {' '.join(error.split())}", error=True)
    return typer.Exit(2)


def _of_machine(error: Exception) -> str | None:
    """What the machine cannot do, as NumPy and JAX say it; None: a mistake of the program."""
    text = str(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return (
            f"the memory of this machine is not enough ({text.splitlines()[0] if text else 'no more is given'}); give "
            "smaller settings, or set run.clients_per_batch"
        )
    if "Unable to initialize backend" in text or "nknown backend" in text:
        given = os.environ.get("JAX_PLATFORMS", "")
        return f"JAX finds no device ({text.splitlines()[0]}); JAX_PLATFORMS is '{given}': unset it, or give 'cpu'"
    return None
