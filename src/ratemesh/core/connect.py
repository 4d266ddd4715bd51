"""Connect encoders that were trained apart: one orthogonal map a site, from class statistics alone (beyond the paper).

With w_{i,k} site i's share of all samples of class k, the maps Q_i maximise the energy of the pooled statistics,

    F = ½ Σ_k ‖Σ_i w_{i,k} Q_i V_{i,k} Q_iᵀ‖² + ½β Σ_k ‖Σ_i w_{i,k} Q_i μ_{i,k}‖² + ½ηs Σ_k ‖Σ_i w_{i,k} Q_i C_{i,k}‖²,

which is largest where the sites' statistics fall on each other (generalised Procrustes). F is convex in each Q_i, so
Q_i ← polar(∇_i F) never lowers it. s makes η = 1 weigh sketch moments like second moments, whatever their scale.
Encoders of fewer dimensions than the widest are padded with zeros: their maps have orthonormal columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ratemesh.core.gauge import align, polar
from ratemesh.core.sketch import SketchMoments
from ratemesh.core.stats import ClassStats, check_stats
from ratemesh.errors import InputError

SWEEPS = 100
"""Most times that every site is turned; from the starts that `align` finds, some ten are needed."""

TOL = 1e-6
"""Part of F below which the gain of a sweep ends the climb."""


@dataclass(frozen=True)
class Connected:
    """Maps of all sites into the common space.

    Attributes:
        maps: site i's W_i (D, d_i) with W_iᵀW_i = I; features (m, d_i) are mapped by Z @ W_i.T.
        objective: F after every sweep, the first before any; it never falls.
    """

    maps: list[Tensor]
    objective: list[float]


def padded(stats: ClassStats, D: int) -> ClassStats:
    """Return the statistics of features with zeros appended up to D dimensions."""
    more = D - stats.d
    sketch = stats.sketch and SketchMoments(pad(stats.sketch.C, (0, 0, 0, more)), stats.sketch.h, stats.sketch.v)
    return ClassStats(pad(stats.V, (0, more, 0, more)), pad(stats.mu, (0, more)), stats.m, sketch)


def connect(
    sites: Sequence[ClassStats],
    *,
    means: float = 1.0,
    sketch: float = 10.0,
    sweeps: int = SWEEPS,
    tol: float = TOL,
    names: Sequence[str] = (),
) -> Connected:
    """Return one map a site into a space of D = max d_i dimensions, in which the sites' statistics agree best.

    The widest site that has sketch moments keeps its frame; then the site that shares most classes with those already
    in is turned towards their sum (`align`), and so on; then all are turned in turn until nothing gains.

    Args:
        sites: statistics of each site, all about the same K classes; a class that a site does not hold has m_k = 0.
        means: β, weight of the class means.
        sketch: η, weight of sketch moments where sites have them.
        sweeps: at most so many turns of every site.
        tol: stop when a sweep gains less than this part of F.
        names: of the sites, for messages; else their numbers.
    """
    names = names or [f"site {i}" for i in range(len(sites))]
    _check(sites, names)
    D = max(site.d for site in sites)
    wide = [padded(site, D) for site in sites]
    turns = _one_by_one(wide, _order(sites, names), means, sketch)
    frames = Frames([site.rotated(Q) for site, Q in zip(wide, turns, strict=True)], means, sketch)
    found = [frames.objective()]
    for _ in range(sweeps):
        turns = [frames.turn(i) @ Q for i, Q in enumerate(turns)]
        found.append(frames.objective())
        if found[-1] - found[-2] <= tol * abs(found[-1]):
            break
    return Connected([Q[:, : site.d] for Q, site in zip(turns, sites, strict=True)], found)


def join(newcomer: ClassStats, pool: ClassStats, *, means: float = 1.0, sketch: float = 10.0) -> Tensor:
    """Return the map W (D, d) of a site that joins the pooled statistics of a finished connection; nobody else turns.

    Where d > D the pool is taken to have zeros in the further dimensions, and D is d.
    """
    D = max(newcomer.d, pool.d)
    return align(padded(newcomer, D), padded(pool, D), means=means, sketch=sketch)[:, : newcomer.d]


class Frames:
    """All sites' statistics in the current frames, weighted by their shares of each class, and their sums."""

    def __init__(self, sites: Sequence[ClassStats], means: float, sketch: float) -> None:
        counts = torch.stack([site.m for site in sites])
        self.shares = counts / counts.sum(0).clamp(min=torch.finfo(counts.dtype).tiny)
        self.V = torch.stack([site.V for site in sites]) * self.shares[..., None, None]
        # Means and sketch moments turn alike, as columns: one block [√β μ_k, √(ηs) C_k] of each class.
        mu = torch.stack([site.mu for site in sites])[..., None] * means**0.5
        self.F = torch.cat([mu, *self._by_sketch(sites, sketch)], dim=-1) * self.shares[..., None, None]
        self.V_pool, self.F_pool = self.V.sum(0), self.F.sum(0)

    def _by_sketch(self, sites: Sequence[ClassStats], weight: float) -> list[Tensor]:
        """Return the scaled sketch moments (N, K, d, p), zeros where a site has none; nothing if no site has any."""
        like = next((site.sketch for site in sites if site.sketch), None)
        if like is None:
            return []
        C = torch.stack([_signal(site, site.sketch) if site.sketch else torch.zeros_like(like.C) for site in sites])
        size = (C * self.shares[..., None, None]).square().sum()
        scale = self.V.square().sum() / size.clamp(min=torch.finfo(C.dtype).tiny)
        return [C * (weight * scale) ** 0.5] if bool(size > 0) else []

    def objective(self) -> float:
        """Return F."""
        return float((self.V_pool.square().sum() + self.F_pool.square().sum()) / 2)

    def turn(self, i: int) -> Tensor:
        """Turn site i towards the sum of the others; return by which orthogonal matrix."""
        M, G = self.V_pool - self.V[i], self.F_pool - self.F[i]
        Q = polar((M @ self.V[i]).sum(0) + (G @ self.F[i].mT).sum(0) / 2)
        self.V[i], self.F[i] = Q @ self.V[i] @ Q.mT, Q @ self.F[i]
        self.V_pool, self.F_pool = M + self.V[i], G + self.F[i]
        return Q


