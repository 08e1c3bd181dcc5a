import csv
import html as escaping
import io
import json
import math
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.experiment import records
from equipoise.report import bars, html, numbers, wording
from tests.report import folders

NASTY = "<script>alert(1)</script>\"'&</script><!--]]>"
OFF = '<meta http-equiv="Content-Security-Policy" content="script-src \'none\'">'


@pytest.fixture(scope="module")
def page(five):
    return html.page(five)


def drawings(page):
    """The outer SVGs, parsed: a drawing that is not well-formed fails here."""
    text = re.sub(r"<(script|style)>.*?</\1>|<!DOCTYPE html>", "", page, flags=re.DOTALL)
    return [e for e in ElementTree.fromstring(text).iter("svg") if "chart" in (e.get("class") or "")]


def plain_text(page):
    body = re.sub(r"<(script|style|title)[ >].*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", escaping.unescape(re.sub(r"<[^>]+>", " ", body)))


def test_it_stands_on_its_own(page):
    assert not re.findall(r"https?:|//[a-z]+\.|@import|url\(|src=|<link", page)


def test_the_page_is_well_formed_and_named(page):
    found = drawings(page)
    assert len(found) > 15
    assert all(d.get("role") == "img" and d.find("title").text for d in found)


def test_the_numbers_are_those_of_the_records(page, five):
    text = plain_text(page)
    for run in five[:-1]:
        for key in ("mean", "worst20", "best20", "min"):
            assert f"{100 * run.outcome.summary[key]:.1f}%" in text
        assert f"{100 * run.outcome.worst_low:.1f}–{100 * run.outcome.worst_high:.1f}%" in text
        for value, low, high in zip(run.rows[-1].scores["accuracy"], run.outcome.low, run.outcome.high, strict=True):
            assert f"{100 * value:.1f}% ({100 * low:.1f}–{100 * high:.1f}%)" in text
    cost = wording.cost_of_fairness(numbers.reported(five))
    assert cost.sentence in text
    assert all(remark in text for remark in cost.remarks)


def test_how_to_do_it_again(page, five):
    for run in five:
        assert (run.path / records.CONFIG).read_text() in escaping.unescape(page)
        assert f"equipoise run {run.path / records.CONFIG}" in page
    assert "4f2a9c1+" in page
    assert "2 × cpu" in page


def test_what_went_wrong_is_said(page):
    text = plain_text(page)
    assert "3 replies were not finite" in text
    assert "It is not finished: its last record is of round 40 of 100." in text
    assert "What went wrong (2)" in text


def test_the_top_compares(five, tmp_path):
    """The leading run with the best one for the average; if it is that one, with the best fair one."""
    plain = folders.write(tmp_path, "Plain", algorithm="fedavg", end=(0.9, 0.01), weighted=False)
    for runs, other in ((five, five[2]), ([five[1], plain], five[1])):
        top = plain_text(html.page(runs).split("<nav")[0])
        assert f"{other.outcome.label}: {100 * other.outcome.summary['worst20']:.1f}%" in top


def test_nothing_went_wrong(alone):
    assert "Nothing was reported: every run is finished" in html.page(alone)


def test_every_curve_against_both_axes(page):
    names = [d.find("title").text for d in drawings(page)]
    for what in ("Average client", "Worst-served fifth", "Robust objective", "Gap", "Squared distance"):
        for against in ("rounds of communication", "bytes sent"):
            assert any(name.startswith(what) and against in name for name in names)


def test_the_same_folders_give_the_same_bytes(five, page):
    assert html.page([records.read(run.path) for run in five]) == page


def test_written_whole(five, tmp_path, page):
    path = html.write(five, tmp_path / "page.html")
    assert path.read_text("utf-8") == page
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_title_of_ones_own(alone):
    assert "<h1>Mine &amp; yours</h1>" in html.page(alone, title="Mine & yours")
    assert "<h1>One model for 2 clients</h1>" in html.page(alone)


def test_other_clients_get_a_part_of_their_own(five, regression):
    page = html.page([five[0], regression[0], five[1]])
    assert page.count("<article") == 2
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert all(f'id="{target}"' in page for target in re.findall(r'href="#([^"]+)"', page))


