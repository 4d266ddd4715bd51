"""Nearest-subspace classification, for one encoder or for several that look at the same sample."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ratemesh.core.checks import check_finite, to_tensor
from ratemesh.core.stats import ClassStats, check_stats
from ratemesh.errors import InputError

Fusion = Literal["average", "energy"]

CHUNK = 2**21
"""Coordinates of samples along all classes' axes that are held at a time: about what a processor caches."""


def directions_holding(energy: float, values: Tensor, *, slack: float = 1e-7) -> Tensor:
    """Return r (...,), the fewest of the largest eigenvalues (..., d), falling, that hold this part of their sum.

    Args:
        slack: part of the sum that may be missing: what rounding takes from a sum that reaches `energy` exactly. 0
            where an error bound relies on `energy`.
    """
    short = values.cumsum(-1) < (energy - slack) * values.sum(-1, keepdim=True)
    return (short.sum(-1) + 1).clamp(max=values.shape[-1])


@dataclass(frozen=True)
class SubspaceRule:
    """How many leading directions r_k the subspace of a class has.

    Attributes:
        energy: r_k is the fewest directions that hold this part of a class's variance,
        most: but no more than this; None is no limit. 30 as in the code of Yu et al. (2020): classes that do not fill
            few directions yet have 95 % of their energy in half of the space; such subspaces overlap, and wider ones
            attract more.
        rank: if given, r_k is this number instead.
    """

    energy: float = 0.95
    rank: int | None = None
    most: int | None = 30

    def __post_init__(self) -> None:
        if not 0 < self.energy <= 1:
            raise InputError(f"energy must lie in (0, 1]; got {self.energy}. 0.95 keeps 95 % of the variance.")
        if self.rank is not None and self.rank < 0:
            raise InputError(f"rank must not be negative; got {self.rank}. 0 is nearest class mean.")
        if self.most is not None and self.most < 1:
            raise InputError(f"most must be at least 1; got {self.most}. None is no limit.")

    def ranks(self, values: Tensor) -> Tensor:
        """Return r (...,) for eigenvalues (..., d), the largest first."""
        if self.rank is not None:
            return torch.full(values.shape[:-1], self.rank, device=values.device)
        return directions_holding(self.energy, values).clamp(max=self.most or values.shape[-1])


