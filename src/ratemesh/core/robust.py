"""Neighbours that lie: what a majority says of a class, instead of what each one says (beyond the paper).

Statistics can be well formed and false: another class's, or turned away. The mean follows any single lie as far as it
goes; a median or a trimmed mean does not, as long as liars are fewer than half of the neighbours that hold the class.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats

Robust = Literal["off", "median", "trimmed"]


def majority(neighbours: Sequence[ClassStats], how: Robust, drop: int = 1) -> list[ClassStats]:
    """Give every neighbour the statistics that the neighbours together stand for, class by class.

    The sums of Algorithm 1 over neighbours stay as they are; only what is summed is no longer one peer's word.

    Args:
        how: "median", entry by entry; "trimmed", the mean without those farthest from the median, which is still a mean
            of second moments; "off" changes nothing.
        drop: trimmed: how many are left out of a class, never half of them or more.
    """
    if how == "off" or not neighbours:
        return list(neighbours)
    held = torch.stack([s.held for s in neighbours])  # (n, K)
    V = centre(torch.stack([s.V for s in neighbours]), held, how, drop)
    mu = centre(torch.stack([s.mu for s in neighbours]), held, how, drop)
    return [ClassStats(V * s.held[:, None, None], mu * s.held[:, None], s.m) for s in neighbours]


def centre(values: Tensor, held: Tensor, how: Robust, drop: int) -> Tensor:
    """Return the centre (K, ...) of values (n, K, ...) over those that are held (n, K); zero where nobody holds."""
    shape, flat = values.shape[1:], values.flatten(2)
    median = _median(flat, held)
    if how == "median":
        return median.reshape(shape)
    far = (flat - median).norm(dim=2).masked_fill(~held, torch.inf)  # (n, K)
    n = held.sum(0)
    kept = n - torch.minimum(torch.full_like(n, drop), (n - 1).clamp(min=0) // 2)
    weight = (far.argsort(dim=0, stable=True).argsort(dim=0) < kept).to(flat.dtype)  # those without the class sort last
    mean = torch.einsum("nk,nkx->kx", weight, flat) / kept.clamp(min=1).to(flat.dtype)[:, None]
    return mean.reshape(shape)


def _median(flat: Tensor, held: Tensor) -> Tensor:
    """Return the median (K, x) of (n, K, x) over those held; of an even number, the mean of the two in the middle."""
    ordered = flat.masked_fill(~held[..., None], torch.inf).sort(0).values
    n = held.sum(0)
    low, high = ((n - 1).clamp(min=0) // 2), n // 2
    places = torch.stack([low, torch.minimum(high, (n - 1).clamp(min=0))])[..., None].expand(2, *flat.shape[1:])
    middle = ordered.gather(0, places).mean(0)
    return torch.where((n > 0)[:, None], middle, torch.zeros_like(middle))
