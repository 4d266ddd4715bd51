"""Gauge alignment: turn a node's whole feature space towards its neighbours' (beyond the paper).

ΔR does not change under Z ← ZQᵀ, the consensus constraint does, and gradient steps need hundreds of
rounds to turn a feature space that a rotation turns at once. Second moments and means, exchanged anyway, fix the frame
between classes; sketch moments (`core.sketch`) also inside them.
"""

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats, check_stats
from ratemesh.errors import InputError


def polar(B: Tensor) -> Tensor:
    """Return the orthogonal polar factor of B (d, d): the orthogonal Q that maximises ⟨Q, B⟩."""
    U, _, Wh = torch.linalg.svd(B)
    Q: Tensor = U @ Wh
    return Q


def align(
    stats: ClassStats,
    target: ClassStats,
    *,
    means: float = 1.0,
    sketch: float = 10.0,
    iterations: int = 100,
    tol: float = 1e-4,
    from_identity_only: bool = False,
    away: Tensor | None = None,
) -> Tensor:
    """Return the orthogonal Q (d, d) that best turns statistics towards the target's.

    It maximises Σ_k ⟨Q V_k Qᵀ, M_k⟩ + β Σ_k ⟨Q μ_k, μ_{M,k}⟩ + η Σ_k ⟨Q C_k, C_{M,k}⟩, which is convex in Q: maximising
    its linearisation, Q ← polar(Σ_k M_k Q V_k + ½ P) with P = β Σ_k μ_{M,k} μ_kᵀ + η Σ_k C_{M,k} C_kᵀ, never lowers it.
    Starts are the identity, a rank-by-rank match of the classes' principal axes, with sketch moments polar(P)
    (Procrustes), with `away` one more; the best result is kept: Q is never worse than no turn at all.

    Args:
        stats: statistics to be turned.
        target: statistics to be matched, e.g. the sum over neighbours; only shared classes count.
        means: β, weight of the class means; 0 leaves them out.
        sketch: weight of sketch moments where both sides have them, relative to that of second moments (`_by_sketch`);
            0 leaves them out.
        iterations: at most this many steps from each start.
        tol: stop when a step gains less than this part of the objective.
        from_identity_only: skip the other starts (later rounds, when the frames nearly agree).
        away: (d, d) B ⪰ 0, a weighted sum of second moments that all of this node's classes should keep clear of:
            those of classes that it does not hold. Then Σ_k ⟨Q V_k Qᵀ, M_k − B⟩ is maximised over all classes held.

    Returns:
        Q with QᵀQ = I. Apply it as Z @ Q.T, stats.rotated(Q) or encoder.turn(Q).
    """
    check_stats(stats, "stats")
    check_stats(target, "target")
    if stats.V.shape != target.V.shape or stats.V.dtype != target.V.dtype:
        raise InputError(
            f"target must have the same K and d as stats: {tuple(target.V.shape)} against {tuple(stats.V.shape)}; "
            f"and their dtype: {target.V.dtype} against {stats.V.dtype}."
        )
    for weight, name, what in ((means, "means", "class means"), (sketch, "sketch", "sketch moments")):
        if weight < 0:
            raise InputError(f"{name} must not be negative; got {weight}. 0 leaves {what} out.")
    shared = (stats.held & target.held).to(stats.V.dtype)
    V, M = stats.V * shared[:, None, None], target.V
    eye = torch.eye(stats.d, dtype=V.dtype, device=V.device)
    if away is not None:
        # ⟨Q V Qᵀ, cI⟩ = c·tr V whatever Q is, so with c the largest eigenvalue of B the targets M_k − B + cI have the
        # same maximiser and are positive semi-definite: the objective is convex again and the climb monotone.
        V, M = stats.V, M * shared[:, None, None] - away + torch.linalg.eigvalsh(away)[-1] * eye
    pull = (means / 2) * torch.einsum("k,ka,kb->ab", shared, target.mu, stats.mu)
    inside = _by_sketch(stats, target, shared) if sketch else None
    if inside is not None:
        pull = pull + (sketch / 2) * inside
    starts = [eye]
    if not from_identity_only:
        matched = _match_axes(stats, target, means)
        starts += [polar(matched)] if away is None else [polar(matched), polar(matched + _match_free(stats, target))]
        starts += [] if inside is None else [polar(pull)]
    best = [_climb(Q, V, M, pull, iterations, tol) for Q in starts]
    return max(best, key=lambda pair: float(pair[1]))[0]


