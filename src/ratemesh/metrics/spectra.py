"""How many directions features use: singular values and the participation ratio."""

import torch
from torch import Tensor

from ratemesh.core.checks import check_features
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError


def singular_values(Z: Tensor) -> Tensor:
    """Return the singular values (d,) of features (m, d), largest first; zeros where m < d, so that sets compare."""
    if Z.ndim != 2 or not bool(torch.isfinite(Z).all()):
        raise InputError(f"Z must have shape (m, d) and be finite; got shape {tuple(Z.shape)}.")
    values = torch.linalg.svdvals(Z)
    return torch.cat([values, values.new_zeros(Z.shape[1] - len(values))])


def class_singular_values(Z: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Return the singular values (K, d) of every class's features; zeros for a class without samples."""
    check_features(Z, y, num_classes, unit=False)
    return torch.stack([singular_values(Z[y == k]) for k in range(num_classes)])


def stats_singular_values(stats: ClassStats) -> tuple[Tensor, Tensor]:
    """Return the singular values (d,) of all features and (K, d) of every class from statistics alone.

    σ(Z_k)² = m_k λ(V_k), so no features need to be shared; values below about 1e-4 (float32) or 1e-8 (float64) of
    the largest are rounding, because V_k holds their squares.
    """
    overall = stats.m.sum() * torch.linalg.eigvalsh(stats.mixture())
    by_class = stats.m[:, None] * torch.linalg.eigvalsh(stats.V)
    return overall.clamp(min=0).sqrt().flip(-1), by_class.clamp(min=0).sqrt().flip(-1)


def participation_ratio(V: Tensor) -> Tensor:
    """Return tr(V)² / tr(V²), (...,) for symmetric (..., d, d): r for an isotropic rank-r V, 0 for V = 0."""
    trace2 = V.diagonal(dim1=-2, dim2=-1).sum(-1).square()
    return trace2 / V.square().sum((-2, -1)).clamp(min=torch.finfo(V.dtype).tiny)
