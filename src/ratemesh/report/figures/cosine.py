"""Cosine similarities between samples, sorted by class, as in Figs. 2, 5 and 8 to 10 of the paper."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Features, Run

SAMPLES = 400
"""Rows of a matrix: more would be finer than a screen."""

LABELS = 12
"""Class labels that fit along an axis."""

FRAMED = 40
"""Classes up to which lines are drawn between them; lines between a hundred would hide the cosines."""

DIVERGING = LinearSegmentedColormap.from_list(
    "cosine", [(0.0, "#B34700"), (0.25, "#F0A050"), (0.5, "#FFFFFF"), (0.75, "#3F7FB5"), (1.0, "#04203F")]
)
"""Orange below zero, white at zero, blue above; in a grey print +1 is darker than −1."""


@dataclass(frozen=True)
class Matrix:
    """What one panel shows: cosines C (n, n) of samples sorted by class, their labels y (n,), a title."""

    C: Tensor
    y: Tensor
    title: str

    @property
    def off_diagonal(self) -> Tensor:
        """Cosines of different samples."""
        return self.C[~torch.eye(len(self.C), dtype=torch.bool)]

    @property
    def between(self) -> float:
        """Mean |cosine| of samples of different classes; NaN with one class."""
        return float(self.C[self.y[:, None] != self.y].abs().mean())

    @property
    def within(self) -> float:
        """Mean |cosine| of different samples of the same class; NaN with single samples."""
        same = (self.y[:, None] == self.y) & ~torch.eye(len(self.y), dtype=torch.bool)
        return float(self.C[same].abs().mean())


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run after training; a start that several runs share is drawn once."""
    title = "Cosine similarity"
    notes = tuple(f"{run.name}: no features are kept, so there is no cosine matrix." for run in runs if not _kept(run))
    matrices = _matrices([run for run in runs if _kept(run)])
    if not matrices:
        return Drawn(title, "", "", (), notes)
    files = save_panels(matrices, 4 if len(matrices) == 4 else 3, out_stem, formats)
    caption = (
        "Training samples of all nodes, each as its own node sees it, sorted by class and inside a class by node. "
        "Blocks off the diagonal are classes that overlap; stripes inside a block are nodes that disagree; blocks on "
        "the diagonal in a single dark tone are classes that collapsed to a point. Values below zero are orange."
        + style.sampled(runs)
    )
    return Drawn(title, caption, " ".join(in_words(matrix) for matrix in matrices), files, notes)


def save_panels(
    matrices: Sequence[Matrix], across: int, stem: Path, formats: Sequence[str] = style.FORMATS
) -> tuple[Path, ...]:
    """Draw matrices in rows of at most `across`, with one bar of colours for all."""
    with style.house_style():
        figure, axes = style.panels(len(matrices), across, (3.2, 3.3))
        for axis, shown in zip(axes, matrices, strict=True):
            image = panel(axis, shown)
        figure.colorbar(image, ax=axes, shrink=0.7, pad=0.015, label="cosine similarity", ticks=[-1, -0.5, 0, 0.5, 1])
        return style.save(figure, stem, formats)


def _kept(run: Run) -> bool:
    return run.features is not None or run.initial is not None


def _matrices(runs: Sequence[Run]) -> list[Matrix]:
    """Return the starts that differ, then every run's end."""
    starts: list[tuple[Features, list[str]]] = []
    for run in runs:
        if run.initial is not None:
            same = [names for features, names in starts if _equal(features, run.initial)]
            same[0].append(run.sample) if same else starts.append((run.initial, [run.sample]))
    before = [
        matrix(features, "before training" if len(starts) == 1 else f"{style.label(names[0])}: before")
        for features, names in starts
    ]
    ends = [(run.sample, run.features) for run in runs if run.features is not None]
    return before + [matrix(features, f"{style.label(name)}: after") for name, features in ends]


def _equal(a: Features, b: Features) -> bool:
    return torch.equal(a.Z, b.Z) and torch.equal(a.y, b.y)


def matrix(features: Features, title: str) -> Matrix:
    """Return the cosines of samples sorted by class, then node, thinned out evenly."""
    order = torch.argsort(features.y * (int(features.node.max()) + 1) + features.node, stable=True)
    kept = order[torch.linspace(0, len(order) - 1, min(len(order), SAMPLES)).round().long()]
    unit = normalize(features.Z[kept], dim=1)
    return Matrix((unit @ unit.T).clamp(-1, 1), features.y[kept], title)


def panel(axis: Axes, shown: Matrix) -> AxesImage:
    """Draw one matrix with its class boundaries and the numbers that a grey print would hide."""
    y = shown.y
    image = axis.imshow(shown.C.numpy(), cmap=DIVERGING, vmin=-1, vmax=1, interpolation="nearest")
    starts = [0, *(torch.nonzero(y.diff()).flatten() + 1).tolist(), len(y)]
    for edge in starts[1:-1] if len(starts) <= FRAMED else []:
        axis.axhline(edge - 0.5, color="black", linewidth=0.5)
        axis.axvline(edge - 0.5, color="black", linewidth=0.5)
    every = -(-(len(starts) - 1) // LABELS)
    middle = [(a + b - 1) / 2 for a, b in itertools.pairwise(starts)][::every]
    labels = [str(int(y[a])) for a in starts[:-1]][::every]
    axis.set_xticks(middle, labels)
    axis.set_yticks(middle, labels)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set_title(shown.title)
    if len(y) > 1:
        below = shown.off_diagonal
        lowest = f"{float(below.min()):.2f}".replace("-", "−")
        axis.set_xlabel(f"class   ({100 * float((below < 0).float().mean()):.0f} % below 0, lowest {lowest})")
    return image


def in_words(shown: Matrix) -> str:
    """Describe a matrix."""
    classes = len(shown.y.unique())
    parts = [f"{shown.title}: {len(shown.y)} samples of {classes} class{'es' if classes > 1 else ''}"]
    for name, value in (("within", shown.within), ("between", shown.between)):
        if math.isfinite(value):  # NaN where there is no such pair
            parts.append(f"mean absolute cosine {name} classes {value:.2f}")
    return ", ".join(parts) + "."
