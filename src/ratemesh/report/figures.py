"""Figures, drawn from run folders only."""

import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: files are written, no window is opened

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.experiment.files import read_tensors
from ratemesh.experiment.records import RunFolder

SAMPLES = 400
"""Rows of a cosine matrix: more would be finer than a screen."""


def draw_structure(folder: Path, out: Path) -> None:
    """Draw cosine similarities before and after training, and singular values overall and by class.

    Shown is the paper's Z: training samples of all nodes, each as its own node sees it, sorted by class and then by
    node. Blocks off the diagonal are classes that overlap; stripes inside a block are nodes that disagree.
    """
    run = RunFolder.existing(folder)
    if not run.features.exists():
        raise InputError(f"'{folder}' must hold features to draw from; run with output.features above 0.")
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained", width_ratios=(1, 1, 1.15))
    files = ((run.initial_features, "before training"), (run.features, "after training"))
    for axis, (path, title) in zip(axes, files, strict=False):
        image = _cosine(axis, *_sorted_rows(read_tensors(path)), title)
    figure.colorbar(image, ax=axes[:2], shrink=0.8, label="cosine similarity")
    _spectra(axes[2], read_tensors(run.features))
    figure.savefig(out, dpi=150)
    plt.close(figure)


def _sorted_rows(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return training features (n, d) sorted by class, then node, thinned out evenly, and their labels (n,)."""
    Z, y, node = (tensors[name] for name in ("Z_train", "y_train", "node_train"))
    order = torch.argsort(y * (int(node.max()) + 1) + node, stable=True)
    kept = order[torch.linspace(0, len(y) - 1, min(len(y), SAMPLES)).round().long()]
    return Z[kept], y[kept]


def _cosine(axis: Axes, Z: Tensor, y: Tensor, title: str) -> matplotlib.image.AxesImage:
    unit = torch.nn.functional.normalize(Z, dim=1)
    image = axis.imshow((unit @ unit.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    starts = [0, *(torch.nonzero(y.diff()).flatten() + 1).tolist(), len(y)]
    for edge in starts[1:-1]:
        axis.axhline(edge - 0.5, color="black", linewidth=0.5)
        axis.axvline(edge - 0.5, color="black", linewidth=0.5)
    middle = [(a + b - 1) / 2 for a, b in itertools.pairwise(starts)]
    labels = [str(int(y[a])) for a in starts[:-1]]
    axis.set_xticks(middle, labels)
    axis.set_yticks(middle, labels)
    axis.tick_params(length=0)
    axis.set_title(title)
    axis.set_xlabel("class (training samples of all nodes)")
    return image


def _spectra(axis: Axes, tensors: dict[str, Tensor]) -> None:
    """Plot singular values of all nodes' features pooled, overall and of every class."""
    Z, y = tensors["Z_train"], tensors["y_train"]
    classes = y.unique().tolist()
    for k in classes:
        values = torch.linalg.svdvals(Z[y == k])
        axis.plot(
            values.numpy(), color="#0072B2", alpha=0.6, linewidth=1, label="one class" if k == classes[0] else None
        )
    overall = torch.linalg.svdvals(Z)
    axis.plot(overall.numpy(), color="#D55E00", linewidth=2, linestyle="--", label="all classes")
    axis.axvline(Z.shape[1] / len(classes), color="0.5", linestyle=":", linewidth=1, label="d / K")
    axis.set_title("singular values, after training")
    axis.set_xlabel("index")
    axis.set_xlim(0, Z.shape[1] - 1)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