def principal_axes(S: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (..., d) of symmetric S (..., d, d), largest first, none negative; and axes as columns."""
    values, axes = torch.linalg.eigh(S)
    return values.flip(-1).clamp(min=0), axes.flip(-1)


class SubspaceJudge:
    """Classify by the smallest residual to a class's affine subspace μ_k + span(Φ_k).

    Φ_k are the leading principal directions of the class. With several encoders the paper averages
    the features, z' = mean_i f_i(x), fusion="average". Because covariances fix a class's subspace but
    not the position inside it, averaging partly cancels; fusion="energy" (ours) adds the residuals
    ‖(I − Φ_kΦ_kᵀ)(f_i(x) − μ_k)‖² over the encoders instead.

    Args:
        fusion: "average" (paper) or "energy".
        energy: r_k is the fewest directions that hold this part of a class's variance, at most 30.
        rank: if given, r_k is this number instead; either way at most min(m_k, d) − 1.
        rule: both in one value, see `SubspaceRule`.

    Features and labels may be tensors or arrays of any precision; results have that of the features of the fit.

    >>> Z = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    >>> SubspaceJudge(rank=1).fit(Z, torch.tensor([0, 0, 1, 1])).predict(Z).tolist()
    [0, 0, 1, 1]
    """

    def __init__(
        self,
        fusion: Fusion = "energy",
        *,
        energy: float = 0.95,
        rank: int | None = None,
        rule: SubspaceRule | None = None,
    ) -> None:
        if fusion not in get_args(Fusion):
            raise InputError(f"fusion must be 'average' or 'energy'; got {fusion!r}.")
        self.fusion = fusion
        self.rule = rule or SubspaceRule(energy, rank)
        self._stats: ClassStats | None = None
        self._directions: Tensor | None = None

    def fit(self, Z: Tensor, y: Tensor, num_classes: int | None = None) -> "SubspaceJudge":
        """Fit on features: (m, d), or (N, m, d) of N encoders, all of them pooled; labels (m,)."""
        Z, y = to_tensor(Z, "Z"), to_tensor(y, "y")
        Z = Z.to(torch.promote_types(Z.dtype, torch.float32))  # half precision has no eigenvectors
        if num_classes is None and not y.numel():
            raise InputError("y must hold labels to fit on; it is empty. Give at least one sample a class.")
        K = int(y.max()) + 1 if num_classes is None else num_classes
        parts = Z if Z.ndim == 3 else Z[None]
        return self.fit_stats(ClassStats.sum(ClassStats.of(part, y, K, unit=False) for part in parts))

    def fit_stats(self, stats: ClassStats) -> "SubspaceJudge":
        """Fit on class statistics, e.g. the sum over nodes: no features need to be shared."""
        check_stats(stats, "stats")
        variance, axes = principal_axes(stats.covariance())
        ranks = self.rule.ranks(variance).minimum((stats.m - 1).clamp(min=0, max=stats.d - 1))
        keep = torch.arange(stats.d, device=stats.V.device) < ranks[:, None]
        # A direction without variance is an arbitrary one: rounding must not add it to a class.
        keep &= variance > variance[:, :1] * stats.d * torch.finfo(variance.dtype).eps
        most = int(keep.sum(-1).max())  # of all classes: the rest of the axes would cost and say nothing
        self._stats, self._directions = stats, (axes * keep[:, None, :])[:, :, :most]
        return self

    def _fitted(self, Z: Tensor) -> tuple[Tensor, ClassStats, Tensor]:
        """Return features in the precision of the fit, its statistics and directions; refuse what does not fit them."""
        if self._stats is None or self._directions is None:
            raise InputError("SubspaceJudge must be fitted before use. Call fit or fit_stats first.")
        Z = to_tensor(Z, "Z").to(self._stats.V.dtype)
        if Z.ndim not in (2, 3) or Z.shape[-1] != self._stats.d:
            raise InputError(
                f"Z must have shape (m, {self._stats.d}) or (N, m, {self._stats.d}); got {tuple(Z.shape)}."
            )
        check_finite(Z, "Z")
        return Z, self._stats, self._directions

    @property
    def directions(self) -> Tensor:
        """(K, d, r) leading directions of every class as columns, zero beyond those that a class has."""
        if self._directions is None:
            raise InputError(f"{type(self).__name__} must be fitted before use. Call fit or fit_stats first.")
        return self._directions

    def residuals(self, Z: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return squared residuals (m, K) of features (m, d), or (N, m, d) fused over N encoders.

        A class without samples has infinite residual.

        Args:
            weights: (N, 1, K) or (N, m, K), weights of every encoder's residual for a class: with energy fusion only, a
                weighted mean instead of the sum. Label-aware fusion is 1 where a node holds the class, else 0.
        """
        Z, stats, _ = self._fitted(Z)
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
            return _weighted_mean(distance2, to_tensor(weights, "weights")).masked_fill(~stats.held, torch.inf)
        return distance2.sum(0)

    def distances(self, Z: Tensor) -> Tensor:
        """Return every encoder's own squared residuals, (N, m, K) of features (N, m, d) or (m, K) of (m, d).

        A class without samples has infinite residual.
        """
        Z, stats, directions = self._fitted(Z)
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
        return accuracy(self.predict(Z, weights), y)


def accuracy(predicted: Tensor, y: Tensor) -> float:
    """Return the part of labels (q,) that are as `y` (q,) says; NaN of none."""
    y = to_tensor(y, "y")
    if y.shape != predicted.shape:
        raise InputError(f"y must have one label per sample, shape {tuple(predicted.shape)}; got {tuple(y.shape)}.")
    return float((predicted == y).double().mean())


def _weighted_mean(distance2: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_i w_i r_i / Σ_i w_i over encoders, (m, K); infinite where all weights are 0."""
    N, m, K = distance2.shape
    if weights.ndim != 3 or weights.shape[0] != N or weights.shape[1] not in (1, m) or weights.shape[2] != K:
        raise InputError(
            f"weights must have shape ({N}, 1, {K}) or ({N}, {m}, {K}); got {tuple(weights.shape)}. Use one a node and "
            "class."
        )
    total = weights.to(distance2.dtype).sum(0)
    mean = (distance2 * weights).sum(0) / total.clamp(min=torch.finfo(distance2.dtype).tiny)
    return mean.masked_fill(total <= 0, torch.inf)
