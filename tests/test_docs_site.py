"""The documentation site builds strictly and loads nothing from elsewhere; its own pages are run, not believed."""

import importlib
import inspect
import logging
import os
import posixpath
import re
import shlex
import subprocess
import sys
import types
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.bench.federations import Federation
from equipoise.cli import app
from equipoise.experiment import config, folders
from equipoise.experiment.methods import build_method
from equipoise.experiment.problems import build_problem
from tests.problems import start, unequal
from tests.searches import tiny

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXTENSIONS = ["toc", "tables", "pymdownx.superfences", "pymdownx.arithmatex"]
SETTINGS = {"pymdownx.arithmatex": {"generic": True}}  # as in mkdocs.yml
BUILT = "::test_every_page_has_what_links_lead_to_and_formulas_that_can_be_read"


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def site_pages():
    """docs/site_pages.py, which makes pages of the code and typesets formulas."""
    for package in ("mkdocs", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason="the extra [docs] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("site_pages")


def test_every_page_has_what_links_lead_to_and_formulas_that_can_be_read(site_pages, caplog):
    """Without building the site: its pages as HTML, their links to each other, their formulas and the API."""
    import markdown

    names = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    made = {site_pages._api_page(module) for module in site_pages.MODULES}
    made |= {f"examples/{path.stem}.md" for path in site_pages._examples()}
    pages = {}
    with caplog.at_level(logging.WARNING):
        for name in names:
            render = markdown.Markdown(extensions=EXTENSIONS, extension_configs=SETTINGS)
            page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=name))
            pages[name] = site_pages.on_page_content(render.convert((DOCS / name).read_text()), page, None, None)
        for module in site_pages.MODULES:
            site_pages._api(module)
    assert not caplog.text
    anchors = {name: set(re.findall(r'\bid="(.*?)"', page)) for name, page in pages.items()}
    for name, page in pages.items():
        for link in re.findall(r'href="(.*?)"', page):
            if link.startswith(("http", "mailto:")):
                continue
            place, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), place)) if place else name
            assert target in names | made or (DOCS / target).is_file(), f"{name} links {link}: no such page"
            assert not anchor or target in made or anchor in anchors[target], f"{name} links {link}: no such heading"


@pytest.fixture(scope="module")
def site(site_pages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.thorough(witness=BUILT)
def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:)?//", page.read_text())
        assert not loaded, page


@pytest.mark.thorough(witness=BUILT)
def test_every_algorithm_and_every_public_name_is_there(site):
    from equipoise.algorithms import ALGORITHMS
    from equipoise.objectives import DUALS

    assert {page.stem for page in (site / "mathematics").glob("*.html")} == set(ALGORITHMS)
    for name in ALGORITHMS:
        page = (site / "mathematics" / f"{name}.html").read_text()
        assert page.count('<div class="formula"') > 1, name
        assert "arithmatex" not in page
        assert "What it asks of a federation" in page
    known = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    for name in ("equipoise.engines.simulator.simulate", "equipoise.protocol.Exchange", "equipoise.artifact.predict"):
        assert f"\n{name} " in known
    page = (site / "api" / "objectives.html").read_text()
    assert all(f"eq.objectives.{name}" in page for name in DUALS)


def test_a_public_name_without_a_docstring_is_a_warning(site_pages, caplog, monkeypatch):
    def silent():
        pass

    silent.__module__ = module = "equipoise.imaginary"
    found = types.ModuleType(module, "A module.")
    found.silent = silent
    monkeypatch.setitem(sys.modules, module, found)
    with caplog.at_level(logging.WARNING):
        site_pages._api(module)
    assert "equipoise.imaginary.silent is public and has no docstring" in caplog.text


