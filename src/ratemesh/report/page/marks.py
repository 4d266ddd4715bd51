"""The sign of a run on the page: the line that it has in the figures."""

from ratemesh.report.figures import style
from ratemesh.report.page.markup import Html, tag

DASHES = {"-": None, "--": "6 3", "-.": "6 2 2 2", ":": "2 2"}
SHAPES = {
    "o": "M17 5a3.5 3.5 0 1 0 .01 0z",
    "s": "M13.5 5h7v7h-7z",
    "^": "M17 4.5l4 7.5h-8z",
    "D": "M17 4l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
    "v": "M13 5h8l-4 7.5z",
    "P": "M15.7 4.5h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M14 4l3 3l3 -3l1.5 1.5l-3 3l3 3l-1.5 1.5l-3 -3l-3 3l-1.5 -1.5l3 -3l-3 -3z",
}
"""Paths in a box of 34 by 17, in the shapes of matplotlib's markers."""


def mark(index: int) -> Html:
    """Return a small drawing of the line and marker of the run at `index`."""
    look = style.look(index)
    colour = str(look["color"]) if look["color"] != style.BLACK else "currentColor"
    dash = DASHES.get(look["linestyle"], "6 2 2 2 2 2") if isinstance(look["linestyle"], str) else "6 2 2 2 2 2"
    line = tag("path", d="M2 8.5h30", stroke=colour, stroke_width=2, stroke_dasharray=dash, fill="none")
    shape = tag("path", d=SHAPES[look["marker"]], fill=colour)
    return tag("svg", line, shape, class_="mark", viewBox="0 0 34 17", width=34, height=17, aria_hidden="true")


def named(index: int, name: str) -> Html:
    """Return a run's name with its sign."""
    return tag("span", mark(index), " ", name, class_="run")
