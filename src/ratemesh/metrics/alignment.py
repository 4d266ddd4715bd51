"""Do nodes see alike: centred kernel alignment, and angles between the subspaces of a class."""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Generator, Tensor

from ratemesh.core.checks import check_finite
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule, principal_axes
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import node_pairs
from ratemesh.metrics.pooling import Measured, varies
from ratemesh.metrics.spectra import participation_ratio

WHOLE = SubspaceRule(most=None)
"""Nothing is classified by the angles, so that a wide class may have all of its directions."""


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
