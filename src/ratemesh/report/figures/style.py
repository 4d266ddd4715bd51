"""How all figures look: one palette that colour-blind readers can tell apart, and never colour alone."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ratemesh.experiment.storage import write_bytes
from ratemesh.report.runs import Run

FORMATS = ("png", "svg", "pdf")
DPI = 200

BLUE, VERMILLION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#000000"
PALETTE = (BLUE, VERMILLION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", BLACK)
"""The colours of Okabe and Ito."""

STROKES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

LONGEST = 26
"""Characters of a run's name that fit above a panel."""

SETTINGS: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 2.8,  # a whole dash on both sides of the marker
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "pdf.fonttype": 42,  # text stays text: journals ask for it
    "svg.hashsalt": "ratemesh",  # the same run gives the same file
    "svg.fonttype": "path",
}

DATELESS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


@dataclass(frozen=True)
class Drawn:
    """What a figure left.

    Attributes:
        title: a heading.
        caption: what to look for.
        alt: the figure in words, for those who cannot see it.
        files: one a format; none when nothing could be drawn.
        notes: what could not be drawn, why, and the remedy.
    """

    title: str
    caption: str = ""
    alt: str = ""
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the look inside the block, and leave the caller's settings alone."""
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that no font has here becomes boxes, no more
        yield


def panels(count: int, size: tuple[float, float], across: int | None = None, **how: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes of `size` inches.

    Args:
        across: panels side by side at most; by default three, and four as two and two.
        how: for `Figure.subplots`.
    """
    columns = min(count, across or (2 if count == 4 else 3))
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="compressed")  # cosine matrices are square
    FigureCanvasAgg(figure)  # no pyplot: nothing global, no window
    axes: list[Axes] = list(np.atleast_1d(figure.subplots(rows, columns, **how)).flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def curve_size(count: int) -> tuple[float, float]:
    """Return inches of a panel with curves: one alone has room for its legend in a line."""
    return (4.8, 3.0) if count == 1 else (3.4, 2.6)


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put a legend below the panels, in as many columns up to three as are not cut off."""
    for columns in range(max(1, min(3, len(handles))), 0, -1):
        box = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        if columns == 1 or box.get_window_extent().width <= figure.bbox.width:
            return
        box.remove()


def whole_numbers(axis: Axes) -> None:
    """Put ticks of the x axis at whole, round numbers."""
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def name_rows(axes: Sequence[Axes], name: str) -> None:
    """Name the y axis of the first panel of every row."""
    for axis in axes:
        place = axis.get_subplotspec()
        if place is not None and place.is_first_col():
            axis.set_ylabel(name)


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write the figure as stem.png, stem.svg, stem.pdf."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix in formats:
        content = io.BytesIO()
        figure.savefig(content, format=suffix, dpi=DPI, metadata=DATELESS[suffix])
        files.append(stem.with_name(f"{stem.name}.{suffix}"))
        write_bytes(files[-1], content.getvalue())
    return tuple(files)


def look(index: int) -> dict[str, Any]:
    """Return colour, stroke and marker of the run at `index`; the first 35 all differ."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": STROKES[index % len(STROKES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def spread(runs: Sequence[Run], *, bands: bool = True) -> str:
    """Return what lines and bands are: of a run they span the nodes, of trials the trials."""
    single, trials = any(not run.trials for run in runs), any(run.trials for run in runs)
    over, reach = "the nodes", "node"
    if trials:
        over = "the nodes, and over the trials where there are some" if single else "nodes and trials"
        reach = "node, or trial where there are some" if single else "trial"
    return f"lines are means over {over}" + (f", bands reach from the lowest to the highest {reach}" if bands else "")


def sampled(runs: Sequence[Run]) -> str:
    """Return a sentence on whose features or network are shown, where there are trials."""
    return " Of trials, the first complete one is shown." if any(run.trials for run in runs) else ""


def label(name: str) -> str:
    """Return a name as matplotlib shows it literally: short, no mathematics, and not hidden from legends."""
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 2 - 1]}…{name[-LONGEST // 2 :]}"
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def listed(names: Sequence[str]) -> str:
    """Join names as a sentence does."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
