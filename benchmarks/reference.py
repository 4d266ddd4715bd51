"""The local objective as the paper prints it, left to autograd: what the fused loss is measured against.

Eq. (lagran1_2), a loop over classes and over neighbours, one log-determinant per class. Written the way
a careful reader of the paper would write it: midpoints T_ij computed once, trace as an elementwise
product, absent classes skipped. `folded` loops over classes only, with the neighbours summed beforehand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh import ClassStats
from ratemesh.core.consensus import fold_neighbours
from ratemesh.core.lagrangian import Coupling


@dataclass(frozen=True)
class Problem:
    """A batch, the neighbours as they arrived, and the settings of the loss.

    Attributes:
        Z, y: features (n, d), rows of unit length, and labels (n,).
        own: the node's statistics of the round before.
        Y_edge, V_edge: duals Y_ij and neighbours' V_j, (degree, K, d, d).
    """

    Z: Tensor
    y: Tensor
    own: ClassStats
    Y_edge: Tensor
    V_edge: Tensor
    gamma: float = 1.0
    eps2: float = 0.5

    @property
    def num_classes(self) -> int:
        """K."""
        return self.own.num_classes

    def midpoints(self) -> Tensor:
        """Return T_ij = ½(V_i + V_j), shape (degree, K, d, d)."""
        return (self.own.V + self.V_edge) / 2

    def coupling(self) -> Coupling:
        """Return the neighbours folded, as a round of Algorithm 1 does."""
        folded = fold_neighbours(self.own, [ClassStats.without_means(V, self.own.m) for V in self.V_edge])
        return Coupling.of(self.Y_edge.sum(0), folded.T_bar, folded.n, self.gamma)

    def constant(self) -> Tensor:
        """Return what the folded loss leaves out: Σ_jk γ‖T_ij − T̄‖² − ⟨Y_ij, V_j⟩ over classes of the batch."""
        held = torch.bincount(self.y, minlength=self.num_classes) > 0
        T, Y, V = self.midpoints()[:, held], self.Y_edge[:, held], self.V_edge[:, held]
        return self.gamma * (T - T.mean(0)).square().sum() - (Y * V).sum()


def draw_problem(num_classes: int, *, balanced: bool, n: int = 1000, d: int = 128, degree: int = 5) -> Problem:
    """Draw features, labels, neighbours and duals from a fixed seed, float32."""
    draw = torch.Generator().manual_seed(num_classes)

    def stats() -> ClassStats:
        y = torch.arange(40 * num_classes) % num_classes
        return ClassStats.of(_unit_rows(len(y), d, draw), y, num_classes)

    y = torch.arange(n) % num_classes if balanced else torch.randint(num_classes, (n,), generator=draw)
    Y = 0.01 * torch.randn(degree, num_classes, d, d, generator=draw)
    return Problem(
        Z=_unit_rows(n, d, draw),
        y=y[torch.randperm(n, generator=draw)],
        own=stats(),
        Y_edge=(Y + Y.mT) / 2,
        V_edge=torch.stack([stats().V for _ in range(degree)]),
    )


def _unit_rows(n: int, d: int, draw: torch.Generator) -> Tensor:
    return normalize(torch.randn(n, d, generator=draw), dim=1)


def per_edge(Z: Tensor, problem: Problem, T_edge: Tensor) -> Tensor:
    """Return (lagran1_2) with scale 1: a loop over classes, inside it a loop over neighbours."""
    loss = -_rate(Z, problem.eps2)
    for k in range(problem.num_classes):
        Z_k = Z[problem.y == k]
        if not len(Z_k):
            continue
        V = Z_k.mT @ Z_k / len(Z_k)
        loss = loss + len(Z_k) / len(Z) * _rate(Z_k, problem.eps2, V)
        for Y_j, V_j, T_j in zip(problem.Y_edge, problem.V_edge, T_edge, strict=True):
            loss = loss + (Y_j[k] * (V - V_j[k])).sum() + problem.gamma * (V - T_j[k]).square().sum()
    return loss


def folded(Z: Tensor, problem: Problem, coupling: Coupling) -> Tensor:
    """Return the same up to a constant: neighbours summed beforehand, a loop over classes."""
    loss = -_rate(Z, problem.eps2)
    for k in range(problem.num_classes):
        Z_k = Z[problem.y == k]
        if not len(Z_k):
            continue
        V = Z_k.mT @ Z_k / len(Z_k)
        loss = loss + len(Z_k) / len(Z) * _rate(Z_k, problem.eps2, V)
        loss = loss + (coupling.Y[k] * V).sum() + coupling.weight[k] * (V - coupling.T_bar[k]).square().sum()
    return loss


def _rate(Z: Tensor, eps2: float, V: Tensor | None = None) -> Tensor:
    """Return ½ logdet(I + (d/ε²) ZᵀZ/m), with V = ZᵀZ/m if it is known already."""
    m, d = Z.shape
    V = Z.mT @ Z / m if V is None else V
    return 0.5 * torch.logdet(torch.eye(d, dtype=Z.dtype) + d / eps2 * V)
