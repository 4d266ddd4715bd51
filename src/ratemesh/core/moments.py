"""Second moments of unit vectors as a set: symmetric, positive semi-definite, trace 1."""

import torch
from torch import Tensor


def nearest_moments(V: Tensor) -> Tensor:
    """Return the nearest symmetric positive semi-definite matrices of trace 1, in Frobenius norm.

    The eigenvectors stay and the eigenvalues are projected onto the simplex. The set is convex, so a projection brings
    an estimate closer to every second moment, the true one included: it can only lower the error of a lossy message.

    Args:
        V: (..., d, d) finite matrices; of each the symmetric part counts.

    >>> nearest_moments(torch.tensor([[1.2, 0.0], [0.0, -0.1]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    values, U = torch.linalg.eigh((V + V.mT) / 2)
    near: Tensor = (U * _on_simplex(values)[..., None, :]) @ U.mT
    return (near + near.mT) / 2


def _on_simplex(values: Tensor) -> Tensor:
    """Return the nearest points (..., d) with entries ≥ 0 that add to 1: one shift for all, what is negative is 0."""
    falling = values.sort(dim=-1, descending=True).values
    shifts = (falling.cumsum(-1) - 1) / torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    last = (falling > shifts).sum(-1, keepdim=True) - 1  # the largest number of entries that stay positive
    return (values - shifts.gather(-1, last.clamp(min=0))).clamp(min=0)
