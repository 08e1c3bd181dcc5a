"""Pages that the site makes of the code itself, per example and per public module, and the mathematics, typeset.

Formulas ($...$) become MathML while the site is built, so that no script and no font is fetched to show them. A public
name without a docstring and a formula that cannot be read are warnings, and with `strict` a warning ends the build.
"""

import html
import importlib
import inspect
import logging
import re
from pathlib import Path

from latex2mathml.converter import convert
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


def on_page_markdown(markdown, page, config, files):
    """Below the mathematics of an algorithm: what it asks of a federation, and the text of its file."""
    folder, _, name = page.file.src_uri.rpartition("/")
    return markdown + _algorithm(_algorithms()[name.removesuffix(".md")]) if folder == "mathematics" else markdown


def _algorithm(record):
    from equipoise.algorithms.overview import details, entry

    factory = getattr(record.factory, "func", record.factory)
    module = importlib.import_module(factory.__module__)
    rows = "\n".join(f"| {what} | {_cell(text)} |" for what, text in details(entry(record), record) if text)
    source = f"`src/{factory.__module__.replace('.', '/')}.py`"
    return (
        f"\n## What it asks of a federation\n\n| about it | as the code says |\n|---|---|\n{rows}\n\n"
        "d: numbers of a model; n: clients.\n"
        f"\n## In the code\n\n{source} has the rounds, line by line, below this text:\n\n"
        f"```text\n{inspect.getdoc(module)}\n```\n"
    )


def on_page_content(content, page, config, files):
    """Formulas as MathML."""
    return FORMULA.sub(lambda found: _typeset(html.unescape(found[2]), page), content)


FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def _typeset(formula, page):
    """The formula between its delimiters, \\( \\) in a line or \\[ \\] on its own."""
    latex, block = formula.strip()[2:-2].strip(), formula.strip().startswith("\\[")
    try:
        found = convert(latex, display="block" if block else "inline")
        left = re.search(r">[^<]*(\\|&(?!#x)|&#x00026;|&#x0005C;)|<mo />", found)  # a command that it does not know
        problem = left and "holds what is not known"
    except Exception as error:  # whatever stops it, the build says where
        found, problem = html.escape(latex), repr(error)
    if problem:
        log.warning(f"{page.file.src_uri}: the formula {latex!r} cannot be read: {problem}")
    return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{found}</div>' if block else found


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
    names = getattr(module, "__all__", None) or [
        name for name in (*vars(module), *getattr(module, "MADE_OF_NETWORKS", ())) if not name.startswith("_")
    ]
    found = {name: getattr(module, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("equipoise")
        and (package or value.__module__ == module.__name__)
    }
