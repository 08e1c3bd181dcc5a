"""Text that is markup and text that is not: whatever is not `Safe` is escaped where it enters a tag."""

import html
import re
from typing import Any

EMPTY = {"circle", "input", "line", "meta", "path", "rect"}  # may close themselves
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # in XML, or in UTF-8


class Safe(str):
    """Markup."""

    __slots__ = ()


def escaped(content: object) -> Safe:
    if isinstance(content, Safe):
        return content
    return Safe(html.escape(FORBIDDEN.sub("\ufffd", str(content))))


def joined(*parts: object) -> Safe:
    return Safe("".join(escaped(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: Any) -> Safe:
    """An element; class_="a" is class="a", data_x=1 is data-x="1"; None leaves out, True has no value."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{"" if value is True else escaped(_short(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in EMPTY and not children:
        return Safe(f"<{name}{written}/>")
    return Safe(f"<{name}{written}>{joined(*children)}</{name}>")


def prose(text: str) -> Safe:
    """A sentence; what stands between backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escaped(text)
    return joined(*(tag("code", part) if k % 2 else part for k, part in enumerate(parts)))


def _short(value: Any) -> Any:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
