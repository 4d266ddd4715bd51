"""Conditions under which the paper proves its properties, checked in words a user can act on."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
    cluster has those of the whole, for Σ_s m_k^s = m_k.

    Args:
        counts: (N, K) samples per node and class.
        clusters: members of every cluster; S_i is how many of them node i is in, at least one.
    """
    member = torch.zeros(len(clusters), len(counts), dtype=torch.float64)
    for s, cluster in enumerate(clusters):
        member[s, list(cluster)] = 1
    return (member / member.sum(0)) @ counts.double()


def whole_sample_gap(counts: Tensor, clusters: Sequence[Sequence[int]]) -> float:
    """Return the proportion gap that whole samples excuse: one a member and one for the total, of m^s."""
    sizes: list[float] = cluster_counts(counts, clusters).sum(1).tolist()
    return max((len(cluster) + 1) / max(1.0, m) for cluster, m in zip(clusters, sizes, strict=True))
