"""Disagreement between neighbours and overlap of classes over rounds, several runs in one plot."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run

SIDES = {
    "disagreement": ("disagreement of neighbours", "Do nodes agree?"),
    "overlap": ("overlap of classes", "Are classes orthogonal?"),
}

BANDED = 3
"""Runs up to which bands help; more would hide each other."""

DECADE = 20
"""Ratio of largest to smallest value from which a logarithmic scale shows more."""


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw both numbers of all runs: means over the nodes as lines, lowest to highest node (trial) as bands."""
    title = "Consensus and orthogonality"
    shown = [key for key in SIDES if any(run.curve(key).known for run in runs)]
    notes = _missing(runs)
    if not shown:
        return Drawn(title, "", "", (), notes)
    with style.house_style():
        figure, axes = style.panels(len(shown), 2, (4.6, 3.0))
        for axis, key in zip(axes, shown, strict=True):
            _panel(axis, runs, key)
        lines = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
        names = [name for run in runs if (name := style.label(run.name)) in lines]  # not every run is in every panel
        style.legend(figure, [lines[name] for name in names], names)
        files = style.save(figure, out_stem, formats)
    caption = (
        "Disagreement is ‖V_i − V_j‖ / ‖V_i‖, averaged over a node's neighbours; overlap is between the covariances of "
        f"different classes at a node. Both are ideally 0; {style.spread(runs, bands=len(runs) <= BANDED)}."
    )
    return Drawn(title, caption, " ".join(_in_words(run, shown) for run in runs if run.records), files, notes)


def _panel(axis: Axes, runs: Sequence[Run], key: str) -> None:
    lows = []
    for index, run in enumerate(runs):
        curve = run.curve(key)
        if not curve.known:
            continue
        look = style.look(index)
        if len(runs) <= BANDED:
            axis.fill_between(curve.rounds, curve.low, curve.high, color=look["color"], alpha=0.15, lw=0)
        axis.plot(
            curve.rounds, curve.mean, label=style.label(run.name), markevery=style.sparse(len(curve.rounds)), **look
        )
        lows += [value for value in curve.mean if math.isfinite(value)]
    if min(lows) > 0 and max(lows) / min(lows) > DECADE:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel("round")
    axis.set_ylabel(SIDES[key][0])
    axis.set_title(SIDES[key][1])
    style.whole_numbers(axis)


def _missing(runs: Sequence[Run]) -> tuple[str, ...]:
    """Say which run has no curve, and why if that is known."""
    notes = []
    for run in runs:
        if not run.records:
            notes.append(f"{run.name}: no round is recorded.")
            continue
        if not run.curve("disagreement").known:
            asked = any("disagreement" in node for record in run.records for node in record["nodes"])
            why = "without edges there is none" if asked else "its nodes do not send statistics"
            notes.append(f"{run.name}: no disagreement is recorded; {why}.")
        if not run.curve("overlap").known:
            notes.append(f"{run.name}: no overlap is recorded.")
    return tuple(notes)


def _in_words(run: Run, keys: Sequence[str]) -> str:
    parts = []
    for key in keys:
        known = [value for value in run.curve(key).mean if math.isfinite(value)]
        if known:
            parts.append(f"{key} from {known[0]:.3g} to {known[-1]:.3g}")
    return f"{run.name}: {', '.join(parts) or 'not recorded'}."
