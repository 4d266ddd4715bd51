"""Conditions under which the paper proves its properties, checked in words a user can act on."""

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
    counts = counts.double()
    local = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return float((local - counts.sum(0) / counts.sum().clamp(min=1)).abs().max())
