"""Accuracies where nodes hold only some of the classes: what each knows, what it cannot know, and both fused."""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import NearestSubspace


def holders(stats: Sequence[ClassStats]) -> Tensor:
    """Return which node holds which class, (N, K) booleans."""
    return torch.stack([s.held for s in stats])


def partial_accuracies(
    stats: Sequence[ClassStats], Z_test: Tensor, y_test: Tensor, energy: float, rank: int | None
) -> dict[str, float]:
    """Return accuracies on held-out features (N, m, d) by nearest pooled subspace; empty if all hold all classes.

    `acc_label_aware`: residuals of a class averaged over the nodes that hold it. `acc_own`, `acc_foreign`: one node
    alone, among all classes, on samples of classes that it holds or does not hold; `acc_own_closed`: on its own
    classes, among its own classes. All three are means over the nodes that there are such samples for.
    """
    held = holders(stats)
    if bool(held.all()):
        return {}
    judge = NearestSubspace("energy", energy=energy, rank=rank).fit_stats(ClassStats.sum(stats))
    own, closed, foreign = [], [], []
    for Z, has in zip(Z_test, held, strict=True):
        mine = has[y_test]
        residuals = judge.residuals(Z)
        own.append(_right(residuals[mine], y_test[mine]))
        closed.append(_right(residuals[mine].masked_fill(~has, torch.inf), y_test[mine]))
        foreign.append(_right(residuals[~mine], y_test[~mine]))
    return {
        "acc_label_aware": judge.score(Z_test, y_test, held[:, None, :]),
        "acc_own": _mean(own),
        "acc_own_closed": _mean(closed),
        "acc_foreign": _mean(foreign),
    }


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what is known: to a node that holds every class no sample is foreign."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _right(residuals: Tensor, y: Tensor) -> float:
    """Return the part of samples whose smallest residual is that of their class."""
    return float((residuals.argmin(1) == y).double().mean()) if len(y) else float("nan")
