"""The numbers that every run ends with."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import NearestSubspace
from ratemesh.metrics.geometry import disagreement, effective_rank, overlap


@dataclass(frozen=True)
class Learned:
    """What was learned, as evaluation sees it.

    Attributes:
        stats: each node's statistics over its own training data.
        Z_test: (N, m, d) every node's features of the same held-out samples.
        y_test: (m,) their labels.
        edges: the communication graph.
    """

    stats: Sequence[ClassStats]
    Z_test: Tensor
    y_test: Tensor
    edges: Sequence[tuple[int, int]]


def evaluate(learned: Learned, *, eps2: float, energy: float, rank: int | None) -> dict[str, float]:
    """Return accuracies and geometry; class subspaces come from the pooled training statistics.

    `acc_average`: averaged representation (paper). `acc_energy`: energy fusion. `acc_node`: mean over
    nodes of one node alone against the global subspaces.
    """
    pooled = ClassStats.sum(learned.stats)
    average, fused = (
        NearestSubspace(fusion, energy=energy, rank=rank).fit_stats(pooled) for fusion in ("average", "energy")
    )
    ranks = effective_rank(pooled.V[pooled.held])
    alone = [fused.score(Z, learned.y_test) for Z in learned.Z_test]
    rates = rate_reduction(pooled, eps2)
    return {
        "acc_average": average.score(learned.Z_test, learned.y_test),
        "acc_energy": fused.score(learned.Z_test, learned.y_test),
        "acc_node": sum(alone) / len(alone),
        "disagreement": disagreement(learned.stats, learned.edges),
        "overlap": overlap(pooled),
        "rank_min": float(ranks.min()),
        "rank_max": float(ranks.max()),
        "expand": float(rates.expand),
        "compress": float(rates.compress),
        "reduction": float(rates.reduction),
    }
