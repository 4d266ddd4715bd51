"""Curves over rounds and over cost: the loss, agreement and orthogonality, and accuracy against what it cost."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from ratemesh.metrics.table import LABEL_AWARE, METRICS, VALIDATION
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Curve, Run, number
from ratemesh.report.wording import in_bytes, in_count

TERMS: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "expand": (r"$-R_i$ (expansion)", "minus R", -1, {"color": style.VERMILLION, "linestyle": "--", "marker": "s"}),
    "compress": (r"$R^c_i$ (compression)", "R^c", 1, {"color": style.BLUE, "linestyle": "-.", "marker": "^"}),
    "total": ("total loss", "total loss", 1, {"color": style.GREEN, "linestyle": "-", "marker": "o"}),
}
"""Recorded number -> its name in the legend and in words, its sign in the loss, its look."""

WIDEST = 5
"""Largest ratio of the panels' ranges at which one scale still shows them all."""

SIDES = {
    "disagreement": ("disagreement of neighbours", "Do nodes agree?"),
    "overlap": ("overlap of classes", "Are classes orthogonal?"),
}
"""Recorded number -> its name, and the question that it answers."""

BANDED = 3
"""Runs up to which bands help; more would hide each other."""

DECADE = 20
"""Ratio of largest to smallest value from which a logarithmic scale shows more."""

KINDS = {key: metric.panel for key, metric in METRICS.items() if metric.panel}
ALIKE = (
    " Nodes that hold different labels are to be judged by the label-aware accuracy, and compared there with those "
    "that hold all: for them it is the fused one."
)
CROWDED = 4
"""Kinds of accuracy beyond which panels become narrower, so that letters stay readable on a page."""

ON_VALIDATION = ", validation samples"
"""What stands behind the name of a run that is shown by them: by these its way is known, not by test samples."""

COSTS = {"bytes": ("bytes sent so far", in_bytes), "passes": ("sample passes so far", in_count)}