def test_a_thousand_clients_do_not_make_a_million_nodes(thousand):
    page = html.page(thousand)
    assert len(page) < 1_000_000
    assert page.count("<") < 12_000
    text = plain_text(page)
    assert "each step is the mean of 3 neighbours" in text
    assert "The 8 heaviest of 1,000 have a line, the others lie in the band." in text
    assert "The 50 clients of 1,000 that SCAFF-PD serves worst" in text
    drawings(page)


def test_twenty_runs(tmp_path):
    runs = [folders.write(tmp_path, f"run {k}", seed=k, end=(0.6 + k / 100, 0.05), n=30) for k in range(20)]
    page = html.page(runs)
    assert len(page) < 2_000_000
    assert "The weights of 16 more runs" in page
    drawings(page)


def test_names_are_only_names(tmp_path):
    run = folders.write(tmp_path, NASTY, n=3, names=[NASTY, "b\x00\x1b", "c"], events=[NASTY])
    (run.path / records.CONFIG).write_text(f'name = "{NASTY}"')
    texts = {"what": NASTY, "classes": (NASTY, NASTY), "notes": (NASTY,), "exchanges": (NASTY,)}
    federation = run.federation.model_copy(update=texts)
    environment = run.environment.model_copy(update={"git": NASTY, "device": NASTY, "equipoise": NASTY})
    other = folders.write(tmp_path, f"{NASTY} b", n=2)
    page = html.page([run._replace(federation=federation, environment=environment), other], title=NASTY)
    assert "<script>alert" not in page
    assert page.count("<script") == 3  # the data of both parts, and the page's own
    page.encode("utf-8")
    drawings(page)
    data = json.loads(re.search(r'class="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["names"][data["clients"].index(0)] == NASTY


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    return [
        folders.write(root, "FedAvg", n=3, algorithm="fedavg", weighted=False, rows=4),
        folders.write(root, "SCAFF-PD", n=3, rows=4),
    ]


NUMBER = st.none() | st.floats(allow_nan=False, allow_infinity=False)
EACH = st.tuples(NUMBER, NUMBER, NUMBER)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_numbers_the_page_stands(small, data):
    """Whatever was not finite, missing or absurd, there is a well-formed page."""
    runs = []
    for run in small:
        rows = [
            row.model_copy(
                update={
                    "scores": {"accuracy": data.draw(EACH)},
                    "lam": data.draw(st.none() | EACH),
                    "objective": data.draw(NUMBER),
                    "gap": data.draw(NUMBER),
                }
            )
            for row in run.rows[: data.draw(st.integers(0, 4))]
        ]
        outcome = run.outcome.model_copy(
            update={
                "summary": dict.fromkeys(run.outcome.summary, data.draw(NUMBER)),
                "low": data.draw(EACH),
                "high": data.draw(EACH),
                "worst_low": data.draw(NUMBER),
                "measure": "accuracy" if (accuracy := data.draw(st.booleans())) else "loss",
                "higher_is_better": accuracy,
            }
        )
        runs.append(run._replace(rows=rows, outcome=data.draw(st.sampled_from([None, outcome]))))
    drawings(html.page(runs))


USE = """
<script>
  const part = document.querySelector("article"), select = part.querySelector("select");
  const chart = [...part.querySelectorAll("svg.chart")].find((svg) => svg.querySelector(".mark title"));
  const box = chart.querySelector(".mark path").getBoundingClientRect();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  document.documentElement.dataset.tip = document.querySelector(".tip").textContent;
  part.querySelector(".legend:not(.paper) li").click();
  part.querySelectorAll("table.sortable thead button")[1].click();
  select.value = "3";
  select.dispatchEvent(new Event("change"));
</script>
"""


def test_a_browser_runs_the_scripts(browser, page, five):
    """Every interaction once: a hint, a run picked out, a table sorted, a client picked out."""
    seen = browser(page.replace("</body>", USE + "</body>"))
    root = re.search(r"<html[^>]*>", seen)[0]
    assert 'data-ready="yes"' in root
    assert "data-error" not in root
    assert re.search(r'data-tip="hospital \d+: [0-9.]+% with', root)
    assert '<article id="p0" class="only choosing">' in seen
    assert 'aria-pressed="true"' in seen
    table = re.search(r'<table class="sortable"[^>]*>.*?</table>', seen, re.DOTALL)[0]
    of_rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table.split("<tbody>")[1], re.DOTALL)
    order = [float(re.search(r'<td data-value="([^"]+)"', row)[1]) for row in of_rows]
    assert len(order) == len(five)
    assert order == sorted(order, reverse=True)
    shown = re.search(r'<table class="one">.*?</table>', seen, re.DOTALL)[0]
    for run in five:
        assert f"{100 * run.rows[-1].scores['accuracy'][3]:.1f}%" in shown
    assert len(re.findall('class="row chosen"', seen)) == 8  # a row in six bar charts, across the runs, and of gains


def test_a_browser_without_scripts_shows_everything(browser, page):
    seen = browser(page.replace("<head>", "<head>" + OFF))
    assert "data-ready" not in seen
    assert re.search(r'<div class="chooser" hidden="">', seen)  # nothing that would not work
    assert plain_text(seen) == plain_text(page.replace("<head>", "<head>" + OFF))


@pytest.mark.parametrize("which", ["alone", "regression", "thousand"])
def test_a_browser_opens_every_kind(browser, which, request):
    seen = browser(html.page(request.getfixturevalue(which)))
    root = re.search(r"<html[^>]*>", seen)[0]
    assert 'data-ready="yes"' in root
    assert "data-error" not in root


WIDTHS = """
<script>
  document.documentElement.dataset.wide = String(document.documentElement.scrollWidth - window.innerWidth);
  document.documentElement.dataset.paper = getComputedStyle(document.body).backgroundColor;
</script>
"""


def test_on_a_phone_nothing_sticks_out_and_the_dark_is_dark(browser, page):
    flags = ("--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    root = re.search(r"<html[^>]*>", browser(page.replace("</body>", WIDTHS + "</body>"), *flags))[0]
    assert int(re.search(r'data-wide="(-?\d+)"', root)[1]) <= 0
    assert 'data-paper="rgb(21, 23, 27)"' in root


def with_alone(runs, values=None):
    """The runs, with what clients get alone: by default four points less than with the first run."""
    for run in runs:
        mine = runs[0].rows[-1].scores["accuracy"] if values is None else values
        mine = tuple(v - 0.04 for v in mine) if values is None else mine
        alone = records.AloneRecord(measure="accuracy", scores={"accuracy": mine}, low=mine, high=mine)
        records.write_record(run.path / records.ALONE, alone)
    return runs


def test_who_gains_by_joining(tmp_path):
    plain = folders.write(tmp_path, "FedAvg", n=4, algorithm="fedavg", weighted=False, end=(0.8, 0.1))
    fair = folders.write(tmp_path, "SCAFF-PD", n=4, end=(0.79, 0.05), seed=1)
    scores = fair.rows[-1].scores["accuracy"]
    alone = (scores[0] - 0.05, scores[1] - 0.15, scores[2] + 0.02, scores[3])
    page = html.page(with_alone([plain, fair], alone))
    text = plain_text(page)
    assert "2 of 4 clients gain by SCAFF-PD (hospital 2 most: 15.0 points), and hospital 3 loses (2.0 points)." in text
    assert re.search(r"each alone\s+%.1f%%" % (100 * sum(alone) / 4), text)
    gains = csv_of(page, "gains")
    assert gains[0]["client"] == "hospital 3"
    assert float(gains[-1]["gain against a model of its own rows"]) == pytest.approx(0.15)
    for row, member in zip(gains, sorted(range(4), key=lambda i: scores[i] - alone[i]), strict=True):
        expected = scores[member] - plain.rows[-1].scores["accuracy"][member]
        assert float(row["gain against FedAvg"]) == pytest.approx(expected, abs=1e-6)
    drawings(page)


def test_many_clients_gains_have_their_bounds(tmp_path):
    n = 41  # more than have a bar each
    fair = folders.write(tmp_path, "SCAFF-PD", n=n)
    page = html.page(with_alone([fair]))
    caption = (
        "The shade is the bounds that each client's rows allow, as far as the picture goes: where it does not reach"
    )
    assert caption in plain_text(page)
    run = numbers.reported([fair])[0]
    gains = numbers.Gains(
        "alone", np.linspace(-0.2, 0.2, n), np.linspace(-0.3, 0.1, n), np.linspace(-0.1, 9.0, n), True
    )
    inside, unknown = (bars.gains(run, g, None) for g in (gains, gains._replace(low=np.full(n, np.nan))))
    shade, nothing = (re.search(r'<path d="([^"]*)" class="span"', chart)[1] for chart in (inside, unknown))
    heights = [float(y) for y in re.findall(r"[ML][\d.]+[ ,]([\d.]+)", shade)]
    assert len(heights) == 4 * n  # both ends of every client's bounds
    assert min(heights) == 0  # cut off at the top of the picture
    assert nothing == ""


def csv_of(page, name):
    link = re.search(rf'download="{name}.csv" href="data:text/csv;charset=utf-8,([^"]*)"', page)[1]
    return list(csv.DictReader(io.StringIO(unquote(escaping.unescape(link)))))


def test_every_table_can_be_downloaded(page, five):
    tables = page.count("<table")
    assert page.count('class="download"') == tables == 4
    runs = csv_of(page, "runs")
    assert [float(row["mean"]) for row in runs[:5]] == pytest.approx([run.outcome.summary["mean"] for run in five[:5]])
    clients = csv_of(page, "clients")
    assert len(clients) == 12
    for i, row in enumerate(clients):
        assert float(row["FedAvg"]) == pytest.approx(five[0].rows[-1].scores["accuracy"][i], abs=1e-6)
        assert float(row["SCAFF-PD: weight"]) == pytest.approx(five[1].rows[-1].lam[i], abs=1e-6)


def test_a_spreadsheet_computes_nothing_of_what_a_client_is_called(tmp_path):
    page = html.page([folders.write(tmp_path, n=2, names=["=1+1", 'a,"b'])])
    assert [row["client"] for row in csv_of(page, "clients")] == ["'=1+1", 'a,"b']


def test_rounds_to_the_certified_optimum(five, page):
    runs = numbers.reported(five)
    rows = [row for run in runs for row in run.record.rows if row.objective is not None]
    best = max(row.objective - row.gap for row in rows)
    for share in numbers.CERTIFIED:
        mine = [row for row in runs[1].record.rows if row.objective - best <= share * best]
        found = numbers.reached(runs[1], runs, share)
        if min(row.objective for row in rows) - best > share * best:  # nobody is known to be so near
            assert math.isnan(found.rounds)
        else:
            assert mine == runs[1].record.rows[-len(mine) :]  # of this run, which does not leave again
            assert found.rounds == mine[0].round
    rows = {row["method"]: row for row in csv_of(page, "rounds-to-gap")}
    assert rows["SCAFF-PD"]["within 10%"] == str(numbers.reached(runs[1], runs, 0.1).rounds)
    assert rows["FedAvg"]["within 10%"] == "not in 100"


def test_another_objective_certifies_nothing(tmp_path):
    fair = folders.write(tmp_path, "fair")
    other = folders.write(tmp_path, "other", objective="kl", weighted=False)
    runs = numbers.reported([fair, other])
    assert math.isfinite(numbers.reached(runs[0], runs, 0.1).rounds)
    assert math.isnan(numbers.reached(runs[1], runs, 0.1).rounds)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A path over rho: the fairer, the lower the average, beyond what its bounds allow from rho 0.1 on."""
    root, runs = tmp_path_factory.mktemp("path"), []
    for k, (rho, end) in enumerate(((10, (0.8, 0.12)), (1, (0.797, 0.06)), (0.1, (0.78, 0.04)), (0.01, (0.75, 0.02)))):
        run = folders.write(root, f"rho {rho:g}", n=12, end=end, seed=k)
        text = (run.path / records.CONFIG).read_text().replace("rho = 0.1", f"rho = {rho}")
        (run.path / records.CONFIG).write_text(text)
        runs.append(records.read(run.path))
    return runs


def test_a_path_has_its_curve_with_the_chosen_point(path, five):
    found = numbers.path(numbers.reported(path))
    assert found.setting == "rho"
    assert [value for value, _ in found.points] == [10, 1, 0.1, 0.01]
    assert found.chosen.label == "rho 1"  # its average is within the bounds of the best; those below are not
    page = html.page(path)
    assert "Chosen: rho = 1; of those whose average is within the bounds" in plain_text(page)
    (curve,) = (d for d in drawings(page) if d.find("title").text.endswith("along rho"))
    assert len([e for e in curve.iter("circle") if e.get("class") == "ring"]) == 1
    assert [float(row["rho"]) for row in csv_of(page, "path")] == [10, 1, 0.1, 0.01]
    assert numbers.path(numbers.reported(five)) is None
    assert numbers.path(numbers.reported(path[:2])) is None


CHECKS = """
<script>
  const bad = [];
  const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const lin = [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2];
  };
  const paperOf = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  let texts = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("script, style, title, option, [hidden]")) continue;
    const style = getComputedStyle(element), ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(paperOf(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    texts += 1;
    if (contrast < 4.5) bad.push(`contrast ${contrast.toFixed(2)}: ${element.textContent.slice(0, 30)}`);
  }
  const nameOf = (e) => e.getAttribute("aria-label") || e.querySelector(":scope > title")?.textContent ||
    (e.labels && [...e.labels].map((l) => l.textContent).join(" ")) || e.textContent;
  let controls = 0;
  for (const e of document.querySelectorAll("a, button, input, select, summary, [role], [tabindex], table")) {
    controls += 1;
    if (!e.hidden && !nameOf(e).trim()) bad.push(`no name: ${e.outerHTML.slice(0, 60)}`);
  }
  for (const e of document.querySelectorAll("a, button, input, select, summary, [role=button], .wide")) {
    if (e.tabIndex < 0) bad.push(`no keyboard: ${e.outerHTML.slice(0, 60)}`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((h) => Number(h.tagName[1]));
  levels.forEach((level, k) => { if (k && level > levels[k - 1] + 1) bad.push(`heading ${k} skips a level`); });
  for (const t of document.querySelectorAll("th")) if (!t.scope) bad.push(`a heading of nothing: ${t.textContent}`);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) bad.push("an id twice");
  const sign = document.querySelector(".legend:not(.paper) li");
  sign.focus();
  sign.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  const pressed = sign.getAttribute("aria-pressed");
  if (document.activeElement !== sign || pressed !== "true") bad.push("the legend has no keyboard");
  document.documentElement.dataset.checked = `${texts} ${controls}`;
  document.documentElement.dataset.bad = bad.slice(0, 12).join("; ");
</script>
"""


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_screen_readers_keyboards_and_weak_eyes(browser, five, path, scheme):
    """In a real browser: every text has contrast, every control a name and a way there by keyboard."""
    text = html.page(with_alone([records.read(run.path) for run in path]))
    flags = (f"--blink-settings=preferredColorScheme={scheme}",)
    root = re.search(r"<html[^>]*>", browser(text.replace("</body>", CHECKS + "</body>"), *flags))[0]
    texts, controls = map(int, re.search(r'data-checked="(\d+) (\d+)"', root).groups())
    assert texts > 300
    assert controls > 40
    assert re.search(r'data-bad="([^"]*)"', root)[1] == ""


@pytest.mark.parametrize("n", [12, 60])
def test_clients_without_bounds_are_shown_and_accounted_for(tmp_path, n):
    """A regression: two clients have too few rows, a third one's bound is far off and does not squeeze the others."""
    run = folders.write(tmp_path, n=n, task="regression", end=(1.0, 0.2))
    low, high = ([None, None, *values[2:]] for values in (run.outcome.low, run.outcome.high))
    high[2] = 50.0
    unknown = {"worst_low": None, "worst_high": None, "worst_estimate": None, "mean_low": None, "mean_high": None}
    found = run._replace(outcome=run.outcome.model_copy(update={"low": tuple(low), "high": tuple(high), **unknown}))
    page = html.page([found])
    assert "Where there are none, the client has too few rows to say." in page
    assert "corrected for chance, bounds" not in page
    (told,) = numbers.reported([found])
    assert np.isnan([*told.mean, *told.worst]).all()
    assert bars.scale([told]).high < 10
    paths = [path.get("d", "") for drawing in drawings(page) for path in drawing.iter("path")]
    assert "nan" not in " ".join(paths)
