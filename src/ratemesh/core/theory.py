"""Conditions under which the paper proves its properties, checked in words a user can act on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratemesh.core.stats import balanced_counts

ROUNDING = 1e-9
"""Gaps of proportions below this are rounding."""


def theorem1_gaps(d: int, ranks: Tensor, proportions: Tensor, eps2: float) -> list[str]:
    """Return what of Theorem 1's conditions does not hold; empty when all do.

    Args:
        d: feature dimension.
        ranks: (K,) class ranks d_k.
        proportions: (K,) m_k / m.
        eps2: ε².
    """
    gaps = []
    total = float(ranks.sum())
    if d < total:
        gaps.append(
            f"d must be at least the sum of the class ranks (Theorem 1); got d = {d} < {total:g}: the classes "
            "cannot all be orthogonal. Raise d or lower the ranks."
        )
    held = proportions > 0
    bound = float((proportions[held] * d**2 / ranks[held].double() ** 2).min()) if held.any() else float("inf")
    if eps2**2 >= bound:
        gaps.append(
            f"eps2 must satisfy ε⁴ < min_k (m_k/m)(d/d_k)² = {bound:.4g} (Theorem 1); got ε⁴ = {eps2**2:.4g}. "
            f"Take eps2 below {bound**0.5:.4g}."
        )
    return gaps


def proportion_gap(counts: Tensor) -> float:
    """Return max over nodes and classes of |m_ik/m_i − m_k/m|; 0 is Assumption 1 exactly.

    Args:
        counts: (N, K) samples per node and class.
    """
    return float(proportion_gaps(counts).abs().max())


def proportion_gaps(counts: Tensor) -> Tensor:
    """Return m_ik/m_i − m_k/m, (N, K); a node without samples has proportions 0."""
    counts = counts.double()
    tiny = torch.finfo(counts.dtype).tiny
    local = counts / counts.sum(1, keepdim=True).clamp(min=tiny)
    return local - counts.sum(0) / counts.sum().clamp(min=tiny)


def cluster_counts(counts: Tensor, clusters: Sequence[Sequence[int]]) -> Tensor:
    """Return m_k^s = Σ_{i∈𝒱^s} m_ik/S_i, (S, K): what Assumption 4 is about.

    `proportion_gap` of it is 0 where Assumption 4 holds: proportions are equal over clusters exactly when each
    cluster has those of the whole, because Σ_s m_k^s = m_k.

    Args:
        counts: (N, K) samples per node and class.
        clusters: members of every cluster; S_i is how many of them node i is in, at least one.
    """
    member = torch.zeros(len(clusters), len(counts), dtype=torch.float64)
    for s, cluster in enumerate(clusters):
        member[s, list(cluster)] = 1
    return (member / member.sum(0)) @ counts.double()


@dataclass(frozen=True)
class Proportions:
    """How far class proportions are from equal over clusters (Assumption 4) or over nodes (Assumption 1).

    The one rule on when an assumption counts as held: exactly, or off by no more than whole samples excuse.

    Attributes:
        gaps: (S, K) m_k^s/m^s − m_k/m; all 0 is the assumption.
        excused: (S,) the gap that whole samples excuse: one sample a member and one for the total, of m^s.
    """

    gaps: Tensor
    excused: Tensor

    @classmethod
    def of(
        cls, counts: Tensor, clusters: Sequence[Sequence[int]] | None = None, *, balanced: bool = False
    ) -> "Proportions":
        """Compare the clusters, or the nodes if there are none.

        Args:
            counts: (N, K) samples per node and class.
            balanced: whether training weighs the classes of a cluster (node) equally, as `local.balance` does.
        """
        groups = [(i,) for i in range(len(counts))] if clusters is None else clusters
        m = cluster_counts(counts, groups)
        excused = torch.tensor([len(group) + 1.0 for group in groups]) / m.sum(1).clamp(min=1)
        return cls(proportion_gaps(balanced_counts(m) if balanced else m), excused)

    @property
    def gap(self) -> float:
        """The largest deviation."""
        return float(self.gaps.abs().max())

    @property
    def exact(self) -> bool:
        """Whether there is no gap but rounding."""
        return self.gap < ROUNDING

    @property
    def holds(self) -> bool:
        """Whether the assumption holds as nearly as whole samples allow."""
        return self.exact or bool((self.gaps.abs().amax(1) <= self.excused).all())
