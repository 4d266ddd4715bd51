"""The structure of features: cosines between samples, and singular values, overall and by class."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import stats_singular_values
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Features, Run, open_run
from ratemesh.threads import pinned

SAMPLES = 400
"""Rows of a matrix: more would be finer than a screen."""

LABELS = 30
"""Class labels that fit along an axis."""

ROOMY = 12
"""Class labels up to which they have their usual size, and lines between classes are as dark."""

FRAMED = 20
"""Classes up to which lines are drawn between them; more lines would hide the cosines."""

LETTERS = 10
"""Letters of a class's name."""

DIVERGING = LinearSegmentedColormap.from_list(
    "cosine", [(0.0, "#B34700"), (0.25, "#F0A050"), (0.5, "#FFFFFF"), (0.75, "#3F7FB5"), (1.0, "#04203F")]
)
"""Orange below zero, white at zero, blue above; in a grey print +1 is darker than −1."""


@dataclass(frozen=True)
class Matrix:
    """What one panel shows: cosines C (n, n) of samples sorted by class, their labels y (n,), a title, names."""

    C: Tensor
    y: Tensor
    title: str
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, features: Features, title: str, classes: tuple[str, ...] = ()) -> "Matrix":
        """Return the cosines of samples sorted by class, then node, thinned out evenly."""
        order = torch.argsort(features.y * (int(features.node.max()) + 1) + features.node, stable=True)
        kept = order[torch.linspace(0, len(order) - 1, min(len(order), SAMPLES)).round().long()]
        unit = normalize(features.Z[kept], dim=1)
        return cls((unit @ unit.T).clamp(-1, 1), features.y[kept], title, classes)

    def label(self, k: int) -> str:
        """Return what stands for class k along an axis."""
        name = self.classes[k] if k < len(self.classes) else str(k)
        return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"

    @property
    def different(self) -> Tensor:
        """Which pairs are of two samples, (n, n)."""
        return ~torch.eye(len(self.C), dtype=torch.bool)

    def in_words(self) -> str:
        """Describe the matrix."""
        classes, same = len(self.y.unique()), self.y[:, None] == self.y
        parts = [f"{self.title}: {len(self.y)} samples of {classes} class{'es' if classes > 1 else ''}"]
        for name, pairs in (("within", same & self.different), ("between", ~same)):
            value = float(self.C[pairs].abs().mean())
            if math.isfinite(value):  # NaN where there is no such pair
                parts.append(f"mean absolute cosine {name} classes {value:.2f}")
        return ", ".join(parts) + "."


