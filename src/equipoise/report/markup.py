"""Elements of the drawings. Whatever is not `Markup` is escaped, as in the templates."""

import re

from markupsafe import Markup, escape

VOID = {"circle", "line", "path", "rect"}  # close themselves when they are empty
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # in XML, or in UTF-8


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; class_="a" is class="a", data_x=1 is data-x="1"; attributes that are None are left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(f' {key}="{escape(_short(value))}"' for key, value in given.items())
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{Markup().join(map(escape, children))}</{name}>")


def prose(text: str) -> Markup:
    """A sentence; what stands between backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape(text)
    return Markup().join(tag("code", part) if k % 2 else part for k, part in enumerate(parts))


def printable(text: str) -> str:
    """Without characters that no document may hold."""
    return FORBIDDEN.sub("\ufffd", text)


def _short(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