def draw_convergence(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw −R_i, R^c_i and the total loss over rounds, a panel a run, as in Figs. 1 and 7 of the paper.

    Means over the nodes are lines, from the lowest to the highest node (of trials: trial) are bands.
    """
    shown = [run for run in runs if any(run.curve(key).values for key in TERMS)]
    notes = tuple(f"{run.name}: no loss is recorded." for run in runs if run not in shown)
    title = "Convergence"
    if not shown:
        return Drawn(title, notes=notes)
    with style.house_style():
        figure, axes = style.panels(len(shown), style.curve_size(len(shown)), sharey=_share_a_scale(shown))
        for axis, run in zip(axes, shown, strict=True):
            for key, (name, _, sign, look) in TERMS.items():
                _plot(axis, run.curve(key, sign), name, look, band=0.18)
            axis.axhline(0, color="0.6", linewidth=0.6)
            axis.set_title(style.label(run.name))
            axis.set_xlabel("round")
            style.whole_numbers(axis)
        style.legend(figure, *axes[0].get_legend_handles_labels())
        style.name_rows(axes, "loss")
        files = style.save(figure, out_stem, formats)
    caption = (
        f"Terms of the local objective by round: {style.spread(shown)}. "
        "Features expand as a whole while −R_i falls, classes are compressed while R^c_i falls."
    )
    words = []
    for run in shown:
        curves = {name: run.curve(key, sign) for key, (_, name, sign, _) in TERMS.items()}
        first, last = run.records[0]["round"], run.records[-1]["round"]
        words.append(f"{run.name}, rounds {first} to {last}: {_from_to(curves, '.1f')}.")
    return Drawn(title, caption, " ".join(words), files, notes)


def _plot(axis: Axes, curve: Curve, name: str, look: Mapping[str, Any], *, band: float) -> None:
    """Draw a curve with about ten markers, and its band as opaque as `band` says."""
    if band:
        axis.fill_between(curve.rounds, curve.low, curve.high, color=look["color"], alpha=band, lw=0)
    axis.plot(curve.rounds, curve.mean, label=name, markevery=max(1, len(curve.rounds) // 10), **look)


def _share_a_scale(runs: Sequence[Run]) -> bool:
    """Whether one scale suits all runs: a diverged one must not flatten the others."""
    spans = []
    for run in runs:
        values = [value for key, (_, _, sign, _) in TERMS.items() for value in run.curve(key, sign).values]
        spans.append(max(values) - min(values))
    return max(spans) <= WIDEST * min(spans)


def _from_to(curves: Mapping[str, Curve], digits: str) -> str:
    """Return first and last values of curves by name."""
    found = {name: curve.values for name, curve in curves.items() if curve.values}
    return ", ".join(f"{name} from {v[0]:{digits}} to {v[-1]:{digits}}" for name, v in found.items())


def draw_consensus(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw disagreement between neighbours and overlap of classes over rounds, all runs in one plot."""
    title = "Consensus and orthogonality"
    shown = [key for key in SIDES if any(run.curve(key).values for run in runs)]
    notes = tuple(note for run in runs for note in _without_consensus(run))
    if not shown:
        return Drawn(title, notes=notes)
    with style.house_style():
        figure, axes = style.panels(len(shown), (4.6, 3.0))
        for axis, key in zip(axes, shown, strict=True):
            _consensus_panel(axis, runs, key)
        lines = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
        names = [name for run in runs if (name := style.label(run.name)) in lines]  # not every run is in every panel
        style.legend(figure, [lines[name] for name in names], names)
        files = style.save(figure, out_stem, formats)
    caption = (
        "Disagreement is ‖V_i − V_j‖ / ‖V_i‖, averaged over a node's neighbours; overlap is between the covariances of "
        f"different classes at a node. Both are ideally 0; {style.spread(runs, bands=len(runs) <= BANDED)}."
    )
    words = []
    for run in runs:
        if run.records:
            parts = _from_to({key: run.curve(key) for key in shown}, ".3g")
            words.append(f"{run.name}: {parts or 'not recorded'}.")
    return Drawn(title, caption, " ".join(words), files, notes)


def _consensus_panel(axis: Axes, runs: Sequence[Run], key: str) -> None:
    values = []
    for index, run in enumerate(runs):
        curve = run.curve(key)
        if curve.values:
            _plot(axis, curve, style.label(run.name), style.look(index), band=0.15 if len(runs) <= BANDED else 0)
            values += curve.values
    if min(values) > 0 and max(values) / min(values) > DECADE:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel("round")
    axis.set_ylabel(SIDES[key][0])
    axis.set_title(SIDES[key][1])
    style.whole_numbers(axis)


def _without_consensus(run: Run) -> list[str]:
    """Say which curve a run does not have, and why if that is known."""
    if not run.records:
        return [f"{run.name}: no round is recorded."]
    notes = []
    if not run.curve("disagreement").values:
        measured = any("disagreement" in node for record in run.records for node in record["nodes"])
        why = "without edges there is none" if measured else "its nodes do not send statistics"
        notes.append(f"{run.name}: no disagreement is recorded; {why}.")
    if not run.curve("overlap").values:
        notes.append(f"{run.name}: no overlap is recorded.")
    return notes


@dataclass(frozen=True)
class Point:
    """A run's accuracies by kind at one moment, and what they had cost."""

    bytes: float
    passes: float
    accuracy: dict[str, float]

    @classmethod
    def of(cls, found: Mapping[str, object], sent: float, prefix: str) -> "Point":
        """Read an evaluation, on the way or at the end, of samples whose numbers begin with `prefix`."""
        accuracy = {kind: value for kind in KINDS if math.isfinite(value := number(found.get(prefix + kind)))}
        return cls(sent, number(found.get("sample_passes")), accuracy)


def points(run: Run, *, aware: bool = False) -> list[Point]:
    """Return the evaluations of a run in order, the final one last; of the validation samples if the way is of these.

    Args:
        aware: give runs whose nodes hold all labels a label-aware accuracy too, the fused one: the mean of residuals
            over all nodes is smallest where their sum is.
    """
    sent = itertools.accumulate(number(record.get("bytes")) for record in run.records)
    found = [(total, record.get("evaluation")) for total, record in zip(sent, run.records, strict=True)]
    prefix = VALIDATION if run.validated else ""
    out = [Point.of(evaluation, total, prefix) for total, evaluation in found if isinstance(evaluation, dict)]
    last = Point.of(run.metrics, run.final("bytes_total"), prefix)
    if last.accuracy:
        out = [*(out[:-1] if out and _ends(run, out[-1], last) else out), last]
    if aware and not run.partial:
        for point in out:
            if "acc_energy" in point.accuracy:
                point.accuracy[LABEL_AWARE] = point.accuracy["acc_energy"]
    return [point for point in out if point.accuracy]


def _ends(run: Run, point: Point, last: Point) -> bool:
    """Whether an evaluation is of the states that the final one is of, which has looked at all samples."""
    if run.final("judged_round") < run.final("rounds_played"):  # the nodes were given the states of a better round
        return False
    # of trials these are means, equal to rounding only
    return math.isclose(point.bytes, last.bytes) and math.isclose(point.passes, last.passes)


def draw_accuracy(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw accuracies of all runs against cost: a column a kind of accuracy, a row a kind of cost."""
    title = "Accuracy against cost"
    aware = any(run.partial for run in runs)
    known = {run.name: points(run, aware=aware) for run in runs}
    single = {run.name: [points(trial, aware=aware) for trial in run.complete] for run in runs}
    notes = _without_accuracy(known)
    kinds = [kind for kind in KINDS if any(kind in p.accuracy for found in known.values() for p in found)]
    if sum(map(len, known.values())) < 2:  # a lone dot says nothing that the tables do not
        return Drawn(title, notes=notes)
    with style.house_style():
        # what a node alone makes of classes it never saw would flatten all the others
        scale = "col" if aware else "all"
        size = (3.3 if len(kinds) <= CROWDED else 2.7, 2.4)
        figure, axes = style.panels(2 * len(kinds), size, len(kinds), sharey=scale, sharex="row")
        shown = [(style.label(run.name) + _legend(run, aware), known[run.name], single[run.name]) for run in runs]
        for axis, (cost, kind) in zip(axes, itertools.product(COSTS, kinds), strict=True):
            _accuracy_panel(axis, shown, cost, kind)
        for axis, kind in zip(axes, kinds, strict=False):
            axis.set_title(KINDS[kind])
        style.legend(figure, *axes[0].get_legend_handles_labels())
        style.name_rows(axes, "held-out accuracy")
        files = style.save(figure, out_stem, formats)
    caption = (
        "Accuracy on held-out samples, by nearest subspace unless said otherwise, against bytes sent by all nodes "
        "together (top) and samples that went through a training step (bottom). Further up and to the left is better."
        + (ALIKE if aware and not all(run.partial for run in runs) else "")
        + (" Bold lines are means over trials, thin ones the single trials." if any(single.values()) else "")
    )
    words = " ".join(_last_point(run, found) for run in runs if (found := known[run.name]))
    return Drawn(title, caption, words, files, notes)


def _legend(run: Run, aware: bool) -> str:
    """Return what stands behind a run's name: which labels its nodes hold if that differs, and which samples judge."""
    labels = ", partial labels" if run.partial else ", all labels"
    return (labels if aware else "") + (ON_VALIDATION if run.validated else "")


def _accuracy_panel(
    axis: Axes, shown: Sequence[tuple[str, list[Point], list[list[Point]]]], cost: str, kind: str
) -> None:
    name, unit = COSTS[cost]
    for index, (run, found, single) in enumerate(shown):
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


def _without_accuracy(known: Mapping[str, list[Point]]) -> tuple[str, ...]:
    """Say which runs have no accuracy, and which only one at the end."""
    notes = [f"{name}: no accuracy is recorded." for name, found in known.items() if not found]
    single = [name for name, found in known.items() if len(found) == 1]
    if single:
        notes.append(
            f"{style.listed(single)}: only the final accuracy is known, which is too little for a curve. "
            "Set output.evaluate_every to see the way there."
        )
    return tuple(notes)


def _last_point(run: Run, found: Sequence[Point]) -> str:
    last, name = found[-1], run.name + (ON_VALIDATION if run.validated else "")
    shown = ", ".join(f"{100 * value:.1f} % with {KINDS[kind]}" for kind, value in last.accuracy.items())
    return f"{name} ends with {shown}, after {in_bytes(last.bytes)} and {in_count(last.passes)} sample passes."
