"""What Theorems 1 to 3 predict of a solution, beside what was measured on one."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ratemesh.core.checks import check_eps2
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.theory import proportion_gap, theorem1_gaps
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import relative_distance, share_class

STEPS = 2
"""T', inner gradient steps of a round."""

COSINE = SPREAD = CONSENSUS = 1e-3
"""How far from 0 cosines, the relative spread of singular values and ‖V_i − V_j‖/‖V_i‖ may be."""

GAP = 1e-5
"""How far from 0, in nats, the Jensen gap and the error of decomposing R^c may be."""

REDUCTION = 1e-4
"""How far ΔR may be from its optimum, relative."""

RANK = 1e-2
"""Singular values below this part of the largest do not count towards a rank."""


@dataclass(frozen=True)
class Setting:
    """What is verified on: N nodes, K classes of equal size and rank d_k; d is K·d_k unless given."""

    nodes: int = 5
    classes: int = 4
    rank: int = 3
    rounds: int = 400
    seed: int = 0
    d: int | None = None
    eps2: float = 0.1

    def __post_init__(self) -> None:
        for name, least, why in (
            ("nodes", 2, "one node has nobody to agree with"),
            ("classes", 2, "one class has nothing to be orthogonal to"),
            ("rank", 1, "d_k is the dimension of a class"),
            ("rounds", 80, "Theorem 2's rate is read off runs of rounds/16 to rounds/2"),
        ):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; got {getattr(self, name)}: {why}. Raise --{name}.")
        if self.width < self.rank:
            raise InputError(f"d must be at least rank = {self.rank}; got {self.width}. Raise --d or lower --rank.")
        check_eps2(self.eps2)

    @property
    def width(self) -> int:
        """Dimension d of the features; K·d_k is the least that Theorem 1 allows."""
        return self.classes * self.rank if self.d is None else self.d

    def gaps(self) -> list[str]:
        """Return what does not hold of the conditions of Theorem 1, as printed and as needed."""
        pi = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        gaps = theorem1_gaps(self.width, self.rank * torch.ones(self.classes), pi, self.eps2)
        _, best = isotropic_optimum(pi, self.width, self.rank, self.eps2)
        if best < self.rank:
            gaps.append(
                f"eps2 must be smaller for rank {self.rank} to be optimal; got {self.eps2:g}, with which orthogonal "
                f"classes of rank {best} reach a larger ΔR, whether Theorem 1's condition holds or not. Lower --eps2."
            )
        return gaps


@dataclass(frozen=True)
class Check:
    """One property: what the theorem says, what was found, how near is near enough."""

    theorem: str
    property: str
    predicted: float
    measured: float
    tolerance: float
    holds: bool

    def expected(self) -> str:
        """Return the prediction with its tolerance; Theorem 2 gives bounds."""
        if self.theorem == "2":
            return f"≤ {self.predicted:g}"
        return f"{self.predicted:.6g} ± {self.tolerance:.0e}" if self.tolerance else f"{self.predicted:g}"


@dataclass(frozen=True)
class Solution:
    """Where a run ended.

    Attributes:
        Z: features (m_i, d) of every node.
        y: labels (m_i,) of every node.
        stats: class statistics of every node.
        parts: class statistics of the parts whose rates add up: nodes in (opt1), clusters in (opt2).
    """

    Z: list[Tensor]
    y: list[Tensor]
    stats: list[ClassStats]
    parts: list[ClassStats]


class Pace(NamedTuple):
    """Step sizes of a run, and its T."""

    eta: float
    rho: float
    gamma: float
    rounds: int


class Seen(NamedTuple):
    """What Theorem 2 speaks of, over all nodes.

    Attributes:
        loss: L(Y^(1), θ^(0)).
        gradient2: ‖∇L(Y^(t+1), θ^(t))‖² in every round t = 0, 1, ...
        smoothness: the largest ‖∇L_i(θ) − ∇L_i(θ')‖/‖θ − θ'‖ seen; L is at least this.
    """

    loss: float
    gradient2: list[float]
    smoothness: float


class Bounded(NamedTuple):
    """A run under Theorem 2's conditions, and the printed bound at t = 1, 2, ..."""

    pace: Pace
    seen: Seen
    bound: list[float]


class Solved(NamedTuple):
    """A run from its random start to its end, and the Jensen gap and the consensus before every round."""

    start: Solution
    end: Solution
    jensen: list[float]
    consensus: list[float]


def near(theorem: str, what: str, predicted: float, measured: float, tolerance: float) -> Check:
    """Check |measured − predicted| ≤ tolerance; a number that is not finite never holds."""
    return Check(theorem, what, predicted, measured, tolerance, abs(measured - predicted) <= tolerance)


