"""Tables of results, for the screen and for RESULTS.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as Screen


@dataclass(frozen=True)
class Table:
    """A table with one sentence that says what it means and, if there is one, how the numbers were taken."""

    title: str
    meaning: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    method: str = ""

    def screen(self) -> Screen:
        """Return the table for a terminal."""
        table = Screen(title=self.title, caption=self.meaning, box=box.SIMPLE, title_justify="left")
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="left" if place == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"## {self.title}", "", self.meaning]
        if self.method:
            lines += ["", self.method]
        lines += ["", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        return "\n".join([*lines, *map(_line, self.rows)]) + "\n"


def aim(value: float, *, at_least: float | None = None, at_most: float | None = None) -> str:
    """Return "met" or "missed" with the aim beside it."""
    met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    wanted = f"≥ {at_least:g}" if at_least is not None else f"≤ {at_most:g}"
    return f"{wanted}: {'met' if met else 'missed'}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
