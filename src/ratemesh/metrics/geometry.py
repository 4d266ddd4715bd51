"""How far apart nodes are, how far apart classes are, and how much room a class uses."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats


def disagreement(stats: Sequence[ClassStats], edges: Sequence[tuple[int, int]]) -> float:
    """Return the mean over directed edges of ‖V_i − V_j‖ / ‖V_i‖, Frobenius over all shared classes.

    0 at consensus, √2 for unrelated subspaces. On a graph without edges all pairs are compared. Nodes that share no
    class cannot disagree and are left out; NaN where no two nodes are left.
    """
    pairs = [(i, j) for i, j in node_pairs(len(stats), edges) if share_class(stats[i], stats[j])]
    directed = [pair for i, j in pairs for pair in ((i, j), (j, i))]
    return _mean([relative_distance(stats[i], stats[j]) for i, j in directed])


def node_pairs(nodes: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of nodes to compare: the edges, or on a graph without any all pairs."""
    return list(edges) or list(itertools.combinations(range(nodes), 2))


def share_class(a: ClassStats, b: ClassStats) -> bool:
    """Whether there is a class of which both have samples."""
    return bool((a.held & b.held).any())


def relative_distance(a: ClassStats, b: ClassStats) -> float:
    """Return ‖V_a − V_b‖ / ‖V_a‖ over the classes both hold; NaN where they share none, for they cannot disagree."""
    if not share_class(a, b):
        return math.nan
    shared = (a.held & b.held).to(a.V.dtype)[:, None, None]
    return float(((a.V - b.V) * shared).norm() / (a.V * shared).norm().clamp(min=1e-12))


def overlap(stats: ClassStats) -> float:
    """Return the mean over pairs of classes of ⟨V_k, V_l⟩ / (‖V_k‖‖V_l‖); 0 is orthogonal subspaces."""
    V = stats.V[stats.held].flatten(1)
    V = V / V.norm(dim=1, keepdim=True).clamp(min=1e-12)
    pairs = torch.triu_indices(len(V), len(V), offset=1)
    return _mean((V @ V.T)[pairs[0], pairs[1]].tolist())


def effective_rank(V: Tensor) -> Tensor:
    """Return exp(entropy of the eigenvalues), (...,) for (..., d, d); r for an isotropic rank-r V."""
    values = torch.linalg.eigvalsh(V).clamp(min=0)
    p = values / values.sum(-1, keepdim=True).clamp(min=1e-12)
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy.exp()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
