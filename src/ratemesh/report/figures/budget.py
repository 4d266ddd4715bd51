"""Accuracy against what it cost: bytes sent, and samples that went through a training step."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from ratemesh.metrics.table import LABEL_AWARE, METRICS
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run, number
from ratemesh.report.wording import in_bytes, in_count

KINDS = {key: metric.panel for key, metric in METRICS.items() if metric.panel}
ALIKE = (
    " Nodes that hold different labels are to be judged by the label-aware accuracy, and compared there with those "
    "that hold all: for them it is the fused one."
)
COSTS = {"bytes": ("bytes sent so far", in_bytes), "passes": ("sample passes so far", in_count)}


@dataclass(frozen=True)
class Point:
    """A run's accuracies by kind at one moment, and what they had cost."""

    bytes: float
    passes: float
    accuracy: dict[str, float]


def points(run: Run, *, aware: bool = False) -> list[Point]:
    """Return the evaluations of a run in order, the final one last.

    Args:
        aware: give runs whose nodes hold all labels a label-aware accuracy too, the fused one: the mean of residuals
            over all nodes is smallest where their sum is.
    """
    sent = list(itertools.accumulate(number(record.get("bytes")) for record in run.records))
    out = []
    for total, record in zip(sent, run.records, strict=True):
        found = record.get("evaluation")
        if isinstance(found, dict):
            out.append(Point(total, number(found.get("sample_passes")), _accuracies(found)))
    last = Point(
        number(run.metrics.get("bytes_total")), number(run.metrics.get("sample_passes")), _accuracies(run.metrics)
    )
    if last.accuracy and not (out and _same_cost(out[-1], last)):
        out.append(last)
    if aware and not run.partial:
        for point in out:
            if "acc_energy" in point.accuracy:
                point.accuracy[LABEL_AWARE] = point.accuracy["acc_energy"]
    return [point for point in out if point.accuracy]


def _same_cost(a: Point, b: Point) -> bool:
    """Whether two evaluations are of the same moment; means over trials are equal to rounding only."""
    return math.isclose(a.bytes, b.bytes) and math.isclose(a.passes, b.passes)


def _accuracies(found: dict[str, object]) -> dict[str, float]:
    return {kind: value for kind in KINDS if math.isfinite(value := number(found.get(kind)))}


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw accuracies of all runs: a column a kind of accuracy, a row a kind of cost."""
    title = "Accuracy against cost"
    aware = any(run.partial for run in runs)
    known = {run.name: points(run, aware=aware) for run in runs}
    single = {run.name: [points(trial, aware=aware) for trial in run.complete] for run in runs}
    notes = _missing(known)
    kinds = [kind for kind in KINDS if any(kind in p.accuracy for found in known.values() for p in found)]
    if not kinds:
        return Drawn(title, "", "", (), notes)
    with style.house_style():
        # what a node alone makes of classes it never saw would flatten all the others
        scale = "col" if aware else "all"
        figure, axes = style.panels(2 * len(kinds), len(kinds), (3.3, 2.4), sharey=scale, sharex="row")
        for axis, (cost, kind) in zip(axes, itertools.product(COSTS, kinds), strict=True):
            _panel(axis, [(_name(run, aware), known[run.name], single[run.name]) for run in runs], cost, kind)
        for axis, kind in zip(axes, kinds, strict=False):
            axis.set_title(KINDS[kind])
        handles, labels = axes[0].get_legend_handles_labels()
        style.legend(figure, handles, labels)
        style.name_rows(axes, "held-out accuracy")
        files = style.save(figure, out_stem, formats)
    caption = (
        "Accuracy on held-out samples, by nearest subspace unless said otherwise, against bytes sent by all nodes "
        "together (top) and samples that went through a training step (bottom). Further up and to the left is better."
        + (ALIKE if aware and not all(run.partial for run in runs) else "")
        + (" Bold lines are means over trials, thin ones the single trials." if any(single.values()) else "")
    )
    return Drawn(title, caption, " ".join(_in_words(*entry) for entry in known.items() if entry[1]), files, notes)


def _name(run: Run, aware: bool) -> str:
    """Return a run's name; where some nodes hold different labels, with what its nodes hold."""
    held = ", partial labels" if run.partial else ", all labels"
    return style.label(run.name) + (held if aware else "")


def _panel(axis: Axes, known: Sequence[tuple[str, list[Point], list[list[Point]]]], cost: str, kind: str) -> None:
    name, unit = COSTS[cost]
    for index, (run, found, single) in enumerate(known):
        look = style.look(index)
        for trial in single:
            axis.plot(*_line(trial, cost, kind), color=look["color"], lw=0.7, alpha=0.5, marker=".", markersize=2.5)
        if any(kind in point.accuracy for point in found):  # no line, no place in the legend
            # what nothing was sent for lies on the axis, and is to be seen whole
            axis.plot(*_line(found, cost, kind), label=run, clip_on=False, **look)
    axis.set_xlim(left=0)  # how much further left a run is means something only from nothing
    axis.set_xlabel(name)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value)))
    axis.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))  # as many digits as tell the ticks apart


def _line(found: Sequence[Point], cost: str, kind: str) -> tuple[list[float], list[float]]:
    shown = [point for point in found if kind in point.accuracy]
    return [getattr(point, cost) for point in shown], [point.accuracy[kind] for point in shown]


def _missing(known: dict[str, list[Point]]) -> tuple[str, ...]:
    """Say which runs have no accuracy, and which only one at the end."""
    none = [f"{name}: no accuracy is recorded." for name, found in known.items() if not found]
    single = [name for name, found in known.items() if len(found) == 1]
    if single:
        none.append(
            f"{style.listed(single)}: only the final accuracy is known, so there is a single point. "
            "Set output.evaluate_every to see the way there."
        )
    return tuple(none)


def _in_words(name: str, found: Sequence[Point]) -> str:
    last = found[-1]
    shown = ", ".join(f"{100 * value:.1f} % with {KINDS[kind]}" for kind, value in last.accuracy.items())
    return f"{name} ends with {shown}, after {in_bytes(last.bytes)} and {in_count(last.passes)} sample passes."
