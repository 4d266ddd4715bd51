"""The numbers that every run ends with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import NearestSubspace, SubspaceRule
from ratemesh.errors import InputError
from ratemesh.metrics.alignment import WHOLE, cka_paired, cka_unpaired, mean_principal_angle
from ratemesh.metrics.classes import ClassCosine, class_mean_cosine, iidr, wccr
from ratemesh.metrics.geometry import disagreement, effective_rank, overlap
from ratemesh.metrics.partial import own_accuracy, partial_accuracies
from ratemesh.metrics.pooling import Measured
from ratemesh.metrics.probes import accuracy, fit_linear, knn_predict

ROWS = 2000
"""Samples a node that neighbours and CKA look at: enough to tell runs apart, and cheap for any data set."""

UNKNOWN = Measured(math.nan, math.nan, 0)
NO_COSINE = ClassCosine(torch.empty(0, 0), (), math.nan, math.nan, ())

Numbers = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Learned:
    """What was learned, as evaluation sees it.

    Attributes:
        stats: each node's statistics over its own training data.
        Z_train: (m_i, d) each node's features of its own training samples.
        y_train: (m_i,) their labels.
        Z_test: (N, m, d) every node's features of the same held-out samples.
        y_test: (m,) their labels.
        edges: the communication graph.
    """

    stats: Sequence[ClassStats]
    Z_train: Sequence[Tensor]
    y_train: Sequence[Tensor]
    Z_test: Tensor
    y_test: Tensor
    edges: Sequence[tuple[int, int]]


def evaluate(learned: Learned, *, eps2: float, rule: SubspaceRule) -> Numbers:
    """Return accuracies and geometry: numbers and lists only.

    A number that this run cannot have, such as the CKA of one node, is NaN, and the list `undefined` says why.
    A measured number x comes with `x_floor`, its expectation without structure, and `x_n`, its samples (a node, on
    average, where nodes were measured one by one).
    """
    pooled = ClassStats.sum(learned.stats)
    undefined: list[str] = []
    if len(learned.stats) < 2:
        undefined.append("disagreement: stats must hold at least two nodes to compare; got 1.")
    if int(pooled.held.sum()) < 2:
        undefined.append("overlap: stats must hold at least two classes to compare; got 1.")
    return {
        **subspace_accuracies(pooled, learned.Z_test, learned.y_test, rule),
        **own_accuracy(learned.stats, learned.Z_test, learned.y_test),
        **partial_accuracies(learned.stats, learned.Z_test, learned.y_test, rule),
        **_probes(learned, undefined),
        **_structure(learned, pooled, eps2),
        **_class_means(learned, undefined),
        **_alignment(learned, rule, undefined),
        "undefined": undefined,
    }


def thinned(y: Tensor, most: int = ROWS) -> Tensor:
    """Return at most `most` positions in labels (m,), ascending, every class in proportion to within one.

    The starts of equal stretches of the samples sorted by class: even spacing in their own order can skip classes
    when labels repeat with a period.
    """
    count = min(len(y), most)
    starts = torch.arange(count) * len(y) // max(count, 1)
    return torch.argsort(y, stable=True)[starts].sort().values


def subspace_accuracies(pooled: ClassStats, Z_test: Tensor, y_test: Tensor, rule: SubspaceRule) -> dict[str, float]:
    """Return accuracies on held-out features (N, m, d) by nearest subspace, fitted on pooled training statistics.

    `acc_average` of averaged features (paper), `acc_energy` of residuals added over nodes, `acc_node` the mean over
    nodes of one node alone.
    """
    average = NearestSubspace("average", rule=rule).fit_stats(pooled)
    fused = NearestSubspace("energy", rule=rule).fit_stats(pooled)
    each = fused.distances(Z_test)
    return {
        "acc_average": average.score(Z_test, y_test),
        "acc_energy": accuracy(each.sum(0).argmin(-1), y_test),
        "acc_node": fmean(accuracy(nearest, y_test) for nearest in each.argmin(-1)),
    }


def _probes(learned: Learned, undefined: list[str]) -> Numbers:
    """Return the mean over nodes of probes fitted on a node's own training features, on held-out samples."""
    return {
        "acc_knn": _attempt("acc_knn", lambda: _knn_accuracy(learned), math.nan, undefined),
        "acc_linear": _attempt("acc_linear", lambda: _linear_accuracy(learned), math.nan, undefined),
    }


