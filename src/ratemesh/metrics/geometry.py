"""The geometry of what was learned: how alike nodes are, how far apart classes are, how much room a class uses."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Generator, Tensor

from ratemesh.core.checks import check_finite
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule, principal_axes
from ratemesh.errors import InputError

WHOLE = SubspaceRule(most=None)
"""Nothing is classified by the angles, so that a wide class may have all of its directions."""


@dataclass(frozen=True)
class Measured:
    """A number, and what it would be if there were nothing to measure.

    Attributes:
        value: the number.
        floor: its expectation for features without any structure of the kind measured.
        n: samples; the mean over nodes where nodes were measured one by one.
        skipped: nodes that could not be measured and are left out.
    """

    value: float
    floor: float
    n: float
    skipped: tuple[int, ...] = ()

    @classmethod
    def mean(cls, parts: Sequence["Measured"], skipped: Sequence[int] = ()) -> "Measured":
        """Return the mean over nodes (at least one); the floor of a mean is the mean of the floors."""
        value, floor, n = (fmean(part) for part in zip(*((p.value, p.floor, p.n) for p in parts), strict=True))
        return cls(value, floor, n, tuple(skipped))


def varies(Z: Tensor) -> bool:
    """Return whether the rows of Z (n, d), float64, differ by more than rounding."""
    spread2 = (Z - Z.mean(0)).square().sum()
    return bool(spread2 > 1e-24 * Z.square().sum())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
    """Return ‖V_a − V_b‖ / ‖V_a‖ over the classes both hold; NaN where they share none."""
    if not share_class(a, b):
        return math.nan
    shared = (a.held & b.held).to(a.V.dtype)[:, None, None]
    return float(((a.V - b.V) * shared).norm() / (a.V * shared).norm().clamp(min=1e-12))


def overlap(stats: ClassStats) -> float:
    """Return the mean over pairs of classes of ⟨V_k, V_l⟩ / (‖V_k‖‖V_l‖); 0 is orthogonal subspaces."""
    V = stats.V[stats.held].flatten(1)
    V = V / V.norm(dim=1, keepdim=True).clamp(min=1e-12)
    pairs = torch.triu_indices(len(V), len(V), offset=1)
    return _mean((V @ V.T).cpu()[pairs[0], pairs[1]].tolist())


def effective_rank(V: Tensor) -> Tensor:
    """Return exp(entropy of the eigenvalues), (...,) for (..., d, d); r for an isotropic rank-r V."""
    values = torch.linalg.eigvalsh(V).clamp(min=0)
    p = values / values.sum(-1, keepdim=True).clamp(min=1e-12)
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy.exp()


def occupied(stats: ClassStats) -> dict[str, float]:
    """Return what tells a collapse of a node's features, from numbers that are there anyway.

    `feature_rank` is tr(S)² / ‖S‖² of the second moment S of all samples: 1 where all lie on one line, r where they
    fill r directions evenly; `feature_spread` is √(tr(S) − ‖μ‖²): of unit vectors 1 when they cancel out, 0 when all
    are equal.
    """
    S, mean = stats.mixture(), stats.proportions @ stats.mu
    trace = S.trace()
    rank = trace.square() / S.square().sum().clamp(min=torch.finfo(S.dtype).tiny)
    return {"feature_rank": float(rank), "feature_spread": float((trace - mean.square().sum()).clamp(min=0).sqrt())}


def stats_singular_values(stats: ClassStats) -> tuple[Tensor, Tensor]:
    """Return the singular values (d,) of all features and (K, d) of every class from statistics alone.

    σ(Z_k)² = m_k λ(V_k), so no features need to be shared; values below about 1e-4 (float32) or 1e-8 (float64) of
    the largest are rounding, because V_k holds their squares.
    """
    overall = stats.m.sum() * torch.linalg.eigvalsh(stats.mixture())
    by_class = stats.m[:, None] * torch.linalg.eigvalsh(stats.V)
    return overall.clamp(min=0).sqrt().flip(-1), by_class.clamp(min=0).sqrt().flip(-1)


def participation_ratio(V: Tensor) -> Tensor:
    """Return tr(V)² / tr(V²), (...,) for symmetric (..., d, d): r for an isotropic rank-r V, 0 for V = 0."""
    trace2 = V.diagonal(dim1=-2, dim2=-1).sum(-1).square()
    return trace2 / V.square().sum((-2, -1)).clamp(min=torch.finfo(V.dtype).tiny)


def cka_paired(Z: Tensor, *, debiased: bool = False) -> float:
    """Return CKA averaged over all pairs of nodes, for (N, m, d) features of the same m samples."""
    if Z.ndim != 3 or len(Z) < 2:
        raise InputError(f"Z must have shape (N, m, d) with at least two nodes to compare; got {tuple(Z.shape)}.")
    return mean_cka(list(Z), debiased)


def cka_unpaired(Z: Sequence[Tensor], draw: Generator) -> Measured:
    """Return CKA averaged over pairs of nodes whose rows belong to different samples, as in the paper's Table I.

    Every node's (m_i, d) features are shuffled with `draw` and cut to n = min m_i rows. Nothing about alignment is
    left: over permutations the expectation is exactly CKA_0 = √(PR_i PR_j)/(n−1), PR the participation ratio of
    the covariance, and that is the floor. A value at its floor measures effective rank over n.
    """
    if len(Z) < 2:
        raise InputError(f"Z must hold at least two nodes to compare; got {len(Z)}.")
    n = min(len(Z_i) for Z_i in Z)
    shuffled = [Z_i[torch.randperm(len(Z_i), generator=draw)[:n].to(Z_i.device)] for Z_i in Z]
    value = mean_cka(shuffled, debiased=False)
    ratios = [float(participation_ratio(X.mT @ X)) for X in map(_centred, shuffled)]
    floor = fmean(math.sqrt(a * b) / (n - 1) for a, b in itertools.combinations(ratios, 2))
    return Measured(value, floor, n)


def mean_cka(Z: Sequence[Tensor], debiased: bool) -> float:
    """Return linear CKA, HSIC(X, Y) / √(HSIC(X, X) HSIC(Y, Y)), averaged over all pairs of features (n, d_i).

    1 for features equal up to rotation, scale and shift; for unrelated ones 0 only as n → ∞. With `debiased`, HSIC is
    the unbiased estimate: 0 on average for unrelated features at any n ≥ 4, and at times below 0.
    """
    least = 4 if debiased else 2
    if len(Z[0]) < least:
        raise InputError(f"features must have at least {least} rows; got {len(Z[0])}. Measure more samples.")
    hsic: Callable[[Tensor, Tensor], Tensor] = _hsic_unbiased if debiased else _hsic
    centred = [_centred(Z_i) for Z_i in Z]
    own = [float(hsic(X, X)) for X in centred]
    if any(value <= 1e-12 * float(_hsic(X, X)) for value, X in zip(own, centred, strict=True)):
        raise InputError("features must vary enough for a self-similarity above 0. Measure more samples.")
    pairs = itertools.combinations(range(len(Z)), 2)
    return fmean(float(hsic(centred[i], centred[j])) / math.sqrt(own[i] * own[j]) for i, j in pairs)


def _centred(Z: Tensor) -> Tensor:
    """Return features (n, d) in float64 with columns of mean zero; refuse what has no variance."""
    check_finite(Z, "features")
    Z = Z.double()
    if not varies(Z):
        raise InputError("features must vary; all rows are the same. Look for a collapsed encoder.")
    return Z - Z.mean(0)


def _hsic(X: Tensor, Y: Tensor) -> Tensor:
    """Return n² times the biased estimate of HSIC of centred features: ‖XᵀY‖²."""
    return (X.mT @ Y).square().sum()


def _hsic_unbiased(X: Tensor, Y: Tensor) -> Tensor:
    """Return n(n−3) times the unbiased estimate of HSIC of centred features.

    The estimate takes K = XXᵀ and L = YYᵀ without their diagonals s and t (it is a U-statistic). With centred columns
    the row sums of K are −s, and everything is O(n d²): ‖XᵀY‖² − n/(n−2) ⟨s, t⟩ + Σs Σt / ((n−1)(n−2)).
    """
    n = len(X)
    s, t = X.square().sum(1), Y.square().sum(1)
    return _hsic(X, Y) - n / (n - 2) * (s @ t) + s.sum() * t.sum() / ((n - 1) * (n - 2))


def leading_directions(V: Tensor, rule: SubspaceRule) -> Tensor:
    """Return the leading eigenvectors (d, r) of a second moment V (d, d); r by the rule, at most as many as V has."""
    values, axes = principal_axes(V.double())
    if not values[0] > 0:
        raise InputError("V must not be zero: it has no directions. Leave classes without samples out.")
    noise = values[0] * len(V) * torch.finfo(V.dtype).eps  # a direction without variance is an arbitrary one
    r = min(int(rule.ranks(values)), int((values > noise).sum()))
    if r == 0:
        raise InputError("rank must be at least 1; got 0. Leave it out to go by energy.")
    return axes[:, :r]


def mean_principal_angle(
    stats: Sequence[ClassStats], edges: Sequence[tuple[int, int]] = (), rule: SubspaceRule = WHOLE
) -> float:
    """Return the mean, in degrees, of the principal angles between two nodes' subspaces of the same class.

    The mean is over the angles of a class, then over classes that both nodes hold, then over edges; without edges,
    over all pairs. 0 is consensus of subspaces, 90 orthogonal.
    """
    held = [[k for k in range(s.num_classes) if bool(s.held[k])] for s in stats]
    bases = [{k: leading_directions(s.V[k], rule) for k in ks} for s, ks in zip(stats, held, strict=True)]
    means = []
    for i, j in node_pairs(len(stats), edges):
        shared = [float(principal_angles(bases[i][k], bases[j][k]).mean()) for k in bases[i] if k in bases[j]]
        means += [fmean(shared)] if shared else []
    if not means:
        raise InputError(f"stats must hold two nodes that share a class; got {len(stats)} nodes. Nothing to compare.")
    return math.degrees(fmean(means))


def principal_angles(A: Tensor, B: Tensor) -> Tensor:
    """Return the angles between the spans of orthonormal columns (d, r) and (d, q), in radians and ascending.

    As many as the smaller subspace has dimensions.
    """
    if A.shape[1] < B.shape[1]:
        A, B = B, A
    inside = A.mT @ B
    # Cosines lose small angles to rounding and sines large ones; the arctangent of both loses neither.
    return torch.atan2(torch.linalg.svdvals(B - A @ inside).flip(0), torch.linalg.svdvals(inside))
