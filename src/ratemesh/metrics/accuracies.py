"""How well samples are classified: by subspaces and Gaussians of exchanged statistics, and by probes of features."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from ratemesh.core.checks import check_finite, check_labelled
from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, accuracy


def accuracies(stats: Sequence[ClassStats], Z: Tensor, y: Tensor, rule: SubspaceRule) -> dict[str, float]:
    """Return every accuracy that statistics of the nodes give on held-out features Z (N, m, d), labels y (m,).

    `acc_gaussian`, log-likelihoods of every node's own Gaussians added, only where all nodes hold the same classes;
    those of `partial_accuracies` only where some node lacks a class.
    """
    held = holders(stats)
    found = subspace_accuracies(ClassStats.sum(stats), Z, y, rule)
    if bool((held == held[0]).all()):
        found["acc_gaussian"] = OwnGaussians().fit(stats).score(Z, y)
    return found if bool(held.all()) else found | partial_accuracies(stats, Z, y, rule)


def holders(stats: Sequence[ClassStats]) -> Tensor:
    """Return which node holds which class, (N, K) booleans."""
    return torch.stack([s.held for s in stats])


def subspace_accuracies(pooled: ClassStats, Z: Tensor, y: Tensor, rule: SubspaceRule) -> dict[str, float]:
    """Return accuracies on held-out features (N, m, d) by nearest subspace, fitted on pooled training statistics.

    `acc_average` of averaged features (paper), `acc_energy` of residuals added over nodes, `acc_node` the mean over
    nodes of one node alone.
    """
    fused = SubspaceJudge("energy", rule=rule).fit_stats(pooled)
    each = fused.distances(Z)
    return {
        "acc_average": accuracy(fused.predict(Z.mean(0)), y),
        "acc_energy": accuracy(each.sum(0).argmin(-1), y),
        "acc_node": fmean(accuracy(nearest, y) for nearest in each.argmin(-1)),
    }


def partial_accuracies(stats: Sequence[ClassStats], Z: Tensor, y: Tensor, rule: SubspaceRule) -> dict[str, float]:
    """Return accuracies on held-out features (N, m, d) by nearest pooled subspace, by who holds what.

    `acc_label_aware`: residuals of a class averaged over the nodes that hold it. `acc_held`, `acc_foreign`: one node
    alone, among all classes, on samples of classes that it holds or does not hold; `acc_held_closed`: on its own
    classes, among its own classes. All three are means over the nodes that there are such samples for.
    """
    held = holders(stats)
    judge = SubspaceJudge("energy", rule=rule).fit_stats(ClassStats.sum(stats))
    own, closed, foreign = [], [], []
    for Z_i, has in zip(Z, held, strict=True):
        mine = has[y]
        residuals = judge.residuals(Z_i)
        own.append(accuracy(residuals[mine].argmin(1), y[mine]))
        closed.append(accuracy(residuals[mine].masked_fill(~has, torch.inf).argmin(1), y[mine]))
        foreign.append(accuracy(residuals[~mine].argmin(1), y[~mine]))
    return {
        "acc_label_aware": judge.score(Z, y, held[:, None, :]),
        "acc_held": _mean_of_known(own),
        "acc_held_closed": _mean_of_known(closed),
        "acc_foreign": _mean_of_known(foreign),
    }


def _mean_of_known(values: Iterable[float]) -> float:
    """Return the mean without NaN: to a node that holds every class no sample is foreign."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def knn_predict(Z: Tensor, y: Tensor, Z_new: Tensor, *, k: int = 200, temperature: float = 0.1) -> Tensor:
    """Return labels (q,) of features Z_new (q, d) by a vote of the k nearest of Z (m, d), labels y (m,).

    Nearness is the cosine s; a neighbour's vote weighs exp(s / T). With fewer than k samples all of them vote.
    """
    # 0.17 s a node where one product in torch takes 0.12 s (2000 samples on both sides, d = 128): not worth own code.
    from sklearn.neighbors import KNeighborsClassifier

    check_labelled(Z, y)
    check_finite(Z_new, "Z_new")
    votes = KNeighborsClassifier(
        min(k, len(y)),
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance) / temperature),
    )
    votes.fit(Z.double().numpy(force=True), y.numpy(force=True))
    return torch.as_tensor(votes.predict(Z_new.double().numpy(force=True)), device=y.device)


def linear_predict(Z: Tensor, y: Tensor, Z_new: Tensor, *, ridge: float = 0.01) -> Tensor:
    """Return labels (q,) of features Z_new (q, d) by ridge regression on the classes of Z (m, d), labels y (m,).

    The penalty is `ridge` times the mean variance of a feature, relative, so that their scale does not matter; the
    offset is not penalised.
    """
    from sklearn.linear_model import RidgeClassifier

    check_labelled(Z, y)
    check_finite(Z_new, "Z_new")
    X = Z.double()
    # Constant features have no variance; any penalty above 0 then gives the most frequent class.
    penalty = (ridge * len(X) * X.var(0, correction=0).mean()).clamp(min=torch.finfo(X.dtype).eps)
    probe = RidgeClassifier(alpha=float(penalty)).fit(X.numpy(force=True), y.numpy(force=True))
    return torch.as_tensor(probe.predict(Z_new.double().numpy(force=True)), device=y.device)
