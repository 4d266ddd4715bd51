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
from ratemesh.core.subspace import SubspaceRule, accuracy
from ratemesh.errors import InputError
from ratemesh.metrics import geometry
from ratemesh.metrics.accuracies import accuracies, knn_predict, linear_predict
from ratemesh.metrics.classes import ClassCosine, class_mean_cosine, iidr, wccr

ROWS = 2000
"""Samples a node that neighbours and CKA look at: enough to tell runs apart, and cheap for any data set."""

T = TypeVar("T")


@dataclass(frozen=True)
class HeldOut:
    """Samples that no node trained on, as all nodes see them.

    Attributes:
        Z: (N, m, d) every node's features of the same samples.
        y: (m,) their labels.
        fine: (m,) their labels by a finer labelling that training never saw, where there is one.
    """

    Z: Tensor
    y: Tensor
    fine: Tensor | None = None


@dataclass(frozen=True)
class Learned:
    """What was learned, as evaluation sees it.

    Attributes:
        stats: each node's statistics over its own training data.
        Z_train: (m_i, d) each node's features of its own training samples.
        y_train: (m_i,) their labels.
        test: held-out samples, opened once.
        edges: the communication graph.
        validation: samples held out of every node's own, to choose settings by; None where there are none.
    """

    stats: Sequence[ClassStats]
    Z_train: Sequence[Tensor]
    y_train: Sequence[Tensor]
    test: HeldOut
    edges: Sequence[tuple[int, int]]
    validation: HeldOut | None = None


def evaluate(learned: Learned, *, eps2: float, rule: SubspaceRule) -> dict[str, Any]:
    """Return accuracies and geometry: numbers and lists only.

    A number that this run cannot have, such as the CKA of one node, is NaN, and the list `undefined` says why.
    A measured number x comes with `x_floor`, its expectation without structure, and `x_n`, its samples (a node, on
    average, where nodes were measured one by one).
    """
    pooled = ClassStats.sum(learned.stats)
    found = _Found(accuracies(learned.stats, learned.test.Z, learned.test.y, rule))
    if len(learned.stats) < 2:
        found.undefined.append("disagreement: stats must hold at least two nodes to compare; got 1.")
    if int(pooled.held.sum()) < 2:
        found.undefined.append("overlap: stats must hold at least two classes to compare; got 1.")
    _probe(learned, found)
    found.numbers |= _structure(learned, pooled, eps2)
    _compare_class_means(learned, found)
    _compare_nodes(learned, rule, found)
    return {**found.numbers, "undefined": found.undefined}


class _Found:
    """Numbers so far, and why others could not be had: a finished run is not lost to one number."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.undefined: list[str] = []

    def attempt(self, key: str, measure: Callable[[], T], otherwise: T) -> T:
        """Return the measurement, or `otherwise` with the reason noted."""
        try:
            return measure()
        except InputError as error:
            self.undefined.append(f"{key}: {error}")
            return otherwise

    def number(self, key: str, measure: Callable[[], float]) -> None:
        """Add a number, NaN if it cannot be had."""
        self.numbers[key] = self.attempt(key, measure, math.nan)

    def measured(self, key: str, measure: Callable[[], geometry.Measured]) -> None:
        """Add a measurement with its floor and its samples, under keys that begin with `key`."""
        found = self.attempt(key, measure, geometry.Measured(math.nan, math.nan, 0))
        if found.skipped:
            nodes = list(found.skipped)
            self.undefined.append(f"{key}: nodes {nodes} are left out; they have too few classes or samples.")
        n = int(found.n) if found.n == int(found.n) else found.n  # a mean over nodes keeps its fraction
        self.numbers |= {key: found.value, f"{key}_floor": found.floor, f"{key}_n": n}


def thinned(y: Tensor, most: int = ROWS) -> Tensor:
    """Return at most `most` positions in labels (m,), ascending, every class in proportion to within one.

    The starts of equal stretches of the samples sorted by class: even spacing in their own order can skip classes
    when labels repeat with a period.
    """
    count = min(len(y), most)
    starts = torch.arange(count) * len(y) // max(count, 1)
    return torch.argsort(y, stable=True)[starts].sort().values


def _probe(learned: Learned, found: _Found) -> None:
    """Add the mean over nodes of probes fitted on a node's own training features, on held-out samples."""
    Z_train, y_train, Z_test, y_test = learned.Z_train, learned.y_train, learned.test.Z, learned.test.y
    some, own = thinned(y_test), [thinned(y) for y in y_train]
    few = [(Z[rows], y[rows], Z_new[some]) for Z, y, Z_new, rows in zip(Z_train, y_train, Z_test, own, strict=True)]
    every = list(zip(Z_train, y_train, Z_test, strict=True))
    found.number("acc_knn", lambda: fmean(accuracy(knn_predict(*node), y_test[some]) for node in few))
    found.number("acc_linear", lambda: fmean(accuracy(linear_predict(*node), y_test) for node in every))