def _climb(Q: Tensor, V: Tensor, M: Tensor, pull: Tensor, iterations: int, tol: float) -> tuple[Tensor, Tensor]:
    """Iterate Q ← polar(∇/2) from `Q`; return the last Q and its objective."""

    def half_gradient(Q: Tensor) -> tuple[Tensor, Tensor]:
        turned = (M @ (Q @ V)).sum(0)
        return turned + pull, ((turned + 2 * pull) * Q).sum()

    B, value = half_gradient(Q)
    for _ in range(iterations):
        Q_next = polar(B)
        B, new = half_gradient(Q_next)
        if not new > value:  # rounding: the step no longer climbs
            break
        gain, Q, value = new - value, Q_next, new
        if gain <= tol * value.abs():
            break
    return Q, value


def _by_sketch(stats: ClassStats, target: ClassStats, shared: Tensor) -> Tensor | None:
    """Return Σ_k s_k C_{M,k} C_kᵀ (d, d), scaled so that a weight of 1 makes it count as much as second moments.

    How large C is depends on the sketch and on how much a class varies; the scale Σ‖V_k‖‖M_k‖ / Σ‖C_k‖‖C_{M,k}‖ takes
    that out. s_k is the part of C_k and C_{M,k} that is no sampling noise (`SketchMoments.signal`): where samples are
    few, or a sketch has nothing to do with the features, the noise would else turn nodes anywhere. None where either
    side has no sketch moments, or none that say anything (one sample a class).
    """
    if stats.sketch is None or target.sketch is None:
        return None
    if stats.sketch.p != target.sketch.p:
        raise InputError(
            f"target must have sketch moments of the same sketch as stats: p = {target.sketch.p} against "
            f"{stats.sketch.p}. Use one sketch at all nodes."
        )
    C, C_M = stats.sketch.C * shared[:, None, None], target.sketch.C
    size = (C.norm(dim=(1, 2)) * C_M.norm(dim=(1, 2))).sum()
    if not bool(size > torch.finfo(C.dtype).tiny):
        return None
    scale = (shared * stats.V.norm(dim=(1, 2)) * target.V.norm(dim=(1, 2))).sum() / size
    told = [side.sketch.signal(side.spread(), side.m) for side in (stats, target) if side.sketch]
    found: Tensor = scale * torch.einsum("k,kap,kbp->ab", (told[0] * told[1]).sqrt(), C_M, C)
    return found


def _match_axes(stats: ClassStats, target: ClassStats, means: float) -> Tensor:
    """Return Σ_k U_{M,k} U_kᵀ, principal axes scaled by root eigenvalue, matched by rank.

    An axis has no sign of its own; each is pointed to the side of its class's mean, or else the climb
    would start in the valley of a reflection that V cannot see and the means can.
    """
    values, axes = torch.linalg.eigh(torch.stack([stats.V, target.V]))
    side = torch.einsum("skia,ski->ska", axes, means * torch.stack([stats.mu, target.mu]))
    signs = torch.where(side < 0, -torch.ones_like(side), torch.ones_like(side))
    scaled = axes * (signs * values.clamp(min=0).sqrt())[..., None, :]
    matched: Tensor = (scaled[1] @ scaled[0].mT).sum(0)
    return matched


def _match_free(stats: ClassStats, target: ClassStats) -> Tensor:
    """Return F Pᵀ, the principal axes of all classes the target lacks matched with the directions it uses least."""
    private = (stats.held & ~target.held).to(stats.V.dtype)
    values, axes = torch.linalg.eigh(torch.einsum("k,kab->ab", private, stats.V))
    _, free = torch.linalg.eigh(target.V.sum(0))  # ascending: the least used direction first
    matched: Tensor = free @ (axes * values.clamp(min=0).sqrt()).flip(-1).mT
    return matched
