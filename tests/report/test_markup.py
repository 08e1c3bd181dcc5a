from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from equipoise.report.html import TEMPLATES
from equipoise.report.markup import printable, prose, tag

TEXT = st.text(st.characters(codec=None, exclude_categories=()))
TEMPLATE = TEMPLATES.from_string('<p class="{{ text }}">{{ text }}{{ text | prose }}</p>')


@given(TEXT, TEXT)
def test_any_text_is_well_formed(child, attribute):
    page = printable(tag("p", child, tag("rect", class_=attribute), "end"))
    element = ElementTree.fromstring(page.encode("utf-8"))
    assert element.tail is None
    assert [e.tag for e in element] == ["rect"]


@given(TEXT)
def test_prose_is_well_formed(text):
    ElementTree.fromstring(printable(tag("p", prose(text))).encode("utf-8"))


@given(TEXT)
def test_any_text_in_a_template_is_well_formed(text):
    element = ElementTree.fromstring(printable(TEMPLATE.render(text=text)).encode("utf-8"))
    assert {e.tag for e in element} <= {"code"}


def test_what_is_markup_stays():
    assert tag("b", Markup("<i>x</i>"), "<i>") == "<b><i>x</i>&lt;i&gt;</b>"
    assert isinstance(tag("b"), Markup)


def test_attributes():
    assert tag("rect", x=1.50, name=None, rx='a"b') == '<rect x="1.5" rx="a&#34;b"/>'
    assert tag("text", "a", text_anchor="b", class_="c") == '<text text-anchor="b" class="c">a</text>'
    assert tag("code") == "<code></code>"  # HTML has no <code/>


def test_code_in_prose():
    assert prose("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert prose("a ` alone") == "a ` alone"