def structure_checks(theorem: str, found: Solution, rank: int, eps2: float) -> list[Check]:
    """Compare a solution with the three properties of Theorem 1, and with what its proof rests on; all are maxima.

    Args:
        theorem: "1" or "3", whose properties are the same over other parts.
        rank: d_k, the same for every class.
    """
    within, between = cosines(found)
    values = [singular_values(found, k) for k in range(found.stats[0].num_classes)]
    spread = max(_spread(s[: rank - 1]) for s in values)
    ranks = [numerical_rank(s) for s in values]
    jensen, compress = decomposition_gaps(found.parts, eps2)
    total = ClassStats.sum(found.parts)
    optimum, best = isotropic_optimum(total.proportions, total.d, rank, eps2)
    reached = float(rate_reduction(total, eps2).reduction)
    number, part = ("1", "i") if theorem == "1" else ("4", "s")
    found_gap = proportion_gap(torch.stack([p.m for p in found.parts]))
    return [
        near(theorem, f"Assumption {number}, class proportions", 0, found_gap, 1e-12),
        near(theorem, "|cosine| of classes within a node", 0, within, COSINE),
        near(theorem, "|cosine| of classes between nodes", 0, between, COSINE),
        near(theorem, "rank of Z_k, lowest class", rank, min(ranks), 0),
        near(theorem, "rank of Z_k, highest class", rank, max(ranks), 0),
        near(theorem, "spread of d_k−1 singular values", 0, spread, SPREAD),
        near(theorem, "consensus ‖V_i − V_j‖/‖V_i‖", 0, consensus(found.stats), CONSENSUS),
        near(theorem, f"Jensen gap R − Σ R_{part}", 0, jensen, GAP),
        near(theorem, f"R^c − Σ R^c_{part}", 0, compress, GAP),
        near(theorem, "ΔR, best closed form", optimum, reached, REDUCTION * optimum),
        near(theorem, "rank of that closed form (no run)", rank, best, 0),
    ]


def rate_checks(runs: Sequence[Bounded]) -> list[Check]:
    """Compare gradient norms with Theorem 2, as ratios to a bound: ≤ 1 is below it.

    The first is the printed bound with its constants, at every t of every run. At t = T it is of order 1/√(TT'). L is
    known from below only, so the second can refute, not prove.

    Args:
        runs: with different T and each with its own η = c''/√(TT'), the shortest first.
    """
    along = max(g / b for run in runs for g, b in zip(running_minimum(run.seen.gradient2), run.bound, strict=True))
    step = 4 * STEPS * max(run.seen.smoothness for run in runs) * runs[0].pace.eta
    return [
        Check("2", "min ‖∇L‖² / printed bound, L as seen", 1, along, 0, step < 1 and along <= 1),
        Check("2", "4T'Lη, L as seen on the way", 1, step, 0, step < 1),
    ]


def running_minimum(values: Sequence[float]) -> list[float]:
    """Return the smallest value so far, at every place."""
    return list(itertools.accumulate(values, min))


def cosines(found: Solution) -> tuple[float, float]:
    """Return the largest |cosine| between features of different classes, within nodes and between nodes."""
    Z, y = torch.cat(found.Z), torch.cat(found.y)
    node = torch.cat([torch.full_like(labels, i) for i, labels in enumerate(found.y)])
    apart = (Z @ Z.mT).abs() * (y[:, None] != y)
    same = node[:, None] == node
    return float((apart * same).max()), float((apart * ~same).max())


def singular_values(found: Solution, k: int) -> Tensor:
    """Return the singular values (d,) of Z_k, the class's features of all nodes, largest first."""
    Z_k = torch.cat([Z[y == k] for Z, y in zip(found.Z, found.y, strict=True)])
    values: Tensor = torch.linalg.svdvals(Z_k)
    return values


def numerical_rank(values: Tensor) -> int:
    """Return how many singular values are above RANK times the largest."""
    return int((values > RANK * values[0]).sum())


def consensus(stats: Sequence[ClassStats]) -> float:
    """Return the largest ‖V_i − V_j‖/‖V_i‖ over all pairs of nodes, neighbours or not, on shared classes."""
    pairs = [(a, b) for a, b in itertools.permutations(stats, 2) if share_class(a, b)]
    return max((relative_distance(a, b) for a, b in pairs), default=0.0)


def decomposition_gaps(parts: Sequence[ClassStats], eps2: float) -> tuple[float, float]:
    """Return R(Z) − Σ_p (m_p/m) R(Z_p), eqs. (eqR1) and (eqR2_2), and the same of R^c, (eqRc1) and (eqRc2)."""
    total = ClassStats.sum(parts)
    whole = rate_reduction(total, eps2)
    rates = [(float(p.m.sum() / total.m.sum()), rate_reduction(p, eps2)) for p in parts]
    expand = sum(w * float(r.expand) for w, r in rates)
    compress = sum(w * float(r.compress) for w, r in rates)
    return float(whole.expand) - expand, float(whole.compress) - compress


def isotropic_optimum(pi: Tensor, d: int, rank: int, eps2: float) -> tuple[float, int]:
    """Return the largest ΔR of orthogonal classes with equal singular values, and the rank it is reached at.

    ΔR ≤ Σ_k Σ_p f_k(x_kp) with x_k the eigenvalues of V_k, f_k(x) = ½log(1 + απ_k x) − ½π_k log(1 + αx), equal
    for orthogonal classes. f_k is convex first and concave then, and r f_k(1/r) grows with r only as long as the
    tangent at 1/r passes the origin above: Theorem 1's ε⁴ < (m_k/m)(d/d_k)² says that f_k is concave at 1/d_k,
    which makes full rank a local maximum and not yet the best one. So all ranks up to d_k are compared.

    Args:
        pi: (K,) proportions π_k.

    Returns:
        the optimum, and the lowest rank of a class in it.
    """
    alpha = d / eps2

    def value(r: int, share: float) -> float:
        return r * (math.log1p(alpha * share / r) - share * math.log1p(alpha / r)) / 2

    best = [max((value(r, share), r) for r in range(1, rank + 1)) for share in pi.tolist()]
    return sum(v for v, _ in best), min(r for _, r in best)


def _spread(values: Tensor) -> float:
    """Return (largest − smallest) / largest; 0 for fewer than two."""
    return float(1 - values[-1] / values[0]) if len(values) > 1 else 0.0
