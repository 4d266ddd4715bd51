"""Nearest-subspace classification, for one encoder or for several that look at the same sample."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError

Fusion = Literal["average", "energy"]

MOST = 30
"""Directions that a class may have by its energy, as in the code of Yu et al. (2020). Classes that do not fill few
directions yet have 95 % of their energy in half of the space; such subspaces overlap, and wider ones attract more."""

CHUNK = 2**21
"""Coordinates of samples along all classes' axes that are held at a time: no more than caches like."""


class NearestSubspace:
    """Classify by the smallest residual to a class's affine subspace μ_k + span(Φ_k).

    Φ_k are the leading principal directions of the class. With several encoders the paper averages
    the features, z' = mean_i f_i(x), fusion="average". Because covariances fix a class's subspace but
    not the position inside it, averaging partly cancels; fusion="energy" (ours) adds the residuals
    ‖(I − Φ_kΦ_kᵀ)(f_i(x) − μ_k)‖² over the encoders instead.

    Args:
        fusion: "average" (paper) or "energy".
        energy: r_k is the fewest directions that hold this part of a class's variance, at most `MOST`.
        rank: if given, r_k is this number instead; either way at most min(m_k, d) − 1.

    >>> Z = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    >>> NearestSubspace(rank=1).fit(Z, torch.tensor([0, 0, 1, 1])).predict(Z).tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, fusion: Fusion = "energy", *, energy: float = 0.95, rank: int | None = None) -> None:
        if fusion not in get_args(Fusion):
            raise InputError(f"fusion must be 'average' or 'energy'; got {fusion!r}.")
        if rank is not None and rank < 0:
            raise InputError(f"rank must not be negative; got {rank}. 0 is nearest class mean.")
        if not 0 < energy <= 1:
            raise InputError(f"energy must lie in (0, 1]; got {energy}. 0.95 keeps 95 % of the variance.")
        self.fusion = fusion
        self.rank = rank
        self.energy = energy
        self._stats: ClassStats | None = None
        self._directions: Tensor | None = None

    def fit(self, Z: Tensor, y: Tensor, num_classes: int | None = None) -> "NearestSubspace":
        """Fit on features: (m, d), or (N, m, d) of N encoders, all of them pooled; labels (m,)."""
        if num_classes is None and not len(y):
            raise InputError("y must hold labels to fit on; it is empty. Give at least one sample a class.")
        K = int(y.max()) + 1 if num_classes is None else num_classes
        parts = Z if Z.ndim == 3 else Z[None]
        return self.fit_stats(ClassStats.sum(ClassStats.of(part, y, K, unit=False) for part in parts))

    def fit_stats(self, stats: ClassStats) -> "NearestSubspace":
        """Fit on class statistics, e.g. the sum over nodes: no features need to be shared."""
        variance, axes = torch.linalg.eigh(stats.covariance())
        variance, axes = variance.flip(-1).clamp(min=0), axes.flip(-1)  # leading direction first
        keep = torch.arange(stats.d, device=stats.V.device) < self._ranks(stats, variance)[:, None]
        # A direction without variance is an arbitrary one: rounding must not add it to a class.
        keep &= variance > variance[:, :1] * stats.d * torch.finfo(variance.dtype).eps
        most = int(keep.sum(-1).max())  # of all classes: the rest of the axes would cost and say nothing
        self._stats, self._directions = stats, (axes * keep[:, None, :])[:, :, :most]
        return self

    def _ranks(self, stats: ClassStats, variance: Tensor) -> Tensor:
        most = torch.clamp(stats.m - 1, min=0, max=stats.d - 1)
        if self.rank is not None:
            return torch.clamp(most, max=self.rank)
        part = variance.cumsum(-1) / variance.sum(-1, keepdim=True).clamp(min=1e-30)
        return torch.minimum((part < self.energy - 1e-7).sum(-1) + 1, most.clamp(max=MOST))

    def _fitted(self, Z: Tensor) -> tuple[ClassStats, Tensor]:
        """Return statistics and directions; refuse features that they do not fit."""
        if self._stats is None or self._directions is None:
            raise InputError("NearestSubspace must be fitted before use. Call fit or fit_stats first.")
        if Z.ndim not in (2, 3) or Z.shape[-1] != self._stats.d:
            raise InputError(
                f"Z must have shape (m, {self._stats.d}) or (N, m, {self._stats.d}); got {tuple(Z.shape)}."
            )
        if not bool(torch.isfinite(Z).all()):
            raise InputError("Z must be finite; it holds NaN or infinity. Look for a diverged encoder.")
        return self._stats, self._directions

    def residuals(self, Z: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return squared residuals (m, K) of features (m, d), or (N, m, d) fused over N encoders.

        A class without samples has infinite residual.

        Args:
            weights: (N, 1, K) or (N, m, K), how much an encoder's word counts for a class, for energy fusion: residuals
                are then averaged with these weights. Label-aware fusion is 1 where a node holds the class, else 0.
        """
        stats, _ = self._fitted(Z)
        if weights is not None and (Z.ndim != 3 or self.fusion != "energy"):
            raise InputError(
                f"weights must come with features (N, m, d) and fusion='energy'; got Z of shape {tuple(Z.shape)} and "
                f"fusion='{self.fusion}'. Leave them out, or fuse energies."
            )
        if Z.ndim == 3 and self.fusion == "average":
            Z = Z.mean(0)
        distance2 = self.distances(Z)
        if distance2.ndim == 2:
            return distance2
        if weights is not None:
            return _weighted_mean(distance2, weights).masked_fill(~stats.held, torch.inf)
        return distance2.sum(0)

    def distances(self, Z: Tensor) -> Tensor:
        """Return every encoder's own squared residuals, (N, m, K) of features (N, m, d) or (m, K) of (m, d).

        A class without samples has infinite residual.
        """
        stats, directions = self._fitted(Z)
        # ‖z−μ‖² − ‖Φᵀ(z−μ)‖², with (z−μ) never formed per class: one product with all classes' axes, O(m K d r).
        axes = directions.transpose(0, 1).flatten(1)  # (d, K·r)
        centre = torch.einsum("kd,kdr->kr", stats.mu, directions)
        rows = Z.flatten(0, -2)
        inside = torch.cat(
            [
                ((part @ axes).unflatten(-1, centre.shape) - centre).square().sum(-1)
                for part in rows.split(max(1, CHUNK // max(axes.shape[1], 1)))
            ]
        )
        apart = rows.square().sum(-1, keepdim=True) - 2 * rows @ stats.mu.mT + stats.mu.square().sum(-1)
        return (apart - inside).masked_fill(~stats.held, torch.inf).reshape(*Z.shape[:-1], stats.num_classes)

    def predict(self, Z: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return labels (m,) of features (m, d) or (N, m, d)."""
        return self.residuals(Z, weights).argmin(-1)

    def score(self, Z: Tensor, y: Tensor, weights: Tensor | None = None) -> float:
        """Return the part of samples classified as `y` says."""
        if y.shape != Z.shape[-2:-1]:
            raise InputError(f"y must have one label per sample, shape {tuple(Z.shape[-2:-1])}; got {tuple(y.shape)}.")
        return float((self.predict(Z, weights) == y).double().mean())


def _weighted_mean(distance2: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_i w_i r_i / Σ_i w_i over encoders, (m, K); infinite where nobody has a say."""
    N, m, K = distance2.shape
    if weights.ndim != 3 or weights.shape[0] != N or weights.shape[1] not in (1, m) or weights.shape[2] != K:
        raise InputError(
            f"weights must have shape ({N}, 1, {K}) or ({N}, {m}, {K}); got {tuple(weights.shape)}. Use one a node and "
            "class."
        )
    total = weights.to(distance2.dtype).sum(0)
    mean = (distance2 * weights).sum(0) / total.clamp(min=torch.finfo(distance2.dtype).tiny)
    return mean.masked_fill(total <= 0, torch.inf)
