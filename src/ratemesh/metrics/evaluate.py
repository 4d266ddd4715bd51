"""The numbers that every run ends with."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule, accuracy
from ratemesh.errors import InputError
from ratemesh.metrics import geometry, language
from ratemesh.metrics.accuracies import accuracies, holders, knn_predict, linear_predict
from ratemesh.metrics.classes import ClassCosine, class_mean_cosine, iidr, wccr
from ratemesh.metrics.language import thinned

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
        test: held-out samples, opened once; may have none.
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
    average, where nodes were measured one by one). What settings may be chosen by comes once more with the prefix
    `val_`, of the validation samples. Matrices over pairs of nodes are of the nodes `language.compared` names.
    """
    pooled = ClassStats.sum(learned.stats)
    found = _Found()
    if len(learned.test.y):
        found.numbers |= _judge(learned.stats, learned.test, rule, found)
    else:
        found.undefined.append("accuracies and CKA of test samples: there are none.")
    if learned.validation is not None:
        _judge(learned.stats, learned.validation, rule, _Found(found, "val_"))
    if len(learned.stats) < 2:
        found.undefined.append("disagreement: stats must hold at least two nodes to compare; got 1.")
    if int(pooled.held.sum()) < 2:
        found.undefined.append("overlap: stats must hold at least two classes to compare; got 1.")
    if len(learned.test.y):
        _probe(learned, found)
    found.numbers |= _structure(learned, pooled, eps2)
    _compare_class_means(learned, found)
    _compare_nodes(learned, rule, found)
    return {**found.numbers, "undefined": found.undefined}


def glimpse(stats: Sequence[ClassStats], parts: Mapping[str, HeldOut | None], rule: SubspaceRule) -> dict[str, float]:
    """Return what a learning curve shows: accuracies, and how well nodes understand each other, without what is costly.

    Args:
        stats: each node's statistics over its own training data.
        parts: held-out samples by the prefix that their numbers get, "" or `val_`; None where there are none.
        rule: how many directions a class has.
    """
    found = _Found()
    for prefix, held in parts.items():
        if held is None or not len(held.y):
            continue
        part, nodes = _Found(found, prefix), language.compared(len(stats))
        part.add(accuracies(stats, held.Z, held.y, rule))
        part.pairs("acc", language.judged_pairs([stats[i] for i in nodes], held.Z[nodes], held.y, rule))
        part.pairs("retrieval", language.recall_pairs(held.Z[nodes], held.y))
    return found.numbers


class _Found:
    """Numbers so far, and why others could not be had: a finished run is not lost to one number.

    One made of another adds to that one, under names with a prefix.
    """

    def __init__(self, whole: "_Found | None" = None, prefix: str = "") -> None:
        self.numbers: dict[str, Any] = whole.numbers if whole else {}
        self.undefined: list[str] = whole.undefined if whole else []
        self._prefix = prefix

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add numbers that every run has."""
        self.numbers |= {self._prefix + key: value for key, value in numbers.items()}

    def pairs(self, stem: str, P: Tensor, end: str = "") -> None:
        """Add the means of a matrix (N, N) over pairs of nodes: each by itself, and two different ones."""
        self.number(f"{stem}_own{end}", lambda: language.own(P))
        self.number(f"{stem}_cross{end}", lambda: language.cross(P))

    def attempt(self, key: str, measure: Callable[[], T], otherwise: T) -> T:
        """Return the measurement, or `otherwise` with the reason noted."""
        try:
            return measure()
        except InputError as error:
            self.undefined.append(f"{self._prefix}{key}: {error}")
            return otherwise

    def number(self, key: str, measure: Callable[[], float]) -> None:
        """Add a number, NaN if it cannot be had."""
        self.add({key: self.attempt(key, measure, math.nan)})

    def measured(self, key: str, measure: Callable[[], geometry.Measured]) -> None:
        """Add a measurement with its floor and its samples, under keys that begin with `key`."""
        found = self.attempt(key, measure, geometry.Measured(math.nan, math.nan, 0))
        if found.skipped:
            nodes = list(found.skipped)
            self.undefined.append(f"{key}: nodes {nodes} are left out; they have too few classes or samples.")
        n = int(found.n) if found.n == int(found.n) else found.n  # a mean over nodes keeps its fraction
        self.add({key: found.value, f"{key}_floor": found.floor, f"{key}_n": n})


def _judge(stats: Sequence[ClassStats], held: HeldOut, rule: SubspaceRule, found: _Found) -> dict[str, list[Any]]:
    """Add every number of held-out samples that a setting may be chosen by; return the matrices over pairs of nodes."""
    found.add(accuracies(stats, held.Z, held.y, rule))
    nodes = language.compared(len(stats))
    some, Z = [stats[i] for i in nodes], held.Z[nodes]
    judged = language.judged_pairs(some, Z, held.y, rule)
    matrices = {"cross_matrix": judged, "retrieval_matrix": _search(Z, held.y, found)}
    found.pairs("acc", judged)
    found.number("acc_cross_worst", lambda: language.worst(judged))
    found.pairs("acc", language.gaussian_pairs(some, Z, held.y), "_gaussian")
    found.number("pair_cosine", lambda: language.pair_cosine(Z))
    labels = holders(some)
    if not bool((labels == labels[0]).all()):
        found.number("acc_hearsay", lambda: language.cross(language.hearsay_pairs(some, Z, held.y, rule)))
    if held.fine is not None:
        finely = language.fine_pairs(Z, held.fine, rule)
        matrices |= {"cross_matrix_fine": finely, "retrieval_matrix_fine": _search(Z, held.fine, found, "_fine")}
        found.pairs("acc", finely, "_fine")
        found.number("acc_cross_worst_fine", lambda: language.worst(finely))
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def _search(Z: Tensor, y: Tensor, found: _Found, end: str = "") -> Tensor:
    """Add how well samples of a label are found among another node's; return recall@1 by pairs of nodes."""
    recall, precision = language.retrieval_pairs(Z, y)
    found.pairs("retrieval", recall, end)
    found.pairs("retrieval_map", precision, end)
    return recall


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
    held_out = ClassStats.sum(ClassStats.of(Z, learned.test.y, pooled.num_classes, unit=False) for Z in learned.test.Z)
    return {
        "disagreement": geometry.disagreement(learned.stats, learned.edges),
        "overlap": geometry.overlap(pooled),
        "rank_min": float(ranks.min()),
        "rank_max": float(ranks.max()),
        **rate_reduction(pooled, eps2).numbers(),
        "reduction_test": float(rate_reduction(held_out, eps2).reduction) if len(learned.test.y) else math.nan,
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
    if len(shared):
        found.number("cka_paired", lambda: geometry.cka_paired(Z))
        found.number("cka_paired_debiased", lambda: geometry.cka_paired(Z, debiased=True))
    found.numbers["cka_paired_n"] = len(shared)
    found.measured("cka_unpaired", lambda: geometry.cka_unpaired(own, draw))
    found.number("principal_angle_mean", lambda: geometry.mean_principal_angle(learned.stats, learned.edges, whole))
