"""Code of the user's own, named in a configuration as "module:name"."""

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

from equipoise.errors import InputError, require


def is_reference(name: object) -> bool:
    """Whether a name is of the user's own code and not of a list in Equipoise."""
    return isinstance(name, str) and ":" in name


def load(reference: str) -> Any:
    """What "module:name" names; modules are sought where Python seeks them, then in the current folder."""
    module, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise InputError(f"'{reference}' names no code; give module:name, as in my_methods:my_algorithm")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever the user's own code raises
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        remedy = f"run from the folder that holds {module.split('.')[0]}.py, or install it"
        raise InputError(f"'{reference}' cannot be imported ({why}); {remedy}") from error
    where, named = getattr(imported, "__file__", "built in"), getattr(imported, name, None)
    absent = f"'{reference}' is not there: the module {module} ({where}) defines no '{name}'; correct the name"
    require(hasattr(imported, name), absent)
    require(callable(named), f"'{reference}' is not a function; name one that makes what is asked for")
    return named


def digest(reference: str) -> str:
    """Of the file that holds it, once it is loaded; empty where there is none."""
    file = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:8] if file else ""
