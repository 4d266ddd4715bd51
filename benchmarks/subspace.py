"""Residuals of test samples to all classes' subspaces: one product in pieces against broadcasting over classes."""

import torch
from torch import Tensor

from benchmarks.tables import Table
from benchmarks.timing import interleave, milliseconds, ratio
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.threads import pinned

D, SAMPLES = 128, 4000


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    repeats = 1 if quick else 5
    with pinned(1):
        rows = [_row(K, repeats) for K in (10, 100)]
    return [
        Table(
            f"Nearest subspace, {SAMPLES} samples, d = {D}",
            "SubspaceJudge.distances, relative to a product of every sample with all axes of every class at once.",
            ("", "broadcast / ours", "lower quartile, ms", "median, ms", "largest difference"),
            rows,
            "float32, one thread; classes are cut at 95 % of their variance, which the broadcast multiplies by zero.",
        )
    ]


def broadcast(stats: ClassStats, judge: SubspaceJudge, Z: Tensor) -> Tensor:
    """Return squared residuals (m, K), every class's axes at full width, all at once."""
    variance, axes = torch.linalg.eigh(stats.covariance())
    variance, axes = variance.flip(-1), axes.flip(-1)
    part = variance.cumsum(-1) / variance.sum(-1, keepdim=True)
    rank = torch.minimum((part < judge.rule.energy - 1e-7).sum(-1) + 1, (stats.m - 1).long())
    axes = axes * (torch.arange(D) < rank[:, None])[:, None, :]
    inside = torch.einsum("md,kdr->mkr", Z, axes) - torch.einsum("kd,kdr->kr", stats.mu, axes)
    apart: Tensor = Z.square().sum(-1, keepdim=True) - 2 * Z @ stats.mu.mT + stats.mu.square().sum(-1)
    return apart - inside.square().sum(-1)


def _row(K: int, repeats: int) -> list[str]:
    draw = torch.Generator().manual_seed(K)
    y = torch.arange(SAMPLES) % K
    centres = 3 * torch.randn(K, D, generator=draw)
    Z = torch.nn.functional.normalize(torch.randn(SAMPLES, D, generator=draw) + centres[y], dim=-1)
    stats = ClassStats.of(Z, y, K)
    judge = SubspaceJudge().fit_stats(stats)
    difference = float((broadcast(stats, judge, Z) - judge.distances(Z)).abs().max())
    timings = interleave(
        {"broadcast": lambda: broadcast(stats, judge, Z), "ours": lambda: judge.fit_stats(stats).distances(Z)}, repeats
    )
    relative = ratio(timings["broadcast"], timings["ours"])
    return [f"K = {K}", f"{relative:.1f}×", *milliseconds(timings["ours"]), f"{difference:.1e}"]
