"""Accuracies by who holds what: every node's own statistics where all hold the same classes, else label-aware."""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import NearestSubspace, SubspaceRule


def holders(stats: Sequence[ClassStats]) -> Tensor:
    """Return which node holds which class, (N, K) booleans."""
    return torch.stack([s.held for s in stats])


def own_accuracy(stats: Sequence[ClassStats], Z_test: Tensor, y_test: Tensor) -> dict[str, float]:
    """Return `acc_gaussian` on held-out features (N, m, d): log-likelihoods of every node's own Gaussians added.

    Empty if nodes hold different classes.
    """
    held = holders(stats)
    if not bool((held == held[0]).all()):
        return {}
    return {"acc_gaussian": OwnGaussians().fit(stats).score(Z_test, y_test)}


def partial_accuracies(
    stats: Sequence[ClassStats], Z_test: Tensor, y_test: Tensor, rule: SubspaceRule
) -> dict[str, float]:
    """Return accuracies on held-out features (N, m, d) by nearest pooled subspace; empty if all hold all classes.

    `acc_label_aware`: residuals of a class averaged over the nodes that hold it. `acc_own`, `acc_foreign`: one node
    alone, among all classes, on samples of classes that it holds or does not hold; `acc_own_closed`: on its own
    classes, among its own classes. All three are means over the nodes that there are such samples for.
    """
    held = holders(stats)
    if bool(held.all()):
        return {}
    judge = NearestSubspace("energy", rule=rule).fit_stats(ClassStats.sum(stats))
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