def test_the_letters_of_an_algorithm_are_called_so_in_its_code():
    """What the third column of a page's table names stands in the file of the algorithm, or in those of its server."""
    from equipoise.algorithms import ALGORITHMS

    for name, record in ALGORITHMS.items():
        text = (DOCS / "mathematics" / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        file = Path(inspect.getsourcefile(inspect.unwrap(getattr(record.factory, "func", record.factory))))
        code = file.read_text() + "".join(part.read_text() for part in (file.parent / "server_model").glob("*.py"))
        cells = [line.split("|")[-2] for line in text.splitlines() if line.startswith("| $")]
        assert cells, name
        for word in (word for cell in cells for spans in re.findall(r"`(.+?)`", cell) for word in spans.split(".")):
            assert word in code, (name, word)


def test_a_formula_that_cannot_be_read_is_a_warning(site_pages, caplog):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="somewhere.md"))
    content = r'<p><span class="arithmatex">\(%s\)</span></p>'
    assert "<msub><mi>" in site_pages.on_page_content(content % r"\lambda_i &lt; 1", page, None, None)
    assert not caplog.text
    for wrong in (r"\nosuchcommand x", r"x_1_2", r"a &amp; b"):
        caplog.clear()
        site_pages.on_page_content(content % wrong, page, None, None)
        assert "somewhere.md: the formula" in caplog.text, wrong


@pytest.mark.thorough(witness="test_docs_commands.py::test_the_commands_of_a_page_run_one_after_the_other[README.md]")
def test_the_first_five_minutes(tmp_path, monkeypatch):
    """From an empty folder, with the stand-in for the engine of `tests/searches`."""
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    steps = re.findall(r"```(sh|python)\n(.*?)```", (DOCS / "start.md").read_text(), re.DOTALL)
    assert {kind for kind, _ in steps} == {"sh", "python"}
    for kind, text in steps:
        if kind == "python":
            exec(compile(text, "start.md", "exec"), {})
            continue
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "equipoise"
            more = ["--set", "run.rounds=2"] if words[1:2] in (["compare"], ["run"], ["path"]) else []
            done = CliRunner().invoke(app, [*words[1:], *more])
            assert done.exit_code == 0, (line, done.output)
    assert (tmp_path / "runs/clinics/model.safetensors").is_file()
    assert (tmp_path / "runs/clinics-compare/report.html").is_file()
    assert (tmp_path / "runs/clinics-path/report.html").is_file()


def test_an_algorithm_a_dual_and_an_engine_of_ones_own(capsys):
    algorithm, dual, engine, *_, model = blocks("extending.md", "python")
    names: dict = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(algorithm, "extending.md", "exec"), names)
    assert np.isfinite(names["result"].server.x).all()
    exec(compile(dual, "extending.md", "exec"), names)
    psi, same = names["pull_to_equal"](5, 0.4), eq.objectives.chi2(5, 0.4 / 5)
    losses = jnp.asarray([0.1, 0.5, 0.2, 0.9, 0.3])
    np.testing.assert_allclose(psi.value(losses), same.value(losses), atol=1e-12)
    np.testing.assert_allclose(psi.prox(losses, 0.7), same.prox(losses, 0.7), atol=1e-12)
    exec(compile(engine, "extending.md", "exec"), names)
    task = eq.tasks.ridge(4, 0.1)
    fedavg = eq.algorithms.fedavg(task, eq.cohorts.everyone(5), steps=5, local_lr=0.02)
    state = names["until_still"](fedavg, start(), unequal(), 0, least=1e-3)
    assert 1 < int(state.round) < 500
    moved = eq.kernel.step(fedavg, state, eq.kernel.prepare(fedavg, unequal()), jax.random.key(0))
    assert float(jnp.linalg.norm(moved.server.x - state.server.x)) <= 1e-3
    exec(compile(model, "extending.md", "exec"), names)
    of = Federation("f", ("no", "yes"), ("a", "b"), (np.zeros((3, 1)),) * 2, (np.array([0, 1, 1]), np.array([0, 0, 1])))
    np.testing.assert_allclose(names["pooled_mean"](of)(1, np.zeros((4, 1))), 0.5)


