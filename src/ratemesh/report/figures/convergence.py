"""−R_i, R^c_i and the total loss over rounds, as in Figs. 1 and 7 of the paper."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Curve, Run

TERMS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "expand": (r"$-R_i$ (expansion)", -1, {"color": style.VERMILLION, "linestyle": "--", "marker": "s"}),
    "compress": (r"$R^c_i$ (compression)", 1, {"color": style.BLUE, "linestyle": "-.", "marker": "^"}),
    "total": ("total loss", 1, {"color": style.GREEN, "linestyle": "-", "marker": "o"}),
}
"""Recorded number -> its name, its sign in the loss, its look."""

WIDEST = 5
"""Largest ratio of the panels' ranges at which one scale still shows them all."""


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run: means over the nodes as lines, from the lowest to the highest node (trial) as bands."""
    shown = [run for run in runs if any(run.curve(key).known for key in TERMS)]
    notes = tuple(f"{run.name}: no loss is recorded." for run in runs if run not in shown)
    title = "Convergence"
    if not shown:
        return Drawn(title, "", "", (), notes)
    with style.house_style():
        figure, axes = style.panels(
            len(shown), style.columns(len(shown)), style.curve_size(len(shown)), sharey=_alike(shown)
        )
        for axis, run in zip(axes, shown, strict=True):
            _panel(axis, run)
        handles, labels = axes[0].get_legend_handles_labels()
        style.legend(figure, handles, labels)
        style.name_rows(axes, "loss")
        files = style.save(figure, out_stem, formats)
    caption = (
        f"Terms of the local objective by round: {style.spread(shown)}. "
        "Features expand as a whole while −R_i falls, classes are compressed while R^c_i falls."
    )
    return Drawn(title, caption, " ".join(_in_words(run) for run in shown), files, notes)


def _panel(axis: Axes, run: Run) -> None:
    for key, (name, sign, look) in TERMS.items():
        curve = run.curve(key)
        axis.fill_between(
            curve.rounds, _signed(curve.low, sign), _signed(curve.high, sign), color=look["color"], alpha=0.18, lw=0
        )
        axis.plot(
            curve.rounds, _signed(curve.mean, sign), label=name, markevery=style.sparse(len(curve.rounds)), **look
        )
    axis.axhline(0, color="0.6", linewidth=0.6)
    axis.set_title(style.label(run.name))
    axis.set_xlabel("round")
    style.whole_numbers(axis)


def _signed(values: Sequence[float], sign: float) -> list[float]:
    return [sign * value for value in values]


def _alike(runs: Sequence[Run]) -> bool:
    """Whether one scale suits all runs: a diverged one must not flatten the others."""
    spans = []
    for run in runs:
        values = [sign * v for key, (_, sign, _) in TERMS.items() for v in run.curve(key).mean if math.isfinite(v)]
        spans.append(max(values) - min(values))
    return max(spans) <= WIDEST * min(spans)


def _in_words(run: Run) -> str:
    """Return first and last values of a run."""
    parts = []
    for key, (_, sign, _) in TERMS.items():
        if (curve := run.curve(key)).known:
            parts.append(f"{_plain_name(key)} {_ends(curve, sign)}")
    return f"{run.name}, rounds {run.records[0]['round']} to {run.records[-1]['round']}: {', '.join(parts)}."


def _plain_name(key: str) -> str:
    return {"expand": "minus R", "compress": "R^c", "total": "total loss"}[key]


def _ends(curve: Curve, sign: float) -> str:
    known = [sign * value for value in curve.mean if math.isfinite(value)]
    return f"from {known[0]:.1f} to {known[-1]:.1f}"
