"""The steps of Algorithm 1 between the exchange and the gradient: what neighbours say, duals, midpoints, local loss."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ratemesh.core.checks import check_eps2, check_features, check_resolution, working_precision
from ratemesh.core.lagrangian import Coupling, RunningStats, value_and_gradient
from ratemesh.core.rates import ConsensusTerms, rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError

SYMMETRIC = 1e-5
"""How far entries of a midpoint may be from their mirror images: rounding, and no more."""

Robust = Literal["off", "median", "trimmed"]


class Folded(NamedTuple):
    """The neighbours of a node, folded: mean midpoint T̄ (K, d, d) and how many hold each class (K,)."""

    T_bar: Tensor
    n: Tensor


def _shared(stats: ClassStats, neighbours: Sequence[ClassStats], weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return n (K,), the neighbours that hold a class this node holds, and the sum of their V, each as it counts."""
    held, V = _held(stats, neighbours), torch.stack([s.V for s in neighbours])
    counts = held if weights is None else held * weights[:, None]
    return counts.sum(0), torch.einsum("jk,jkab->kab", counts, V)


def _held(stats: ClassStats, neighbours: Sequence[ClassStats]) -> Tensor:
    """Return (J, K): 1 where neighbour j and this node hold class k, else 0."""
    return (torch.stack([s.held for s in neighbours]) & stats.held).to(stats.V.dtype)


def edge_weights(
    stats: ClassStats, neighbours: Sequence[ClassStats], *, gamma: float, eps2: float, balance: float
) -> Tensor:
    """Return w_ij (J,) in [0, 1] that keep w_ij γ‖V_i − T_ij‖² at most `balance` times the smaller ΔR of i and j.

    ΔR does not grow with the number of classes, and is small in encoders that have hardly begun; the penalty is a sum
    over classes, and large while nodes are far apart. Where it outweighs ΔR, nodes agree on collapsed features. Both
    ends of an edge compute the same number from what both were told, so that Y_ij = −Y_ji stays true.
    """
    apart = torch.stack([s.V for s in neighbours]) - stats.V
    penalty = gamma / 4 * (_held(stats, neighbours) * apart.square().sum((2, 3))).sum(1)
    gained = torch.stack([rate_reduction(s, eps2).reduction for s in (stats, *neighbours)])
    most = balance * gained[1:].minimum(gained[0]).clamp(min=0)
    return (most / penalty.clamp(min=torch.finfo(penalty.dtype).tiny)).clamp(max=1)


def dual_step(
    Y: Tensor, stats: ClassStats, neighbours: Sequence[ClassStats], rho: float, weights: Tensor | None = None
) -> Tensor:
    """Return Y + ρ Σ_j (V_i − V_j), eq. (R1_2a) summed over the neighbours.

    Only the sum Y = Σ_j Y_ij enters the local objective; Y_ij = −Y_ji stays true, so the Y of all
    nodes add to zero on an undirected graph. A class that either side lacks is left out.

    Args:
        Y: (K, d, d) summed duals of this node.
        weights: (J,) how much each edge counts, see `edge_weights`; all 1 if left out.
    """
    if not neighbours:
        return Y
    n, V_sum = _shared(stats, neighbours, weights)
    return Y + rho * (n[:, None, None] * stats.V - V_sum)


def fold_neighbours(stats: ClassStats, neighbours: Sequence[ClassStats], weights: Tensor | None = None) -> Folded:
    """Fold the neighbours into T̄ = mean_j ½(V_i + V_j), eq. (R1_T), and n; with weights (J,), their mean and sum.

    Σ_j ‖V − T_ij‖² = n‖V − T̄‖² + constant, so an inner step costs O(Kd²) whatever the degree.
    """
    if not neighbours:
        return Folded(torch.zeros_like(stats.V), torch.zeros_like(stats.m))
    n, V_sum = _shared(stats, neighbours, weights)
    return Folded((stats.V + V_sum / torch.where(n > 0, n, torch.ones_like(n))[:, None, None]) / 2, n)


