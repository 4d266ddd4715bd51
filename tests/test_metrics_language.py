"""What one node says and another judges: every number against a slow one in loops, and what must not change it."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch.nn.functional import normalize

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule
from ratemesh.errors import InputError
from ratemesh.metrics.language import (
    MOST,
    compared,
    cross,
    fine_pairs,
    gallery_and_queries,
    gaussian_pairs,
    hearsay_pairs,
    judged_pairs,
    own,
    pair_cosine,
    recall_pairs,
    retrieval_pairs,
    worst,
)
from toy_stats import keep

N, K, D = 3, 4, 6
RULE = SubspaceRule(rank=1)


def seen(seed=0, per_class=7, apart=0.4):
    """Return statistics of N nodes and their features (N, m, d) of held-out samples with labels (m,), float64.

    Nodes are turned against each other a little: neither one language nor none.
    """
    draw = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    axes = noise(K, D)
    turns = [torch.linalg.qr(torch.eye(D).double() + apart * noise(D, D))[0] for _ in range(N)]

    def features(y, turn):
        return normalize(axes[y] + 0.8 * noise(len(y), D), dim=1) @ turn.mT

    y = torch.arange(K).repeat(per_class)
    held_out = torch.arange(K).repeat(8)[torch.randperm(8 * K, generator=draw)]
    stats = [ClassStats.of(features(y, turn), y, K) for turn in turns]
    return stats, torch.stack([features(held_out, turn) for turn in turns]), held_out


def loops(judge):
    """Return judge(i, j) for every ordered pair."""
    return torch.tensor([[judge(i, j) for j in range(N)] for i in range(N)], dtype=torch.float64)


def part(right):
    return sum(right) / len(right) if right else math.nan


def nearest(z, stats, classes):
    """Return the class whose line through its mean along its longest axis is nearest to z."""

    def distance(k):
        mu = stats[k].mu[k]
        axis = torch.linalg.eigh(stats[k].V[k] - torch.outer(mu, mu))[1][:, -1]
        return float((z - mu).square().sum() - ((z - mu) @ axis).square())

    return min(classes, key=distance)


def holding(stats):
    """Return statistics of nodes that hold 0 to 2, 1 to 3, and all classes."""
    return [keep(s, labels) for s, labels in zip(stats, ([0, 1, 2], [1, 2, 3], range(K)), strict=True)]


def shared_by_loops(stats, Z, y):
    def judge(i, j):
        mine = [k for k in range(K) if stats[j].m[k] > 0]
        asked = [t for t in range(len(y)) if int(y[t]) in mine and stats[i].m[y[t]] > 0]
        return part([nearest(Z[i, t], [stats[j]] * K, mine) == int(y[t]) for t in asked])

    return loops(judge)


@pytest.mark.parametrize("some", [lambda stats: stats, holding])
def test_each_node_judges_by_its_own_statistics_what_both_hold(some):
    stats, Z, y = seen()
    found = judged_pairs(some(stats), Z, y, RULE)
    torch.testing.assert_close(found, shared_by_loops(some(stats), Z, y))
    assert float(found.std()) > 0.02


def test_by_gaussians_too():
    stats, Z, y = seen(1)
    expected = loops(lambda i, j: OwnGaussians().fit([stats[j]]).score(Z[i][None], y))
    torch.testing.assert_close(gaussian_pairs(stats, Z, y), expected)


def test_classes_by_hearsay_are_judged_with_the_speakers_statistics():
    stats, Z, y = seen(2)
    some = holding(stats)

    def judge(i, j):
        mine = [k for k in range(K) if some[j].m[k] > 0]
        told = [k for k in range(K) if some[i].m[k] > 0 and k not in mine]
        by = [some[j] if k in mine else some[i] for k in range(K)]
        asked = [t for t in range(len(y)) if int(y[t]) in told]
        return part([nearest(Z[i, t], by, mine + told) == int(y[t]) for t in asked])

    found = hearsay_pairs(some, Z, y, RULE)
    torch.testing.assert_close(found, loops(judge), equal_nan=True)
    assert found.isnan().tolist() == [[True, False, True], [False, True, True], [False, False, True]]


def test_nodes_without_a_class_in_common_have_nothing_to_tell_each_other():
    stats, Z, y = seen()
    found = judged_pairs([keep(stats[0], [0, 1]), keep(stats[1], [2]), keep(stats[2], [2, 3])], Z, y, RULE)
    apart = [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert [(i, j) for i, j in itertools.product(range(N), repeat=2) if found[i, j].isnan()] == apart
    assert cross(found) == pytest.approx(float((found[1, 2] + found[2, 1]) / 2))
    with pytest.raises(InputError, match="of a class that both hold"):
        cross(found[:2, :2])


@pytest.mark.parametrize("relabel", [lambda y: y, lambda y: 1000 * (y // 2)])
def test_retrieval_is_that_of_a_search_query_by_query(relabel):
    _, Z, y = seen(3)
    y = relabel(y)
    A, B = gallery_and_queries(y)

    def cosines(i, j, t):
        return torch.stack([Z[i, t] @ Z[j, s] / Z[i, t].norm() / Z[j, s].norm() for s in A])

    recall, precision = retrieval_pairs(Z, y)
    hits = loops(lambda i, j: part([bool(y[A[cosines(i, j, t).argmax()]] == y[t]) for t in B]))
    torch.testing.assert_close(recall, hits)
    torch.testing.assert_close(recall_pairs(Z, y), hits)
    means = loops(lambda i, j: part([average_precision_score(y[A] == y[t], cosines(i, j, t)) for t in B]))
    torch.testing.assert_close(precision, means)


def test_what_looks_all_the_same_is_found_by_chance_whatever_its_order():
    """Equal cosines are one step, as scikit-learn has it, not an order that the labels of the gallery may have."""
    y = torch.tensor([0] * 6 + [1] * 2)
    assert retrieval_pairs(torch.ones(1, 8, D), y)[1].item() == pytest.approx((3 * 3 / 4 + 1 / 4) / 4)


def test_finer_labels_are_judged_by_what_a_node_sees_of_the_gallery():
    _, Z, y = seen(4)
    A, B = gallery_and_queries(y, len(y))
    rules = [SubspaceJudge(rule=RULE).fit(Z_j[A], y[A]) for Z_j in Z]
    torch.testing.assert_close(fine_pairs(Z, 10 * y + 3, RULE), loops(lambda i, j: rules[j].score(Z[i, B], y[B])))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 99))
def test_gallery_and_queries_share_no_sample_and_every_class_in_turn(labels_of, counts, most, seed):
    y = labels_of(counts, seed)
    A, B = gallery_and_queries(y, most)
    assert len(set(A.tolist()) | set(B.tolist())) == len(A) + len(B) == min(most, len(y))
    more = y[A].bincount(minlength=len(counts)) - y[B].bincount(minlength=len(counts))
    assert set(more.tolist()) <= {0, 1}


def test_the_cosine_of_a_pair_is_the_mean_over_all_of_them():
    _, Z, _ = seen(5)
    Z = Z * torch.linspace(0.5, 2, Z.shape[1])[:, None]
    pairs = [
        float(a @ b / a.norm() / b.norm())
        for i, j in itertools.permutations(range(N), 2)
        for a, b in zip(Z[i], Z[j], strict=True)
    ]
    assert pair_cosine(Z) == pytest.approx(sum(pairs) / len(pairs))
    with pytest.raises(InputError, match=r"Z must hold at least two nodes to compare; got 1\."):
        pair_cosine(Z[:1])


def all_numbers(stats, Z, y):
    return torch.stack([judged_pairs(stats, Z, y, RULE), gaussian_pairs(stats, Z, y), *retrieval_pairs(Z, y)])


@given(st.integers(0, 99))
def test_a_rotation_common_to_all_changes_nothing_and_one_of_a_node_only_its_row_and_column(orthogonal, seed):
    stats, Z, y = seen(seed)
    Q = orthogonal(D, seed)
    before = all_numbers(stats, Z, y)
    torch.testing.assert_close(all_numbers([s.rotated(Q) for s in stats], Z @ Q.mT, y), before)
    assert pair_cosine(Z @ Q.mT) == pytest.approx(pair_cosine(Z))
    turned = all_numbers([stats[0].rotated(Q), *stats[1:]], torch.cat([Z[:1] @ Q.mT, Z[1:]]), y)
    torch.testing.assert_close(turned[:, 1:, 1:], before[:, 1:, 1:])
    torch.testing.assert_close(turned[:, 0, 0], before[:, 0, 0])
    assert not torch.allclose(turned, before)


@given(st.integers(0, 99))
def test_the_order_of_samples_does_nothing(seed):
    """But for who is gallery and who query, which goes by the order inside a class."""
    stats, Z, y = seen(seed)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(judged_pairs(stats, Z[:, order], y[order], RULE), judged_pairs(stats, Z, y, RULE))
    assert pair_cosine(Z[:, order]) == pytest.approx(pair_cosine(Z))
    by_class = torch.argsort(y, stable=True)
    for sorted_, found in zip(retrieval_pairs(Z[:, by_class], y[by_class]), retrieval_pairs(Z, y), strict=True):
        torch.testing.assert_close(sorted_, found)


def test_means_are_of_the_diagonal_and_of_the_rest():
    P = torch.tensor([[0.5, 0.1, math.nan], [0.3, 0.7, 0.2], [0.4, math.nan, 0.9]])
    assert (own(P), cross(P), worst(P)) == pytest.approx((0.7, 0.25, 0.1))
    with pytest.raises(InputError, match=r"stats must hold at least two nodes to compare; got 1\."):
        cross(P[:1, :1])


def test_many_nodes_are_compared_by_some_of_them():
    assert compared(3) == [0, 1, 2]
    assert compared(MOST) == list(range(MOST))
    some = compared(100)
    assert (len(some), some[0], some[-1]) == (MOST, 0, 96)
    assert {b - a for a, b in itertools.pairwise(some)} == {3, 4}
