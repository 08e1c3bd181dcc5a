import re
from xml.etree import ElementTree

import numpy as np
import pytest

from equipoise.data.partition import summarize
from equipoise.report import pictures

SVG = "{http://www.w3.org/2000/svg}"


def division(n, k, samples=4000, names=None):
    """Samples of k labels, dealt to n clients at random."""
    rng = np.random.default_rng(n)
    labels, owners = rng.integers(k, size=samples), rng.integers(n, size=samples)
    labels[:k], owners[:n] = np.arange(k), np.arange(n)
    return summarize([np.flatnonzero(owners == i) for i in range(n)], labels, names=names)


def parsed(text):
    return ElementTree.fromstring(text.encode("utf-8"))


def shown(element):
    return [text.text for text in element.iter(f"{SVG}text")]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (6, 10), (40, 3)])
def test_a_cell_for_each_label_of_a_client(n, k):
    summary = division(n, k)
    drawing = parsed(pictures.heatmap(summary))
    assert drawing.find(f"{SVG}title").text == pictures.HEATMAP_TITLE
    cells = [rect for rect in drawing.iter(f"{SVG}rect") if rect.get("fill-opacity")]
    expected = {
        f"{summary.clients[i]}, {summary.labels[c]}: {summary.histogram[i, c]:,} of {summary.sizes[i]:,}": (i, c)
        for i, c in zip(*np.nonzero(summary.histogram), strict=True)
    }
    assert {cell.find(f"{SVG}title").text for cell in cells} == set(expected)
    for cell in cells:
        i, c = expected[cell.find(f"{SVG}title").text]
        share = summary.histogram[i, c] / summary.sizes[i]
        assert float(cell.get("fill-opacity")) == pytest.approx(share, abs=6e-4)
    assert {*summary.clients, *summary.labels, *(f"{size:,}" for size in summary.sizes)} <= set(shown(drawing))


def test_bars_are_as_long_as_clients_are_large():
    summary = division(6, 10)
    rects = parsed(pictures.heatmap(summary)).iter(f"{SVG}rect")
    bars = [rect for rect in rects if rect.find(f"{SVG}title") is not None and not rect.get("fill-opacity")]
    widths = np.array([float(bar.get("width")) for bar in bars])
    np.testing.assert_allclose(widths, 120 * summary.sizes / summary.sizes.max(), atol=0.01)


def test_many_clients_share_rows():
    summary = division(1000, 10, samples=30_000)
    text = pictures.heatmap(summary)
    hints = [title.text for title in parsed(text).iter(f"{SVG}title")]
    assert f"0 to 2: {summary.sizes[:3].sum():,}" in hints
    assert f"0 to 2, 4: {summary.histogram[:3, 4].sum():,} of {summary.sizes[:3].sum():,}" in hints
    assert "clients, 3 to a row" in shown(parsed(text))
    assert len(text) < 1_000_000


def test_names_are_only_names():
    nasty = ["<script>alert(1)</script>", "b\x00", '"&', "a name that is too long to be written whole"]
    text = pictures.heatmap(division(3, 4, names=nasty))
    drawing = parsed(text)
    assert "<script" not in text
    assert "a name that is too long…" in shown(drawing)
    assert any("too long to be written whole" in title.text for title in drawing.iter(f"{SVG}title"))


def test_panels():
    charts = {"first": {"a": [1, 2, 3], "b": [3, 2, 1]}, "second": {"b": [0.5, 0.25, 0.125]}, "empty": {}}
    drawing = parsed(pictures.panels("Curves", charts, columns=2, x_name="round"))
    assert {"first", "second", "empty", "a", "b", "round"} <= set(shown(drawing))
    lines = [path for path in drawing.iter(f"{SVG}path") if (path.get("class") or "").startswith("line")]
    assert [line.get("class") for line in lines] == ["line s0", "line s1", "line s1"]  # a name has one colour
    assert all(len(re.findall("[ML]", line.get("d"))) == 3 for line in lines)
