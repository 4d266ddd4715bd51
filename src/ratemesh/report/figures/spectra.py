"""Singular values of the features, overall and by class, as in Fig. 3 of the paper."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.metrics.spectra import stats_singular_values
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Features, Run
from ratemesh.threads import pinned


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run: one line a class, and one for all classes together."""
    title = "Singular values"
    kept = [(run.name, run.features) for run in runs if run.features is not None]
    notes = tuple(
        f"{run.name}: no features are kept after training, so there are no singular values."
        for run in runs
        if run.features is None
    )
    if not kept:
        return Drawn(title, "", "", (), notes)
    with style.house_style():
        figure, axes = style.panels(len(kept), style.columns(len(kept)), (3.4, 2.6))
        for axis, (name, features) in zip(axes, kept, strict=True):
            panel(axis, features)
            axis.set_title(style.label(name))
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        style.name_rows(axes, "singular value")
        files = style.save(figure, out_stem, formats)
    caption = (
        "Singular values of the training features of all nodes pooled, after training. Diverse and discriminative "
        "features have about d / K large values a class (dotted), and of all classes together about d. "
        "Every panel has its own scale."
    )
    return Drawn(title, caption, " ".join(_in_words(name, features) for name, features in kept), files, notes)


def singular_values(features: Features) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the singular values (d,) of all features, and by class, as many as the class has samples."""
    K = int(features.y.max()) + 1
    stats = ClassStats.of(features.Z.double(), features.y, K, unit=False)
    with pinned(1):  # matrices of this size lose more to waiting threads than they gain
        overall, by_class = stats_singular_values(stats)
    counts = stats.m.long().tolist()
    return overall[: len(features.Z)], {k: by_class[k][: counts[k]] for k in range(K) if counts[k]}


def panel(axis: Axes, features: Features) -> None:
    """Plot the singular values of every class and of all classes, counted from 1."""
    overall, by_class = singular_values(features)
    for place, values in enumerate(by_class.values()):
        name = "one class" if place == 0 else None
        dot = "." if len(values) == 1 else None  # a line needs two points to be seen
        axis.plot(_index(values), values.tolist(), color=style.BLUE, alpha=0.6, lw=0.9, marker=dot, label=name)
    axis.plot(_index(overall), overall.tolist(), color=style.VERMILLION, lw=2, ls="--", label="all classes together")
    d = features.Z.shape[1]
    axis.axvline(d / len(by_class), color="0.35", linestyle=":", lw=1.2, label="d / K")
    axis.set_xlabel("index")
    style.whole_numbers(axis)
    axis.set_xlim(0, max(2, d))
    axis.set_ylim(bottom=0)


def _index(values: Tensor) -> range:
    return range(1, len(values) + 1)


def _in_words(name: str, features: Features) -> str:
    overall, by_class = singular_values(features)
    large = int((overall > 0.1 * overall[0]).sum())
    return (
        f"{name}: {large} of {len(overall)} singular values of {len(by_class)} classes exceed a tenth of the largest."
    )
