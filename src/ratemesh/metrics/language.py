"""Whether nodes speak one language: node j judges and searches what node i says, by what j knows itself.

Every function of features Z (N, m, d) of the same held-out samples returns matrices (N, N) over ordered pairs of nodes:
row i speaks, column j judges; the diagonal is a node that judges itself. NaN is a pair that there are no samples for.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.checks import check_finite
from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats, group_by_class
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, accuracy
from ratemesh.errors import InputError
from ratemesh.metrics.accuracies import holders

ROWS = 2000
"""Samples that retrieval, neighbours and CKA look at: enough to tell runs apart, and cheap for any data set."""

MOST = 32
"""Nodes that are compared pair by pair: the cost grows with their square, and a thousand pairs make a steady mean."""


def compared(nodes: int) -> list[int]:
    """Return the nodes that are compared pair by pair: all, or `MOST` evenly spaced ones."""
    count = min(nodes, MOST)
    return [k * nodes // count for k in range(count)]


def thinned(y: Tensor, most: int = ROWS) -> Tensor:
    """Return at most `most` positions in labels (m,), ascending, every class in proportion to within one.

    The starts of equal stretches of the samples sorted by class: even spacing in their own order can skip classes
    when labels repeat with a period.
    """
    count = min(len(y), most)
    starts = torch.arange(count) * len(y) // max(count, 1)
    return torch.argsort(y, stable=True)[starts].sort().values


def gallery_and_queries(y: Tensor, most: int = ROWS) -> tuple[Tensor, Tensor]:
    """Return positions of gallery A and queries B in labels (m,), disjoint, `thinned` to at most `most` together.

    In every class the samples go to A and B by turns, A first: a query then has something to find.
    """
    rows = thinned(y, most)
    groups = group_by_class(_renumbered(y[rows]), max(len(rows), 1), whole=True)
    turn = groups.place % groups.rows % 2
    return rows[turn == 0], rows[turn == 1]


def _renumbered(y: Tensor) -> Tensor:
    """Return labels 0..K-1 in the order of the given ones, all of them with samples."""
    labels: Tensor = torch.unique(y, return_inverse=True)[1]
    return labels


def judged_pairs(stats: Sequence[ClassStats], Z: Tensor, y: Tensor, rule: SubspaceRule) -> Tensor:
    """Return (N, N) accuracies on z_i of the nearest-subspace rule fitted to node j's own statistics alone.

    On samples whose class both i and j hold, among the classes that j holds.

    Args:
        stats: every node's statistics of its own training samples.
        Z: (N, m, d) every node's features of the same held-out samples.
        y: (m,) their labels.
        rule: how many directions a class has.
    """
    return _pairs(stats, y, lambda own: SubspaceJudge(rule=rule).fit_stats(own).distances(Z).argmin(-1))


def gaussian_pairs(stats: Sequence[ClassStats], Z: Tensor, y: Tensor) -> Tensor:
    """Return (N, N) accuracies as `judged_pairs` does, by the Gaussians of node j's own statistics alone."""
    said = Z.flatten(0, 1)[None]
    return _pairs(stats, y, lambda own: OwnGaussians().fit([own]).predict(said).view(Z.shape[:2]))


def _pairs(stats: Sequence[ClassStats], y: Tensor, judge: Callable[[ClassStats], Tensor]) -> Tensor:
    """Return accuracies (N, N) of labels (N, m) that a node's statistics give to all nodes' features."""
    held = holders(stats)
    return torch.stack([_part(judge(own) == y, (held & own.held)[:, y.long()]) for own in stats], dim=1)


def _part(right: Tensor, asked: Tensor) -> Tensor:
    """Return (N,), the part of the samples asked, (N, m), that are right; NaN where none is asked."""
    return (right & asked).sum(1).double() / asked.sum(1)


def hearsay_pairs(stats: Sequence[ClassStats], Z: Tensor, y: Tensor, rule: SubspaceRule) -> Tensor:
    """Return (N, N) accuracies on z_i of classes that i holds and j knows by hearsay only.

    Node j judges by its own subspaces of the classes that it holds, and by i's of those that only i holds.
    """
    held = holders(stats)
    rules = [SubspaceJudge(rule=rule).fit_stats(own) for own in stats]
    told = torch.stack([speaker.distances(Z_i) for speaker, Z_i in zip(rules, Z, strict=True)])
    columns = []
    for judge, mine in zip(rules, held, strict=True):
        nearest = torch.where(mine, judge.distances(Z), told).argmin(-1)
        columns.append(_part(nearest == y, (held & ~mine)[:, y.long()]))
    return torch.stack(columns, dim=1)


def fine_pairs(Z: Tensor, fine: Tensor, rule: SubspaceRule) -> Tensor:
    """Return (N, N) accuracies by labels (m,) that training never saw.

    No node's statistics know these classes. All held-out samples are split into gallery and queries, as for retrieval;
    node j fits its subspaces to the gallery as j sees it, and judges the queries as i sees them.
    """
    labels = _renumbered(fine)
    A, B = gallery_and_queries(labels, len(labels))
    seen = [ClassStats.of(Z_j[A], labels[A], int(labels.max()) + 1, unit=False) for Z_j in Z]
    return judged_pairs(seen, Z[:, B], labels[B], rule)


