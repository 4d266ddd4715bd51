"""How many directions features use: singular values and the participation ratio."""

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats


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