def _knn_accuracy(learned: Learned) -> float:
    asked = thinned(learned.y_test)
    nodes = zip(learned.Z_train, learned.y_train, learned.Z_test[:, asked], strict=True)
    known = ((Z[rows], y[rows], Z_new) for Z, y, Z_new in nodes for rows in [thinned(y)])
    return fmean(accuracy(knn_predict(Z, y, Z_new), learned.y_test[asked]) for Z, y, Z_new in known)


def _linear_accuracy(learned: Learned) -> float:
    nodes = zip(learned.Z_train, learned.y_train, learned.Z_test, strict=True)
    return fmean(accuracy(fit_linear(Z, y).predict(Z_new), learned.y_test) for Z, y, Z_new in nodes)


def _structure(learned: Learned, pooled: ClassStats, eps2: float) -> Numbers:
    """Return what follows from second moments: consensus, orthogonality, ranks and rates, nodes pooled."""
    ranks = effective_rank(pooled.V[pooled.held])
    held_out = (ClassStats.of(Z, learned.y_test, pooled.num_classes, unit=False) for Z in learned.Z_test)
    return {
        "disagreement": disagreement(learned.stats, learned.edges),
        "overlap": overlap(pooled),
        "rank_min": float(ranks.min()),
        "rank_max": float(ranks.max()),
        **rate_reduction(pooled, eps2).numbers(),
        "reduction_test": float(rate_reduction(ClassStats.sum(held_out), eps2).reduction),
    }


def _class_means(learned: Learned, undefined: list[str]) -> Numbers:
    """Return what follows from class means of the training features: all nodes as one set (paper), node by node."""
    Z, y = learned.Z_train, learned.y_train
    cosine = _attempt("class_mean_cosine", lambda: class_mean_cosine(Z, y), NO_COSINE, undefined)
    return {
        **_measured("wccr", lambda: wccr(Z, y), undefined),
        **_measured("wccr_per_node", lambda: wccr(Z, y, "per_node"), undefined),
        **_measured("iidr", lambda: iidr(Z, y), undefined),
        **_measured("iidr_per_node", lambda: iidr(Z, y, "per_node"), undefined),
        "class_mean_cosine_mean": cosine.mean,
        "class_mean_cosine_std": cosine.std,
        "class_mean_noise": list(cosine.noise),
        "train_samples_per_class": torch.bincount(torch.cat(list(y)), minlength=learned.stats[0].num_classes).tolist(),
    }


def _alignment(learned: Learned, rule: SubspaceRule, undefined: list[str]) -> Numbers:
    """Return how alike nodes see: CKA on held-out samples, on unrelated training samples (paper), and angles."""
    shared = thinned(learned.y_test)
    Z = learned.Z_test[:, shared]
    own = [Z_i[thinned(y_i)] for Z_i, y_i in zip(learned.Z_train, learned.y_train, strict=True)]
    draw = torch.Generator().manual_seed(0)  # one shuffle for all runs, so that runs compare
    # Rank 0 asks for nearest class means; subspaces then go by energy.
    whole = replace(WHOLE, energy=rule.energy, rank=rule.rank or None)
    return {
        "cka_paired": _attempt("cka_paired", lambda: cka_paired(Z), math.nan, undefined),
        "cka_paired_debiased": _attempt(
            "cka_paired_debiased", lambda: cka_paired(Z, debiased=True), math.nan, undefined
        ),
        "cka_paired_n": len(shared),
        **_measured("cka_unpaired", lambda: cka_unpaired(own, draw), undefined),
        "principal_angle_mean": _attempt(
            "principal_angle_mean",
            lambda: mean_principal_angle(learned.stats, learned.edges, whole),
            math.nan,
            undefined,
        ),
    }


def _attempt(key: str, measure: Callable[[], T], otherwise: T, undefined: list[str]) -> T:
    """Return the measurement, or `otherwise` with the reason noted: a finished run is not lost to one number."""
    try:
        return measure()
    except InputError as error:
        undefined.append(f"{key}: {error}")
        return otherwise


def _measured(key: str, measure: Callable[[], Measured], undefined: list[str]) -> Numbers:
    """Return a measurement with its floor and counts, under the keys that begin with `key`."""
    found = _attempt(key, measure, UNKNOWN, undefined)
    if found.skipped:
        undefined.append(f"{key}: nodes {list(found.skipped)} are left out; they have too few classes or samples.")
    return {key: found.value, f"{key}_floor": found.floor, f"{key}_n": _count(found.n)}


def _count(n: float) -> float:
    """Return a count as JSON shows counts; means over nodes keep their fraction."""
    return int(n) if n == int(n) else n