def _signal(site: ClassStats, sketch: SketchMoments) -> Tensor:
    """Return the sketch moments (K, d, p), each class as far as it is no sampling noise, as `align` counts them."""
    return sketch.C * sketch.signal(site.spread(), site.m).sqrt()[:, None, None]


def _one_by_one(sites: Sequence[ClassStats], order: Sequence[int], means: float, sketch: float) -> list[Tensor]:
    """Return a first turn of every site: in this order, each towards the sum of those that are in already."""
    turns: list[Tensor] = [torch.eye(sites[0].d, dtype=sites[0].V.dtype, device=sites[0].V.device)] * len(sites)
    pool = sites[order[0]]
    for i in order[1:]:
        turns[i] = align(sites[i], pool, means=means, sketch=sketch)
        pool = pool + sites[i].rotated(turns[i])
    return turns


def _order(sites: Sequence[ClassStats], names: Sequence[str]) -> list[int]:
    """Return the sites in the order in which they are connected: each shares classes with those before it.

    Sites with sketch moments come first where possible: a sum has them only if all its parts do.
    """
    held = torch.stack([site.held for site in sites])
    left = list(range(len(sites)))
    order = [max(left, key=lambda i: (sites[i].sketch is not None, sites[i].d, -i))]
    left.remove(order[0])
    while left:
        inside = held[order].any(0)
        shared = {i: int((held[i] & inside).sum()) for i in left}
        nearest = max(left, key=lambda i: (shared[i] > 0, sites[i].sketch is not None, shared[i], -i))
        if not shared[nearest]:
            raise InputError(
                f"sites must be linked by shared classes; {_listed(names, left)} share none with "
                f"{_listed(names, order)}. Classes are matched by name: check the spelling of labels, or add a site "
                "that holds some of both."
            )
        left.remove(nearest)
        order.append(nearest)
    return order


def _listed(names: Sequence[str], some: Sequence[int]) -> str:
    return ", ".join(names[i] for i in sorted(some))


def _check(sites: Sequence[ClassStats], names: Sequence[str]) -> None:
    """Refuse fewer than two sites, and statistics that are not about the same classes, sketch and precision."""
    if len(sites) < 2:
        raise InputError(f"sites must be at least two to be connected; got {len(sites)}. Add another.")
    for site, name in zip(sites, names, strict=True):
        check_stats(site, f"statistics of {name}")
    wanted: dict[str, Sequence[object]] = {
        "number of classes K": [site.num_classes for site in sites],
        "precision": [site.V.dtype for site in sites],
        "sketch dimension p": [site.sketch.p for site in sites if site.sketch],
    }
    for what, values in wanted.items():
        if len(set(values)) > 1:
            raise InputError(f"sites must have one {what}; got {values}. Compute all statistics alike.")