def test_the_smallest_algorithm_is_one_file_and_one_line(tmp_path, monkeypatch):
    text = blocks("extending.md", "python")[3]
    assert len(text.splitlines()) <= 35
    (tmp_path / "signs.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"data": {"name": "synthetic", "options": {"dim": 4, "samples": 10}}, "partition": {"clients": 3}}
    told = config.parse({**settings, "algorithm": {"name": "signs:signs", "lr": 0.01}})
    problem = build_problem(told)
    algorithm = build_method(told, problem).algorithm
    result = eq.simulate(algorithm, problem.x, problem.train, 0, rounds=2)
    assert algorithm.name == "signs"
    np.testing.assert_allclose(np.abs(result.model), 0.02, rtol=1e-6)


@pytest.mark.thorough(witness="test_readme.py::test_the_code_runs")
def test_ten_short_programs(tmp_path, monkeypatch):
    """Of docs/extending.md, one after the other, and what they leave behind."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for program in blocks("extending.md", "python")[4:-1]:
            assert len(program.splitlines()) <= 20
            exec(compile(program, "extending.md", "exec"), names)
    assert names["tree"].keys() == {"w", "b"}
    assert names["by_halves"].tally.asked.tolist() == [9]
    np.testing.assert_allclose(names["weights"], 1 / 6, rtol=1e-6)
    assert names["history"].shape == (5, 6)
    assert names["early"].rounds < 100
    assert names["early"].rounds % 2 == 0
    assert len(names["results"]) == 6
    assert names["scores"]["loss"].shape == (2,)
    assert names["turns"].tally.asked.tolist() == [6, 6]
    assert jax.tree.all(jax.tree.map(np.array_equal, names["same"], names["tree"]))
    assert np.isfinite(names["mean_model"]).all()
    for name in ("warm", "with_adam", "clipped"):
        assert np.isfinite(names[name].model).all()
    np.testing.assert_array_equal(names["again"].model, names["longer"].model)


def test_every_algorithm_and_objective_of_the_decision_table_exists():
    text = (DOCS / "choosing.md").read_text()
    from equipoise.algorithms import ALGORITHMS
    from equipoise.algorithms.overview import entry

    known = {*ALGORITHMS, *eq.objectives.DUALS, "average"}
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "`" in line]
    named = {word for row in rows for word in re.findall(r"`([a-z_0-9]+)`", "|".join(row[1:4]))}
    assert {name for name in named if name not in known} <= {"cohort", "compare", "path"}
    for row in rows:  # what crosses is what the algorithms' own functions say
        found = re.search(r"^ (\S+(?: \+ \d+)?) down, (\S+(?: \+ \d+)?) up", row[4])
        methods = re.findall(r"`([a-z_0-9]+)`", row[3])
        if found and methods and methods[0] in ALGORITHMS:
            summary = entry(ALGORITHMS[methods[0]])
            assert (summary.down, summary.up) == found.groups(), methods[0]


def test_every_name_of_the_library_that_is_documented_exists():
    """eq.simulate, equipoise.deploy.flower ...; what needs an extra that is not installed is looked for as a file."""
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for found in re.finditer(r"(?<![\w./])(?:eq|equipoise)((?:\.[A-Za-z_]\w*)+)(?!\.?\w)", path.read_text()):
            if found[1] != ".json":  # the marker of run folders
                assert documented(found[1].split(".")[1:]), f"{path.name} names {found[0]}, which does not exist"


def documented(parts):
    place, owner = "equipoise", eq
    for part in parts:
        place = f"{place}.{part}"
        if hasattr(owner, part):
            owner = getattr(owner, part)
            continue
        try:
            owner = importlib.import_module(place)
        except ModuleNotFoundError as error:
            return error.name is not None and not error.name.startswith("equipoise")  # an extra's own
    return True


def test_what_overwrite_deletes_is_listed():
    text = (DOCS / "experiments.md").read_text()
    for name in (*folders.MADE["run"], *folders.MADE["plan"], f"{folders.BOARD}/{folders.EVENTS}"):
        assert f"`{name}`" in text, f"docs/experiments.md does not say that --overwrite deletes {name}"
