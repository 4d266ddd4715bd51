"""Singular values of the features, overall and by class, as in Fig. 3 of the paper."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.metrics.geometry import stats_singular_values
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Features, Run
from ratemesh.threads import pinned


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run: one line a class, and one for all classes together."""
    title = "Singular values"
    kept = [(run.sample, found) for run in runs if (found := _source(run)) is not None]
    notes = tuple(
        f"{run.name}: no features are kept after training, so there are no singular values."
        for run in runs
        if _source(run) is None
    )
    if not kept:
        return Drawn(title, "", "", (), notes)
    files = save_panels(kept, style.columns(len(kept)), out_stem, formats)
    caption = (
        "Singular values of the training features of all nodes pooled, after training. Diverse and discriminative "
        "features have about d / K large values a class (dotted), and of all classes together about d. "
        "Every panel has its own scale." + style.sampled(runs)
    )
    return Drawn(title, caption, " ".join(_in_words(*entry) for entry in kept), files, notes)


def save_panels(
    kept: Sequence[tuple[str, Features | ClassStats]],
    across: int,
    stem: Path,
    formats: Sequence[str] = style.FORMATS,
) -> tuple[Path, ...]:
    """Draw a panel for every name and what its singular values come from, in rows of at most `across`."""
    with style.house_style():
        figure, axes = style.panels(len(kept), across, style.curve_size(len(kept)))
        for axis, (name, source) in zip(axes, kept, strict=True):
            panel(axis, source)
            axis.set_title(style.label(name))
        style.legend(figure, *axes[0].get_legend_handles_labels())
        style.name_rows(axes, "singular value")
        return style.save(figure, stem, formats)


def _source(run: Run) -> Features | ClassStats | None:
    """Return what singular values come from: features that were kept, or the statistics of a run under way."""
    return run.stats if run.features is None else run.features


def singular_values(source: Features | ClassStats) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the singular values (d,) of all features, and by class, as many as the class has samples."""
    stats = source if isinstance(source, ClassStats) else _stats(source)
    with pinned(1):  # matrices of this size lose more to waiting threads than they gain
        overall, by_class = stats_singular_values(stats)
    counts = stats.m.long().tolist()
    return overall[: sum(counts)], {k: by_class[k][:count] for k, count in enumerate(counts) if count}


def _stats(features: Features) -> ClassStats:
    return ClassStats.of(features.Z.double(), features.y, int(features.y.max()) + 1, unit=False)


def panel(axis: Axes, source: Features | ClassStats) -> None:
    """Plot the singular values of every class and of all classes, counted from 1."""
    overall, by_class = singular_values(source)
    for place, values in enumerate(by_class.values()):
        name = "one class" if place == 0 else None
        dot = "." if len(values) == 1 else None  # a line needs two points to be seen
        axis.plot(_index(values), values.tolist(), color=style.BLUE, alpha=0.6, lw=0.9, marker=dot, label=name)
    axis.plot(_index(overall), overall.tolist(), color=style.VERMILLION, lw=2, ls="--", label="all classes together")
    d = source.d if isinstance(source, ClassStats) else source.Z.shape[1]
    axis.axvline(d / len(by_class), color="0.35", linestyle=":", lw=1.2, label="d / K")
    axis.set_xlabel("index")
    style.whole_numbers(axis)
    axis.set_xlim(0, max(2, d))
    axis.set_ylim(bottom=0)


def _index(values: Tensor) -> range:
    return range(1, len(values) + 1)


def _in_words(name: str, source: Features | ClassStats) -> str:
    overall, by_class = singular_values(source)
    large = int((overall > 0.1 * overall[0]).sum())
    return (
        f"{name}: {large} of {len(overall)} singular values of {len(by_class)} classes exceed a tenth of the largest."
    )
