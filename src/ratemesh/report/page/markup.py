"""HTML by construction: text is escaped unless it is markup already, so nothing in a run folder can break a page."""

import re
from collections.abc import Iterable, Sequence
from html import escape

VOID = {"img", "path"}
"""Elements without content."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as markup; anything but `Html` is escaped.

    >>> text("a < b")
    'a &lt; b'
    """
    return value if isinstance(value, Html) else Html(escape(str(value)))


def symbols(words: str) -> Html:
    """Return words with R^c and V_i as a reader expects them.

    >>> symbols("R^c_i < V_i")
    'R<sup>c</sup><sub>i</sub> &lt; V<sub>i</sub>'
    """
    return Html(re.sub(r"_([ijk])\b", r"<sub>\1</sub>", re.sub(r"\^c(?=\b|_)", "<sup>c</sup>", escape(words))))


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Join values as markup."""
    return Html(text(between).join(text(part) for part in parts))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return an element; `class_` stands for class, `data_x` for data-x, and None leaves an attribute out.

    >>> tag("a", "x & y", href="#top", class_="link")
    '<a href="#top" class="link">x &amp; y</a>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = f"<{name}" + "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    return Html(f"{opening} />" if name in VOID else f"{opening}>{joined(content)}</{name}>")


def section(anchor: str, heading: str, *content: object) -> Html:
    """Return a part of the page that links can point to."""
    return tag("section", tag("h2", heading), *content, id=anchor)


def paragraph(*content: object, **attributes: object) -> Html:
    """Return a paragraph."""
    return tag("p", *content, **attributes)


def table(label: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table in a box of its own that scrolls sideways; the first column names the rows."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = (tag("tr", _as_head(row[0]), *(_as_cell(cell) for cell in row[1:])) for row in rows)
    inner = tag("table", tag("thead", top), tag("tbody", *body))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)


def _as_head(cell: object) -> Html:
    return tag("th", cell, scope="row")


def _as_cell(cell: object) -> Html:
    """Wrap a value as a cell, unless it is one."""
    return cell if isinstance(cell, Html) and cell.startswith("<td") else tag("td", cell)


def bullets(items: Iterable[object]) -> Html:
    """Return a list of points; nothing for none."""
    points = [tag("li", item) for item in items]
    return tag("ul", *points) if points else Html()


def fold(summary: object, *content: object) -> Html:
    """Return content that opens on demand."""
    return tag("details", tag("summary", summary), *content)