def draw_cosine(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw cosines between samples, sorted by class, as in Figs. 2, 5 and 8 to 10 of the paper.

    A panel a run after training; a start that several runs share is drawn once.
    """
    title = "Cosine similarity"
    kept = [run for run in runs if run.features is not None or run.initial is not None]
    notes = tuple(f"{run.name}: no features are kept, so there is no cosine matrix." for run in runs if run not in kept)
    matrices = _matrices(kept)
    if not matrices:
        return Drawn(title, notes=notes)
    files = _save_cosines(matrices, 4 if len(matrices) == 4 else 3, out_stem, formats)
    caption = (
        "Training samples of all nodes, each as its own node sees it, sorted by class and inside a class by node. "
        "Blocks off the diagonal are classes that overlap; stripes inside a block are nodes that disagree; blocks on "
        "the diagonal in a single dark tone are classes that collapsed to a point. Values below zero are orange."
        + style.sampled(runs)
    )
    return Drawn(title, caption, " ".join(matrix.in_words() for matrix in matrices), files, notes)


def _save_cosines(
    matrices: Sequence[Matrix], across: int, stem: Path, formats: Sequence[str] = style.FORMATS
) -> tuple[Path, ...]:
    """Draw matrices in rows of at most `across`, with one bar of colours for all."""
    with style.house_style():
        figure, axes = style.panels(len(matrices), (3.2, 3.3), across)
        for axis, shown in zip(axes, matrices, strict=True):
            image = _cosine_panel(axis, shown)
        figure.colorbar(image, ax=axes, shrink=0.7, pad=0.015, label="cosine similarity", ticks=[-1, -0.5, 0, 0.5, 1])
        return style.save(figure, stem, formats)


def _matrices(runs: Sequence[Run]) -> list[Matrix]:
    """Return the starts that differ, then every run's end."""
    starts: list[tuple[Run, Features]] = []
    for run in runs:
        if run.initial is not None and not any(run.initial.equals(start) for _, start in starts):
            starts.append((run, run.initial))
    before = [
        Matrix.of(
            features, "before training" if len(starts) == 1 else f"{style.label(run.sample)}: before", run.classes
        )
        for run, features in starts
    ]
    ends = [(run, run.features) for run in runs if run.features is not None]
    return before + [Matrix.of(Z, f"{style.label(run.sample)}: after", run.classes) for run, Z in ends]


def _cosine_panel(axis: Axes, shown: Matrix) -> AxesImage:
    """Draw one matrix with its class boundaries and the numbers that a grey print would hide."""
    y = shown.y
    image = axis.imshow(shown.C.numpy(), cmap=DIVERGING, vmin=-1, vmax=1, interpolation="nearest")
    starts = [0, *(torch.nonzero(y.diff()).flatten() + 1).tolist(), len(y)]
    width = 0.5 if len(starts) <= ROOMY + 1 else 0.25
    for edge in starts[1:-1] if len(starts) <= FRAMED else []:
        axis.axhline(edge - 0.5, color="black", linewidth=width)
        axis.axvline(edge - 0.5, color="black", linewidth=width)
    every = -(-(len(starts) - 1) // LABELS)
    middle = [(a + b - 1) / 2 for a, b in itertools.pairwise(starts)][::every]
    labels = [shown.label(int(y[a])) for a in starts[:-1]][::every]
    size = None if len(labels) <= ROOMY else 5.5
    axis.set_xticks(middle, labels, rotation=90 if max(map(len, labels)) > 2 else 0, fontsize=size)
    axis.set_yticks(middle, labels, fontsize=size)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set_title(shown.title)
    if len(y) > 1:
        cosines = shown.C[shown.different]
        lowest = f"{float(cosines.min()):.2f}".replace("-", "−")
        axis.set_xlabel(f"class   ({100 * float((cosines < 0).float().mean()):.0f} % below 0, lowest {lowest})")
    return image


def draw_spectra(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw singular values, a panel a run: one line a class, and one for all together, as in Fig. 3 of the paper."""
    title = "Singular values"
    # of a run under way there are statistics, but no features yet
    found = [(run, run.stats if run.features is None else run.features.stats()) for run in runs]
    kept = [(run.sample, stats) for run, stats in found if stats is not None]
    lacking = [run.name for run, stats in found if stats is None]
    notes = tuple(f"{name}: no features are kept after training, so there are no singular values." for name in lacking)
    if not kept:
        return Drawn(title, notes=notes)
    files = _save_spectra(kept, None, out_stem, formats)
    caption = (
        "Singular values of the training features of all nodes pooled, after training. Diverse and discriminative "
        "features have about d / K large values a class (dotted), and of all classes together about d. "
        "Every panel has its own scale." + style.sampled(runs)
    )
    words = []
    for name, stats in kept:
        overall, by_class = _singular_values(stats)
        large = f"{int((overall > 0.1 * overall[0]).sum())} of {len(overall)} singular values"
        words.append(f"{name}: {large} of {len(by_class)} classes exceed a tenth of the largest.")
    return Drawn(title, caption, " ".join(words), files, notes)


def _save_spectra(
    kept: Sequence[tuple[str, ClassStats]], across: int | None, stem: Path, formats: Sequence[str] = style.FORMATS
) -> tuple[Path, ...]:
    """Draw a panel for every name and its statistics, in rows as `style.panels` makes them."""
    with style.house_style():
        figure, axes = style.panels(len(kept), style.curve_size(len(kept)), across)
        for axis, (name, stats) in zip(axes, kept, strict=True):
            _spectra_panel(axis, stats)
            axis.set_title(style.label(name))
        style.legend(figure, *axes[0].get_legend_handles_labels())
        style.name_rows(axes, "singular value")
        return style.save(figure, stem, formats)


def _singular_values(stats: ClassStats) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the singular values (d,) of all features, and by class, as many as the class has samples."""
    with pinned(1):  # matrices of this size lose more to waiting threads than they gain
        overall, by_class = stats_singular_values(stats)
    counts = stats.m.long().tolist()
    return overall[: sum(counts)], {k: by_class[k][:count] for k, count in enumerate(counts) if count}


def _spectra_panel(axis: Axes, stats: ClassStats) -> None:
    """Plot the singular values of every class and of all classes, counted from 1."""
    overall, by_class = _singular_values(stats)
    for place, values in enumerate(by_class.values()):
        name = "one class" if place == 0 else None
        dot = "." if len(values) == 1 else None  # a line needs two points to be seen
        index = range(1, len(values) + 1)
        axis.plot(index, values.tolist(), color=style.BLUE, alpha=0.6, lw=0.9, marker=dot, label=name)
    index = range(1, len(overall) + 1)
    axis.plot(index, overall.tolist(), color=style.VERMILLION, lw=2, ls="--", label="all classes together")
    axis.axvline(stats.d / len(by_class), color="0.35", linestyle=":", lw=1.2, label="d / K")
    axis.set_xlabel("index")
    style.whole_numbers(axis)
    axis.set_xlim(0, max(2, stats.d))
    axis.set_ylim(bottom=0)


def draw_structure(folder: Path, out: Path) -> None:
    """Draw cosines before and after training, and singular values, of the run in `folder` to the file `out`."""
    run = open_run(folder)
    if run.features is None or run.initial is None:
        raise InputError(f"'{folder}' must hold features to draw from; run with output.features above 0.")
    with style.house_style():
        figure, axes = style.panels(3, (4.3, 4.2), width_ratios=(1, 1, 1.15))
        for axis, features, title in zip(axes, (run.initial, run.features), ("before", "after"), strict=False):
            image = _cosine_panel(axis, Matrix.of(features, f"{title} training", run.classes))
        figure.colorbar(image, ax=axes[:2], shrink=0.8, label="cosine similarity")
        _spectra_panel(axes[2], run.features.stats())
        axes[2].set_title("singular values, after training")
        axes[2].legend()
        style.save(figure, out.with_suffix(""), [out.suffix.removeprefix(".")])


def draw_grids(runs: Mapping[str, Run], stem: Path) -> tuple[Path, ...]:
    """Draw several runs after training side by side: STEM-cosine as the paper's Fig. 2, STEM-spectra as its Fig. 3.

    Args:
        runs: by the title of their panel; those that kept no features are left out.
    """
    kept = [(title, run.features) for title, run in runs.items() if run.features is not None]
    if not kept:
        return ()
    across = 4 if len(kept) > 3 else 3
    matrices = [Matrix.of(features, title, runs[title].classes) for title, features in kept]
    spectra = [(title, features.stats()) for title, features in kept]
    return (
        *_save_cosines(matrices, across, stem.with_name(f"{stem.name}-cosine")),
        *_save_spectra(spectra, across, stem.with_name(f"{stem.name}-spectra")),
    )
