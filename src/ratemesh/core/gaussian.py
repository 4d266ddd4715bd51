"""Classification by every encoder's own Gaussians: what pooled subspaces blur where encoders disagree is kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ratemesh.core.checks import check_finite, to_tensor
from ratemesh.core.stats import ClassStats, check_stats
from ratemesh.core.subspace import accuracy
from ratemesh.errors import InputError


class OwnGaussians:
    """Classify by the sum over encoders of log-likelihoods under Gaussians of each encoder's own statistics.

    An encoder's Gaussians have its class means μ_k and one covariance, that inside its classes, Σ = Σ_k π_k (V_k −
    μ_kμ_kᵀ): Fisher's discriminant. Classes count as equally likely. Encoders need not share a space, so this is also
    what nodes that never met come to together; it needs the statistics that are exchanged anyway, and no features.

    Args:
        shrink: part of Σ that is replaced by the sphere of the same trace, for fewer samples than dimensions.

    >>> Z = torch.tensor([[0.0, 1], [0, -1], [1, 1], [1, -1]])
    >>> stats = ClassStats.of(Z, torch.tensor([0, 0, 1, 1]), 2, unit=False)
    >>> OwnGaussians().fit([stats]).predict(torch.tensor([[[0.2, 9.0], [0.8, -9.0]]])).tolist()
    [0, 1]
    """

    def __init__(self, *, shrink: float = 0.1) -> None:
        if not 0 < shrink <= 1:
            raise InputError(f"shrink must lie in (0, 1]; got {shrink}. 0.1 keeps nine tenths of the covariance.")
        self.shrink = shrink
        self._held: Tensor | None = None
        self._directions: list[Tensor] = []
        self._offsets: list[Tensor] = []

    def fit(self, stats: Sequence[ClassStats]) -> "OwnGaussians":
        """Fit on the statistics of every encoder, in the order in which their features will come."""
        if not stats:
            raise InputError("stats must hold one entry an encoder; it is empty.")
        for s in stats:
            check_stats(s, "stats")
        held = torch.stack([s.held for s in stats])
        if not bool((held == held[0]).all()):
            raise InputError(
                "stats must hold the same classes at every encoder: a class's likelihoods are compared only where all "
                "have one. Use SubspaceJudge with weights for nodes that hold some labels."
            )
        self._held = held[0]
        self._directions = [self._discriminants(s) for s in stats]
        self._offsets = [(s.mu.mT * w).sum(0) / 2 for s, w in zip(stats, self._directions, strict=True)]
        return self

    def _discriminants(self, stats: ClassStats) -> Tensor:
        """Return Σ⁻¹μ_k as columns, (d, K)."""
        inside = torch.einsum("k,kij->ij", stats.proportions, stats.covariance()).double()
        variance, axes = torch.linalg.eigh((inside + inside.mT) / 2)
        variance = variance.clamp(min=0)  # of nearly collapsed classes rounding leaves V − μμᵀ with negative ones
        # Features that do not vary beyond rounding still have a sphere to be measured by: nearest mean.
        radius = variance.mean().clamp(min=torch.finfo(stats.V.dtype).eps)
        shrunk = (1 - self.shrink) * variance + self.shrink * radius
        directions: Tensor = axes @ ((axes.mT @ stats.mu.mT.double()) / shrunk[:, None])
        return directions.to(stats.V.dtype)

    @property
    def discriminants(self) -> list[tuple[Tensor, Tensor]]:
        """W (d, K) and c (K,) of every encoder: its log-likelihoods are Z W − c."""
        return list(zip(self._directions, self._offsets, strict=True))

    def log_likelihoods(self, Z: Tensor) -> Tensor:
        """Return (m, K), up to a constant a sample, of features (N, m, d); −∞ for a class without samples."""
        if self._held is None:
            raise InputError("OwnGaussians must be fitted before use. Call fit first.")
        Z = to_tensor(Z, "Z").to(self._directions[0].dtype)
        N, d = len(self._directions), self._directions[0].shape[0]
        if Z.ndim != 3 or Z.shape[0] != N or Z.shape[2] != d:
            raise InputError(f"Z must have shape ({N}, m, {d}), features of every encoder; got {tuple(Z.shape)}.")
        check_finite(Z, "Z")
        scores = torch.stack([z @ w - c for z, w, c in zip(Z, self._directions, self._offsets, strict=True)]).sum(0)
        return scores.masked_fill(~self._held, -torch.inf)

    def predict(self, Z: Tensor) -> Tensor:
        """Return labels (m,) of features (N, m, d)."""
        return self.log_likelihoods(Z).argmax(-1)

    def score(self, Z: Tensor, y: Tensor) -> float:
        """Return the part of samples classified as `y` (m,) says."""
        return accuracy(self.predict(Z), y)
