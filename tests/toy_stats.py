"""What tests need of statistics: of no samples, of some classes only; features node by node, and metrics of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.metrics import classes


def no_samples(num_classes: int, d: int, dtype: torch.dtype = torch.float32) -> ClassStats:
    """Return the neutral element of `+`."""
    V = torch.zeros(num_classes, d, d, dtype=dtype)
    return ClassStats.without_means(V, V.new_zeros(num_classes))


def keep(stats: ClassStats, labels: Iterable[int]) -> ClassStats:
    """Return the statistics of the samples with these labels; the other classes become classes without samples."""
    kept = torch.zeros_like(stats.m)
    kept[sorted(labels)] = 1
    return replace(stats, m=stats.m * kept).scaled(1)


def by_node(Z: Tensor | Sequence[Tensor], y: Tensor | Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return an entry a node of features (m, d) or (N, m, d), or of a list; labels (m,) go to every node."""
    features = [Z] if isinstance(Z, Tensor) and Z.ndim == 2 else list(Z)
    return features, [y] * len(features) if isinstance(y, Tensor) else list(y)


def wccr(Z, y, **options):
    return classes.wccr(*by_node(Z, y), **options)


def iidr(Z, y, **options):
    return classes.iidr(*by_node(Z, y), **options)


def class_mean_cosine(Z, y):
    return classes.class_mean_cosine(*by_node(Z, y))
