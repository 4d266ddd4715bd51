"""Transport of mass between sets of points: equal clusters, and how far points are from uniform on the sphere."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.errors import RatemeshError

LEAST_MASS = 0.1
"""Part of the mass that a plan must move; below it a regulariser is off without saying so."""


@torch.no_grad()
def sinkhorn(scores: Tensor, *, sharpness: float = 25.0, steps: int = 100, tolerance: float = 1e-2) -> Tensor:
    """Return soft assignments (n, G) of n points to G clusters of equal size, from cosines (n, G).

    Rows sum to 1, columns to n/G as nearly as the steps allow. Sinkhorn–Knopp from the row-wise softmax of
    `sharpness` · scores, in double precision; every ten steps it is looked whether rows still change by more than
    `tolerance`.
    """
    P = (sharpness * scores.double()).softmax(1)
    n, G = P.shape
    for step in range(steps):
        P = P * (n / G / P.sum(0).clamp(min=torch.finfo(P.dtype).tiny))
        rows = P.sum(1, keepdim=True)
        P = P / rows
        if step % 10 == 9 and float((rows - 1).abs().mean()) < tolerance:
            break
    return P.to(scores)


def sphere(n: int, d: int, draw: torch.Generator) -> Tensor:
    """Draw n unit vectors (n, d), uniform on the sphere."""
    return normalize(torch.randn(n, d, generator=draw), dim=1)


def sliced_uniformity(u: Tensor, draw: torch.Generator, *, points: int = 6, directions: int = 6) -> Tensor:
    """Return how far unit vectors u (n, D) are from uniform: squared sliced Wasserstein distance in tangent spaces.

    Both u and as many uniform draws s are mapped to the tangent space at each of some random points p, projected onto
    random Gaussian directions, sorted and compared. About π²/2 for n equal points; a floor of order 1/n remains for
    uniform ones.
    """
    n, D = u.shape
    s, p = sphere(n, D, draw).to(u), sphere(points, D, draw).to(u)
    theta = torch.randn(points, D, directions, generator=draw).to(u)
    ours, theirs = ((log_map(p, x) @ theta).sort(1).values for x in (u, s))
    return (ours - theirs).square().mean()


def log_map(p: Tensor, x: Tensor) -> Tensor:
    """Return log_p(x), (M, n, D): at points p (M, D) of the sphere, the tangents that lead to points x (n, D).

    Their length is the angle between p and x.
    """
    cosine = (p @ x.mT).clamp(-1 + 1e-6, 1 - 1e-6)[..., None]
    away = x - cosine * p[:, None]
    return cosine.arccos() * normalize(away, dim=-1)


def transport_uniformity(u: Tensor, draw: torch.Generator, *, scale: float = 1.0) -> Tensor:
    """Return ⟨π, C⟩, C_ij = ‖u_i − s_j‖², s uniform on the sphere, π the unbalanced plan between them, held constant.

    The price τ of mass that is not moved is `scale` times the mean of C: a fixed one would be right for one dimension.
    """
    s = sphere(len(u), u.shape[1], draw).to(u)
    C = torch.cdist(u, s).square()
    plan = unbalanced_plan(C.detach(), scale * float(C.detach().mean()))
    if (mass := float(plan.sum())) < LEAST_MASS:
        raise RatemeshError(
            f"method.price must be high enough for mass to be moved; with {scale:g} only {mass:.2g} of 1 is, and the "
            "regulariser is as good as off. Raise it; 1 is usual."
        )
    return (plan * C).sum()


@torch.no_grad()
def unbalanced_plan(C: Tensor, tau: float, *, steps: int = 20) -> Tensor:
    """Return π (n, m) that makes ⟨π, C⟩ + τ [KL(π1 | a) + KL(πᵀ1 | b)] small, a and b uniform, from π = a bᵀ.

    Each step minimises an upper bound of the objective that touches it at π, so that it never rises.
    """
    n, m = C.shape
    kernel = (-C / (2 * tau)).exp()
    plan = torch.full_like(C, 1 / (n * m))
    for _ in range(steps):
        plan = (
            plan
            * kernel
            / (n * plan.sum(1, keepdim=True) * m * plan.sum(0)).sqrt().clamp(min=torch.finfo(C.dtype).tiny)
        )
    return plan
