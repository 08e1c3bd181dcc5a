"""Pages that the site makes of the code itself: one per algorithm, per example and per public module.

A public name without a docstring is a warning, and with `strict` a warning ends the build.
"""

import importlib
import inspect
import logging
import re
from pathlib import Path

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.plugins.equipoise")
ROOT = Path(__file__).parents[1]
MODULES = (
    "equipoise",
    "equipoise.data",
    "equipoise.data.partition",
    "equipoise.data.silos",
    "equipoise.data.synthetic",
    "equipoise.tasks",
    "equipoise.models",
    "equipoise.objectives",
    "equipoise.cohorts",
    "equipoise.steps",
    "equipoise.algorithms",
    "equipoise.certificates",
    "equipoise.kernel",
    "equipoise.evaluation",
    "equipoise.fairness",
    "equipoise.artifact",
    "equipoise.experiment",
    "equipoise.experiment.records",
    "equipoise.report.html",
    "equipoise.report.tables",
    "equipoise.protocol",
    "equipoise.deploy.flower",
    "equipoise.errors",
)


def on_config(config):
    """The navigation, with the pages that are made; a guide that is not written yet is left out."""
    config.nav = [_without_missing(entry, Path(config.docs_dir)) for entry in config.nav]
    pages = {
        "Mathematics": [{name: f"mathematics/{name}.md"} for name in _algorithms()],
        "Examples": [{_title(path): f"examples/{path.stem}.md"} for path in _examples()],
        "API": [{name: _api_page(name)} for name in MODULES],
    }
    for entry in config.nav:
        for title, children in entry.items():
            if title in pages:
                children.extend(pages[title])
    return config


def on_files(files, config):
    """The pages themselves."""
    for name, record in _algorithms().items():
        files.append(File.generated(config, f"mathematics/{name}.md", content=_algorithm(name, record)))
    for path in _examples():
        files.append(File.generated(config, f"examples/{path.stem}.md", content=_example(path)))
    for name in MODULES:
        files.append(File.generated(config, _api_page(name), content=_api(name)))
    return files


def _without_missing(entry, folder):
    ((title, value),) = entry.items()
    if not isinstance(value, list):
        return entry
    return {title: [child for child in value if (folder / _target(child)).exists()]}


def _target(child):
    return child if isinstance(child, str) else next(iter(child.values()))


def _algorithms():
    from equipoise.algorithms import ALGORITHMS

    return ALGORITHMS


def _algorithm(name, record):
    """The docstring of its file, which is in the letters of its paper, and what it asks of a federation."""
    from equipoise.algorithms.overview import details, entry

    factory = getattr(record.factory, "func", record.factory)
    module = importlib.import_module(factory.__module__)
    rows = "\n".join(f"| {what} | {_cell(text)} |" for what, text in details(entry(record), record) if text)
    source = f"`src/{factory.__module__.replace('.', '/')}.py` is this text and the rounds, line by line."
    text = inspect.getdoc(module)
    return f"# {name}\n\n{text}\n\n| | |\n|---|---|\n{rows}\n\nd: numbers of a model; n: clients. {source}\n"


def _cell(text):
    return text.replace("|", "\\|")


def _examples():
    return sorted((ROOT / "examples").glob("*.py"))


def _title(path):
    return re.search(r"^# # (.+)$", path.read_text(), re.MULTILINE)[1]


def _example(path):
    """A script in cells (`# %%`) as a page: text cells as text, the others as code."""
    parts = re.split(r"^# %%(.*)\n", path.read_text(), flags=re.MULTILINE)[1:]
    out = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if "[markdown]" in kind:
            out.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            out.append(f"```python\n{body.strip()}\n```")
    where = f"`python examples/{path.name}` runs this page; editors that know `# %%` open it as a notebook."
    return "\n\n".join([*out, f"---\n{where}", ""])


def _api_page(name):
    return f"api/{name.removeprefix('equipoise').lstrip('.').replace('.', '-') or 'equipoise'}.md"


def _api(name):
    module = _module(name)
    about = inspect.getdoc(module) or ""
    if not about:
        log.warning(f"the module {name} has no docstring")
    heading = name.replace("equipoise", "eq", 1)
    out = [f"# {name}", about]
    for public, value in public_names(module).items():
        if not (inspect.getdoc(value) or "").strip():
            log.warning(f"{name}.{public} is public and has no docstring")
        path = f"{value.__module__}.{value.__qualname__}"
        out.append(f"::: {path}\n    options:\n      heading: {heading}.{public}\n")
    return "\n\n".join(out)


def _module(name):
    """Also where it is reached through a name of its package, as `equipoise.fairness`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package, _, last = name.rpartition(".")
        return getattr(importlib.import_module(package), last)


def public_names(module):
    """Functions and classes that a user may take from here; records and constants are shown by those that use them."""
    package = hasattr(module, "__path__") or module.__name__ == "equipoise.deploy.flower"
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("equipoise")
        and (package or value.__module__ == module.__name__)
    }