def recall_pairs(Z: Tensor, y: Tensor) -> Tensor:
    """Return (N, N) recall@1: how often the nearest of z_j(A) to a query z_i(B), by cosine, has its label."""
    A, B = gallery_and_queries(y)
    return _searched(Z[:, A], Z[:, B], lambda D: [_recall(D, y[A], y[B])])[..., 0]


def retrieval_pairs(Z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N, N) recall@1 and (N, N) mean average precision of queries z_i(B) in the gallery z_j(A), by cosine.

    Args:
        Z: (N, m, d) every node's features of the same held-out samples, of which at most `ROWS` are looked at.
        y: (m,) labels, coarse or fine.
    """
    A, B = gallery_and_queries(y)
    wanted = _wanted(y[A], y[B])
    found = _searched(Z[:, A], Z[:, B], lambda D: [_recall(D, y[A], y[B]), _average_precision(D, wanted)])
    return found[..., 0], found[..., 1]


def _searched(gallery: Tensor, queries: Tensor, measure: Callable[[Tensor], list[float]]) -> Tensor:
    """Return what is measured of distances (q, g) for every pair of nodes, (N, N, …)."""
    A, B = _unit(gallery), _unit(queries)
    return torch.tensor([[measure(-(query @ others.mT)) for others in A] for query in B], dtype=torch.float64)


def _wanted(y_A: Tensor, y_B: Tensor) -> Tensor:
    """Return (q, c) positions in labels (g,) of what has a query's label; -1 where there are no more."""
    labels = _renumbered(torch.cat([y_A, y_B]))
    groups = group_by_class(labels[: len(y_A)], len(labels), whole=True)
    members = labels.new_full((groups.groups * groups.rows,), -1)
    members[groups.place] = torch.arange(len(y_A))
    return members.view(groups.groups, groups.rows)[labels[len(y_A) :]]


def _recall(D: Tensor, y_A: Tensor, y_B: Tensor) -> float:
    return accuracy(y_A[D.argmin(1)], y_B)


def _unit(Z: Tensor) -> Tensor:
    check_finite(Z, "Z")
    return normalize(Z, dim=-1)


def _average_precision(D: Tensor, wanted: Tensor) -> float:
    """Return the mean over queries of the mean, over what is wanted, of the precision down to there.

    Equal distances are one step of the precision, so that the order of the gallery does not matter.

    Args:
        D: (q, g) distances of queries to the gallery.
        wanted: (q, c) positions in the gallery of what has a query's label; -1 where there are no more.
    """
    every = _sorted(D)
    hits = _sorted(D.gather(1, wanted.clamp(min=0)).masked_fill(wanted < 0, torch.inf))
    among_hits, among_all = (torch.searchsorted(row, hits, right=True).double() for row in (hits, every))
    precision = (among_hits / among_all).masked_fill(hits.isinf(), 0).sum(1)
    return float((precision / (wanted >= 0).sum(1)).mean())


def _sorted(D: Tensor) -> Tensor:
    """Return rows sorted by numpy, which takes a tenth of the time of torch's sort or argsort."""
    return torch.from_numpy(np.sort(D.numpy(force=True), axis=1))


def pair_cosine(Z: Tensor) -> float:
    """Return the mean over i ≠ j and samples of ⟨z_i(x), z_j(x)⟩ / (‖z_i(x)‖‖z_j(x)‖), features (N, m, d)."""
    N = len(Z)
    if N < 2:
        raise InputError(f"Z must hold at least two nodes to compare; got {N}.")
    unit = _unit(Z)
    both = unit.sum(0).square().sum(-1) - unit.square().sum(
        (0, -1)
    )  # all ordered pairs, each node with itself left out
    return float(both.mean() / (N * (N - 1)))


def own(P: Tensor) -> float:
    """Return the mean over nodes that judge themselves, of a matrix (N, N) as above."""
    return float(_known(P.diagonal()).mean())


def cross(P: Tensor) -> float:
    """Return the mean over ordered pairs of two nodes."""
    return float(_others(P).mean())


def worst(P: Tensor) -> float:
    """Return the least of all ordered pairs of two nodes."""
    return float(_others(P).min())


def _others(P: Tensor) -> Tensor:
    if len(P) < 2:
        raise InputError(f"stats must hold at least two nodes to compare; got {len(P)}.")
    return _known(P[~torch.eye(len(P), dtype=torch.bool)])


def _known(values: Tensor) -> Tensor:
    known = values[~values.isnan()]
    if not len(known):
        raise InputError(
            "nodes must have held-out samples to be compared on: of a class that both hold, and to search for, two of "
            "a class; there are none. Hold out more samples."
        )
    return known
