"""Who understands whom: node by node, what one says and another judges."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.ticker import PercentFormatter

from ratemesh.methods import METHODS
from ratemesh.metrics.language import compared
from ratemesh.metrics.table import MATRICES
from ratemesh.report.figures import style
from ratemesh.report.figures.graph import Network
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run, number
from ratemesh.report.wording import in_percent, shown

PANELS = ("cross_matrix", "retrieval_matrix_fine")
"""Matrices that are drawn, where a run has them; metrics.json has them all."""

NUMBERED = 12
"""Nodes up to which there is room for numbers in the cells, and along an axis for the names of all."""

DARK = 0.45
"""Value from which letters on a cell are white."""

PARTS = LinearSegmentedColormap.from_list("part", ["#FFFFFF", "#3F7FB5", "#04203F"])
"""From nothing to all; its lightness falls throughout, so a grey print reads the same."""


@dataclass(frozen=True)
class Pairs:
    """What one panel shows: values by who speaks and who judges, the nodes' names, a title."""

    values: list[list[float]]
    names: list[str]
    title: str

    @classmethod
    def of(cls, run: Run, key: str) -> "Pairs | None":
        """Read a matrix of a run's metrics, of trials that of the first complete one; None if there is none."""
        values = _matrix((run.complete or [run])[0].metrics.get(key))
        if values is None:
            return None
        network = Network.of(run.network)
        nodes = compared(len(network.names) if network else len(values))
        kinds: Mapping[int, str] = network.names if network and len(nodes) == len(values) else {}
        names = [f"{i} {kinds.get(i, '')}".strip() for i in (nodes if kinds else range(len(values)))]
        return cls(values, names, f"{style.label(run.sample)}\n{MATRICES[key]}")


def _matrix(content: Any) -> list[list[float]] | None:
    """Return a square table of numbers, NaN where one is not known; None for anything else."""
    if not isinstance(content, list) or not content:
        return None
    if not all(isinstance(row, list) and len(row) == len(content) for row in content):
        return None
    return [[number(value) for value in row] for row in content]


def one_model(run: Run) -> bool:
    """Whether all nodes of a run have one model, by its method: what one says then all others understand."""
    method = METHODS.get(str(run.setting("method.name")))
    return method is not None and method().messages.one_model


def draw_language(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw how well every node judges what every other says, a panel a run; one more where there are fine labels."""
    title = "Who understands whom"
    found = {run.name: [pairs for key in PANELS if (pairs := Pairs.of(run, key))] for run in runs}
    notes = tuple(f"{run.name}: no accuracy by pairs of nodes is recorded." for run in runs if not found[run.name])
    panels = [pairs for several in found.values() for pairs in several]
    if not panels:
        return Drawn(title, notes=notes)
    with style.house_style():
        figure, axes = style.panels(len(panels), (3.9, 3.7))
        for axis, pairs in zip(axes, panels, strict=True):
            image = _panel(axis, pairs)
        parts = PercentFormatter(xmax=1, decimals=0, symbol=" %")
        figure.colorbar(image, ax=axes, shrink=0.7, pad=0.015, label="held-out samples judged right", format=parts)
        files = style.save(figure, out_stem, formats)
    caption = (
        "Rows: the node that encodes a sample. Columns: the node that judges these features, by its own statistics "
        "alone; for fine labels, by the nearest sample as it sees it. Off the diagonal a node judges what another "
        "says: as dark as the diagonal is one language, chance is none." + _alike(runs) + style.sampled(runs)
    )
    return Drawn(title, caption, " ".join(_in_words(run) for run in runs if found[run.name]), files, notes)


def _alike(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs if one_model(run)]
    return f" In {style.listed(names)} nodes share weights of one model: they agree by construction." if names else ""


def _in_words(run: Run) -> str:
    return (
        f"{run.name}: nodes judge {shown(run, 'acc_own')} of their own features right and {shown(run, 'acc_cross')} of "
        f"another node's, {shown(run, 'acc_cross_worst')} in the worst pair."
    )


def _panel(axis: Axes, pairs: Pairs) -> AxesImage:
    """Draw one matrix, with numbers where they can be read."""
    image = axis.imshow(pairs.values, cmap=PARTS, vmin=0, vmax=1, interpolation="nearest")
    count = len(pairs.values)
    if count <= NUMBERED:
        for i, row in enumerate(pairs.values):
            for j, value in enumerate(row):
                colour = "white" if value >= DARK else "black"
                words = in_percent(value).removesuffix(" %") if count <= NUMBERED // 2 else f"{100 * value:.0f}"
                axis.text(j, i, words if math.isfinite(value) else "–", ha="center", va="center", color=colour, size=7)
    every = -(-count // NUMBERED)
    places, names = range(0, count, every), pairs.names[::every]
    axis.set_xticks(places, names, rotation=90)
    axis.set_yticks(places, names)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set_xlabel("who judges")
    axis.set_ylabel("who speaks")
    axis.set_title(pairs.title)
    return image
