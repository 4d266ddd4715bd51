"""The theorems in four panels: singular values, Jensen gap, consensus, and the gradient norm beside its bound."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from torch import Tensor

from ratemesh.report.figures import style
from ratemesh.studies.theory_checks import (
    CONSENSUS,
    GAP,
    Bounded,
    Solution,
    Solved,
    running_minimum,
    singular_values,
)

FIRST: dict[str, Any] = {"color": style.VERMILLION, "linestyle": "-"}
THIRD: dict[str, Any] = {"color": style.BLUE, "linestyle": "--"}
QUIET: dict[str, Any] = {"color": "0.45", "linestyle": ":", "linewidth": 1}

BAND: dict[str, Any] = {"color": "0.85", "linewidth": 7, "solid_capstyle": "butt", "label": "predicted"}
START: dict[str, Any] = {"color": "0.45", "marker": "x", "label": "start, Theorem 1"}
DISC: dict[str, Any] = {"color": style.VERMILLION, "marker": "o", "ms": 6.5, "fillstyle": "none", "label": "Theorem 1"}
SQUARE: dict[str, Any] = {"color": style.BLUE, "marker": "s", "ms": 2.8, "label": "Theorem 3"}

FLOOR = 1e-16
"""What rounding leaves of a gap that is closed; a logarithmic axis has no zero."""


def draw_theory(stem: Path, rank: int, iid: Solved, clustered: Solved, slow: Sequence[Bounded]) -> tuple[Path, ...]:
    """Draw the figure as stem.png and stem.svg.

    Args:
        rank: d_k.
        iid, clustered: the runs of Theorems 1 and 3.
        slow: the runs of Theorem 2, the shortest first.
    """
    with style.house_style():
        figure, axes = style.panels(4, (3.6, 2.5))
        _spectra(axes[0], rank, iid, clustered)
        gaps = (iid.jensen, clustered.jensen)
        _over_rounds(axes[1], gaps, GAP, r"Jensen gap $R-\Sigma_p R_p$ (nats)", "(b) Jensen gap closes")
        apart = (iid.consensus, clustered.consensus)
        _over_rounds(axes[2], apart, CONSENSUS, r"max $\|V_i-V_j\|/\|V_i\|$", "(c) Nodes agree")
        _gradients(axes[3], slow)
        return style.save(figure, stem, ("png", "svg"))


def _spectra(axis: Axes, rank: int, iid: Solved, clustered: Solved) -> None:
    """Plot the leading singular values of every class side by side, over √(m_k/d_k): 1 up to d_k and 0 beyond."""
    K, d = iid.end.stats[0].num_classes, iid.end.stats[0].d
    shown = min(d, rank + 2)
    place = [[k * (shown + 1.5) + p for p in range(shown)] for k in range(K)]
    for at in place:
        axis.plot([at[0] - 0.6, at[rank - 1] + 0.6], [1, 1], **BAND)
        axis.plot([p for p in at[rank:] for p in (p - 0.6, p + 0.6)], [0] * (2 * (shown - rank)), **BAND)
    for solution, look in ((iid.start, START), (iid.end, DISC), (clustered.end, SQUARE)):
        for k, at in enumerate(place):
            axis.plot(at, _relative(solution, k, rank)[:shown].tolist(), linestyle="", **look)
    axis.set_xticks([sum(at) / shown for at in place], [f"class {k}" for k in range(K)])
    axis.grid(False, axis="x")
    axis.set_ylim(-0.15, 1.9)
    axis.set_ylabel(r"$\sigma_p(Z_k)\,/\sqrt{m_k/d_k}$")
    axis.set_title(rf"(a) First {shown} singular values, $d_k = {rank}$")
    named = {str(line.get_label()): line for line in axis.get_lines()}  # one entry, however many classes
    axis.legend(list(named.values()), list(named), loc="upper center", ncols=2, handletextpad=0.4, columnspacing=1.2)


def _relative(solution: Solution, k: int, rank: int) -> Tensor:
    m = sum(int((y == k).sum()) for y in solution.y)
    return singular_values(solution, k) * math.sqrt(rank / m)


def _over_rounds(axis: Axes, curves: Sequence[Sequence[float]], tolerance: float, name: str, title: str) -> None:
    for values, look, label in zip(curves, (FIRST, THIRD), ("Theorem 1", "Theorem 3"), strict=True):
        axis.plot([max(v, FLOOR) for v in values], **look, label=label)
    axis.axhline(tolerance, **QUIET, label="tolerance")
    axis.set_yscale("log")
    axis.set_xlabel("round $t$")
    axis.set_ylabel(name)
    axis.set_title(title)
    axis.legend(loc="upper right")


def _gradients(axis: Axes, slow: Sequence[Bounded]) -> None:
    """Plot the longest run's ‖∇L‖² and the printed bound; and every run's minimum with its own bound."""
    pace, seen, bound = slow[-1]
    t = range(1, pace.rounds + 1)
    axis.plot(t, seen.gradient2, color="0.75", linewidth=3, label=r"$\|\nabla\mathcal{L}\|^2$, longest run")
    axis.plot(t, running_minimum(seen.gradient2), **FIRST, label="its running minimum")
    axis.plot(t, bound, **THIRD, label=r"printed bound, $L$ as seen")
    T = [run.pace.rounds for run in slow]
    ends = [min(run.seen.gradient2) for run in slow]
    axis.plot(T, ends, "kD", fillstyle="none", label=r"minima of runs with $\eta\propto 1/\sqrt{TT'}$")
    axis.plot(T, [run.bound[-1] for run in slow], "k^:", ms=5, label=r"their bounds, $O(1/\sqrt{TT'})$")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("round $t$, or length of the run $T$")
    axis.set_ylabel("squared gradient norm")
    axis.set_title("(d) Theorem 2: gradients fall as bounded")
    _room_for_legend(axis, min(map(min, (seen.gradient2, bound, ends))))


def _room_for_legend(axis: Axes, lowest: float) -> None:
    """Put the legend under all curves of a logarithmic axis, and lower its end until none reaches into it."""
    legend = axis.legend(loc="lower left", handlelength=1.6, labelspacing=0.3)
    top = axis.get_ylim()[1]
    axis.figure.draw_without_rendering()  # type: ignore[union-attr]
    part = 1.15 * legend.get_window_extent().height / axis.get_window_extent().height
    # the curves get what the legend leaves: log(lowest) lies at `part` of the axis
    axis.set_ylim(top * (lowest / top) ** (1 / (1 - part)), top)