def _structure(learned: Learned, pooled: ClassStats, eps2: float) -> dict[str, Any]:
    """Return what follows from second moments: consensus, orthogonality, ranks and rates, nodes pooled."""
    ranks = geometry.effective_rank(pooled.V[pooled.held])
    held_out = (ClassStats.of(Z, learned.test.y, pooled.num_classes, unit=False) for Z in learned.test.Z)
    return {
        "disagreement": geometry.disagreement(learned.stats, learned.edges),
        "overlap": geometry.overlap(pooled),
        "rank_min": float(ranks.min()),
        "rank_max": float(ranks.max()),
        **rate_reduction(pooled, eps2).numbers(),
        "reduction_test": float(rate_reduction(ClassStats.sum(held_out), eps2).reduction),
    }


def _compare_class_means(learned: Learned, found: _Found) -> None:
    """Add what follows from class means of the training features: all nodes as one set (paper), node by node."""
    Z, y = learned.Z_train, learned.y_train
    unknown = ClassCosine(math.nan, math.nan, ())
    cosine = found.attempt("class_mean_cosine", lambda: class_mean_cosine(Z, y), unknown)
    found.measured("wccr", lambda: wccr(Z, y))
    found.measured("wccr_per_node", lambda: wccr(Z, y, per_node=True))
    found.measured("iidr", lambda: iidr(Z, y))
    found.measured("iidr_per_node", lambda: iidr(Z, y, per_node=True))
    counts = torch.bincount(torch.cat(list(y)), minlength=learned.stats[0].num_classes)
    found.numbers |= {
        "class_mean_cosine_mean": cosine.mean,
        "class_mean_cosine_std": cosine.std,
        "class_mean_noise": list(cosine.noise),
        "train_samples_per_class": counts.tolist(),
    }


def _compare_nodes(learned: Learned, rule: SubspaceRule, found: _Found) -> None:
    """Add how alike nodes see: CKA on held-out samples, on unrelated training samples (paper), and angles."""
    shared = thinned(learned.test.y)
    Z = learned.test.Z[:, shared]
    own = [Z_i[thinned(y_i)] for Z_i, y_i in zip(learned.Z_train, learned.y_train, strict=True)]
    draw = torch.Generator().manual_seed(0)  # one shuffle for all runs, so that runs compare
    # Rank 0 asks for nearest class means; subspaces then go by energy.
    whole = replace(geometry.WHOLE, energy=rule.energy, rank=rule.rank or None)
    found.number("cka_paired", lambda: geometry.cka_paired(Z))
    found.number("cka_paired_debiased", lambda: geometry.cka_paired(Z, debiased=True))
    found.numbers["cka_paired_n"] = len(shared)
    found.measured("cka_unpaired", lambda: geometry.cka_unpaired(own, draw))
    found.number("principal_angle_mean", lambda: geometry.mean_principal_angle(learned.stats, learned.edges, whole))
