import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from equipoise.report import bars, formats, numbers, plots, wording
from tests.report import folders


def parsed(drawing):
    return ElementTree.fromstring(drawing.encode())


def titles(element):
    return [title.text for title in element.iter("title")]


def rows(element):
    return [group for group in element.iter("g") if group.get("class") == "row"]


def test_a_bar_for_each_client_worst_first(five):
    run, plain = numbers.reported(five)[1], numbers.reported(five)[2]
    drawn = rows(parsed(bars.clients(run, bars.scale([run]), plain)))
    assert [int(row.get("data-client")) for row in drawn] == run.worst_first()
    for row in drawn:
        i = int(row.get("data-client"))
        width = next(float(r.get("width").rstrip("%")) for r in row.iter("rect") if r.get("class") == "bar")
        assert width == pytest.approx(100 * run.values[i] * (bars.END - bars.BAR), abs=0.02)
        whisker = next(line for line in row.iter("line"))
        ends = [float(whisker.get(x).rstrip("%")) for x in ("x1", "x2")]
        expected = [100 * (bars.BAR + v * (bars.END - bars.BAR)) for v in (run.low[i], run.high[i])]
        assert ends == pytest.approx(expected, abs=0.02)
        assert f"{100 * run.values[i]:.1f}%" in titles(row)[0]
        assert f"{100 * plain.values[i]:.1f}%" in titles(row)[0]


def test_a_client_without_a_score_has_no_bar(regression):
    run = numbers.reported(regression)[0]
    last = rows(parsed(bars.clients(run, bars.scale([run]))))[-1]
    assert last.get("data-client") == "3"
    assert not [r for r in last.iter("rect") if r.get("class") == "bar"]


def test_many_clients_are_a_few_shapes(thousand):
    run, plain = numbers.reported(thousand)[1], numbers.reported(thousand)[0]
    drawing = parsed(bars.clients(run, bars.scale([run]), plain))
    assert len(list(drawing.iter())) < 250
    hints = [t for t in titles(drawing) if t.startswith("places")]
    assert len(hints) == bars.ZONES
    assert hints[0].startswith("places 1 to 20: " + formats.percent(run.values.min()))
    assert hints[-1].split(" (")[0].endswith(formats.percent(run.values.max()))


def test_the_tradeoff_is_the_table(five):
    runs = numbers.reported(five)
    for other in ("mean", "best20"):
        text = titles(parsed(plots.tradeoff(runs, other)))
        for run in runs:
            both = [formats.percent(v) for v in (run.summary[other], run.corrected_worst)]
            assert any(t.startswith(run.label) and all(v in t for v in both) for t in text)


def test_a_line_for_each_run(five):
    group = numbers.comparable(numbers.reported(five))[0]
    drawing = parsed(plots.convergence(group, "worst20", "bytes"))
    lines = [p for p in drawing.iter("path") if "line" in (p.get("class") or "")]
    assert [int(line.get("data-run")) for line in lines] == [5, 4, 3, 2, 1, 0]
    for line in lines:
        run = group[int(line.get("data-run"))]
        assert titles(line) == [f"{run.label}: {formats.percent(run.summary['worst20'])} at the end"]
        assert len(re.findall("[ML]", line.get("d"))) == len(run.record.rows)


def test_nothing_is_drawn_of_what_nobody_measured(five):
    runs = numbers.reported(five)
    assert plots.has_data(runs, "gap")
    assert not plots.has_data(runs[:1], "gap")  # FedAvg knows none


def test_a_broken_number_is_a_gap(five):
    rows_ = list(five[1].rows)
    rows_[10] = rows_[10].model_copy(update={"gap": None})
    run = numbers.reported([five[1]._replace(rows=rows_)])[0]
    drawing = parsed(plots.convergence([run], "gap", "rounds"))
    line = next(p for p in drawing.iter("path") if "line" in (p.get("class") or ""))
    assert line.get("d").count("M") == 2


@pytest.mark.parametrize(("n", "lines"), [(5, 5), (12, 12), (68, 68), (69, 8)])
def test_the_weights_of_few_and_of_many(tmp_path, n, lines):
    run = numbers.reported([folders.write(tmp_path, n=n, rows=5)])[0]
    drawing = parsed(plots.weights(run))
    paths = [p for p in drawing.iter("path") if (p.get("class") or "").startswith("line")]
    assert len(paths) == lines
    assert len([p for p in drawing.iter("path") if p.get("class") == "band"]) == (n > 68)
    lam = run.record.rows[-1].lam
    heaviest = max(range(n), key=lambda i: lam[i])
    name = run.members[heaviest].name
    assert f"{name}: {formats.number(lam[heaviest])} at the end" in titles(drawing)


def test_names_of_weights_do_not_touch():
    moved = plots._separated([10.0, 11.0, 12.0, 200.0, plots.BOTTOM, plots.BOTTOM])
    assert all(b - a >= 15 - 1e-9 for a, b in pairwise(moved))
    assert moved[-1] <= plots.BOTTOM


def test_sizes(five):
    members = five[0].federation.members
    rows_ = sorted(m.train for m in members)
    assert f"from {rows_[-1]:,} to {rows_[0]:,}" in titles(parsed(bars.sizes(members)))[0]


def test_who_leads(five):
    runs = numbers.reported(five)
    assert wording.leading(runs).label == "SCAFF-PD"
    assert math.isfinite(wording.leading(runs[-1:]).summary["mean"])  # unfinished, but alone
