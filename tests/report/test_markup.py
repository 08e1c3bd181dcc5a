from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.markup import Safe, joined, prose, tag

TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@given(TEXT, TEXT)
def test_any_text_is_well_formed(child, attribute):
    page = tag("p", child, tag("rect", class_=attribute), "end")
    element = ElementTree.fromstring(page.encode("utf-8"))
    assert element.tail is None
    assert [e.tag for e in element] == ["rect"]


@given(TEXT)
def test_prose_is_well_formed(text):
    ElementTree.fromstring(tag("p", prose(text)).encode("utf-8"))


def test_what_is_safe_stays():
    assert tag("b", Safe("<i>x</i>"), "<i>") == "<b><i>x</i>&lt;i&gt;</b>"
    assert isinstance(joined("a", tag("b")), Safe)


def test_attributes():
    assert tag("input", type="radio", checked=True, name=None, hidden=False, x=1.50) == (
        '<input type="radio" checked="" x="1.5"/>'
    )
    assert tag("label", "a", for_="b", data_run=1) == '<label for="b" data-run="1">a</label>'
    assert tag("div") == "<div></div>"  # HTML has no <div/>


def test_code_in_prose():
    assert prose("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert prose("a ` alone") == "a ` alone"