def majority(neighbours: Sequence[ClassStats], how: Robust, drop: int = 1) -> list[ClassStats]:
    """Replace what every neighbour says of a class by what their majority says (beyond the paper).

    Statistics can be well formed and false: another class's, or turned away. The mean follows any single lie as far as
    it goes; a median or a trimmed mean does not, as long as fewer than half of the neighbours that hold the class lie.
    The sums of Algorithm 1 over neighbours stay as they are; only what is summed changes.

    Args:
        how: "median", entry by entry; "trimmed", the mean without those farthest from the median, which is still a mean
            of second moments; "off" changes nothing.
        drop: trimmed: how many are left out of a class, never half of them or more.
    """
    if how == "off" or not neighbours:
        return list(neighbours)
    held = torch.stack([s.held for s in neighbours])  # (n, K)
    told = [s.tensors() for s in neighbours]
    common = set.intersection(*(set(parts) for parts in told)) - {"m"}
    centres = {name: centre(torch.stack([parts[name] for parts in told]), held, how, drop) for name in sorted(common)}
    return [ClassStats.from_tensors({**centres, "m": s.m}).scaled(1) for s in neighbours]


def centre(values: Tensor, held: Tensor, how: Robust, drop: int) -> Tensor:
    """Return the centre (K, ...) of values (n, K, ...) over those that are held (n, K); zero where none is held."""
    shape, flat = values.shape[1:], values.reshape(*values.shape[:2], -1)
    median = _median(flat, held)
    if how == "median":
        return median.reshape(shape)
    far = (flat - median).norm(dim=2).masked_fill(~held, torch.inf)  # (n, K)
    n = held.sum(0)
    kept = n - torch.minimum(torch.full_like(n, drop), (n - 1).clamp(min=0) // 2)
    weight = (far.argsort(dim=0, stable=True).argsort(dim=0) < kept).to(flat.dtype)  # those without the class sort last
    mean = torch.einsum("nk,nkx->kx", weight, flat) / kept.clamp(min=1).to(flat.dtype)[:, None]
    return mean.reshape(shape)


def _median(flat: Tensor, held: Tensor) -> Tensor:
    """Return the median (K, x) of (n, K, x) over those held; of an even number, the mean of the two in the middle."""
    ordered = flat.masked_fill(~held[..., None], torch.inf).sort(0).values
    n = held.sum(0)
    low, high = ((n - 1).clamp(min=0) // 2), n // 2
    places = torch.stack([low, torch.minimum(high, (n - 1).clamp(min=0))])[..., None].expand(2, *flat.shape[1:])
    middle = ordered.gather(0, places).mean(0)
    return torch.where((n > 0)[:, None], middle, torch.zeros_like(middle))


class _WithGradient(torch.autograd.Function):
    """Attach a gradient that is already known to a value that is already known."""

    @staticmethod
    def forward(ctx: Any, _Z: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None, None


def consensus_loss(
    Z: Tensor,
    y: Tensor,
    *,
    Y: Tensor,
    T_bar: Tensor,
    n: float | Tensor,
    gamma: float,
    eps2: float = 0.5,
    scale: float = 1.0,
    running: RunningStats | None = None,
) -> ConsensusTerms:
    """Return the local objective of Algorithm 1 on a batch, with its closed-form gradient.

    Args:
        Z: (n_batch, d) features of the batch, rows of unit length.
        y: (n_batch,) labels in 0..K-1. A class absent from the batch contributes nothing.
        Y: (K, d, d) summed duals; V_k is symmetric, so that of each only the symmetric part counts.
        T_bar: (K, d, d) mean midpoints, symmetric, see `fold_neighbours`.
        n: number of neighbours, or (K,) of them per class.
        gamma: penalty parameter γ.
        eps2: ε².
        scale: weight w of ΔR (m_i/m in the paper, 1 in "local" scale).
        running: running statistics; None, or β = 1, is the paper's in-batch loss.

    Returns:
        terms whose `.total` is differentiable with respect to Z, once: the gradient is given, not derived, so a
        penalty on the gradient itself sees a constant.
    """
    K, d = Y.shape[0], Z.shape[-1]
    _check_batch(Z, y, K, eps2)
    if Y.shape != (K, d, d) or T_bar.shape != (K, d, d):
        raise InputError(
            f"Y and T_bar must have shape (K, d, d) with d = {d} as in Z; "
            f"got {tuple(Y.shape)} and {tuple(T_bar.shape)}."
        )
    precision = torch.promote_types(Z.dtype, torch.float32)
    if Y.dtype != precision or T_bar.dtype != precision:
        raise InputError(
            f"Y and T_bar must have dtype {precision} for Z of {Z.dtype}; got {Y.dtype} and {T_bar.dtype}."
        )
    if not torch.allclose(T_bar, T_bar.mT, atol=SYMMETRIC):
        raise InputError(
            "T_bar must be symmetric, as midpoints of second moments are; got entries "
            f"{float((T_bar - T_bar.mT).abs().max()):.3g} apart from their mirror images. Use fold_neighbours."
        )
    if isinstance(n, Tensor) and n.shape not in ((), (K,)):
        raise InputError(f"n must be a number or have shape (K,) = ({K},); got {tuple(n.shape)}.")
    return coupled_loss(Z, y, Coupling.of((Y + Y.mT) / 2, T_bar, n, gamma), eps2=eps2, scale=scale, running=running)


def coupled_loss(
    Z: Tensor, y: Tensor, coupling: Coupling, *, eps2: float, scale: float, running: RunningStats | None = None
) -> ConsensusTerms:
    """Return `consensus_loss` with the neighbours folded once for a whole round, input not checked."""
    return _differentiable(Z, y, coupling.Y.shape[0], eps2, scale, coupling, running)


def mcr2_loss(Z: Tensor, y: Tensor, num_classes: int, eps2: float = 0.5) -> Tensor:
    """Return −ΔR of a batch, eq. (MCR2): a scalar to minimise, with its closed-form gradient.

    Args:
        Z: (m, d) features, rows of unit length.
        y: (m,) labels in 0..num_classes-1.

    >>> Z = torch.eye(2, requires_grad=True)
    >>> round(mcr2_loss(Z, torch.tensor([0, 1]), num_classes=2).item(), 4)
    -0.2939
    """
    _check_batch(Z, y, num_classes, eps2)
    return _differentiable(Z, y, num_classes, eps2).total


def _check_batch(Z: Tensor, y: Tensor, num_classes: int, eps2: float) -> None:
    check_eps2(eps2)
    check_features(Z, y, num_classes)
    if Z.shape[0] < 2:
        raise InputError(f"Z must have at least 2 rows; got {Z.shape[0]}. Raise the batch size.")


def _differentiable(
    Z: Tensor,
    y: Tensor,
    num_classes: int,
    eps2: float,
    scale: float = 1.0,
    coupling: Coupling | None = None,
    running: RunningStats | None = None,
) -> ConsensusTerms:
    """Evaluate, and hang the known gradient on the known value."""
    precision = working_precision(Z.dtype, Z.shape[1], eps2)
    check_resolution(precision if running is None else running.V.dtype, Z.shape[1], eps2)
    with torch.no_grad():
        X, coupling = Z.detach().to(precision), None if coupling is None else coupling.to(precision)
        terms, gradient = value_and_gradient(X, y.long(), num_classes, coupling, eps2, scale, running)
        value = terms.total.to(torch.promote_types(Z.dtype, torch.float32))
    total = _WithGradient.apply(Z, value, gradient.to(Z.dtype))  # type: ignore[no-untyped-call]
    return replace(terms, total=total)
