"""Theorem 1's conditions and Assumption 1, against the inequalities as the paper prints them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.theory import Proportions, cluster_counts, proportion_gap, theorem1_gaps


def test_no_gap_when_all_conditions_hold():
    assert theorem1_gaps(128, torch.full((10,), 12.0), torch.full((10,), 0.1), eps2=0.5) == []


def test_dimension_too_small_names_d_and_the_sum():
    gaps = theorem1_gaps(7, torch.tensor([4.0, 4.0]), torch.tensor([0.5, 0.5]), eps2=0.1)
    assert len(gaps) == 1
    assert "d = 7 < 8" in gaps[0]
    assert "Raise d" in gaps[0]


def test_dimension_equal_to_the_sum_is_enough():
    assert theorem1_gaps(8, torch.tensor([4.0, 4.0]), torch.tensor([0.5, 0.5]), eps2=0.1) == []


def test_precision_gap_names_the_bound_and_what_to_take():
    # bound = min(0.75·(8/4)², 0.25·(8/2)²) = min(3, 4) = 3
    gaps = theorem1_gaps(8, torch.tensor([4.0, 2.0]), torch.tensor([0.75, 0.25]), eps2=2.0)
    assert len(gaps) == 1
    assert "eps2" in gaps[0]
    assert "= 3 (Theorem 1); got ε⁴ = 4" in gaps[0]
    assert f"eps2 below {math.sqrt(3):.4g}" in gaps[0]


def test_precision_condition_is_strict():
    # bound = 1·(4/2)² = 4 and ε⁴ = 4: not below
    assert len(theorem1_gaps(4, torch.tensor([2.0]), torch.tensor([1.0]), eps2=2.0)) == 1
    assert theorem1_gaps(4, torch.tensor([2.0]), torch.tensor([1.0]), eps2=1.999) == []


def test_a_class_nobody_holds_bounds_nothing():
    assert theorem1_gaps(8, torch.tensor([4.0, 4.0]), torch.tensor([1.0, 0.0]), eps2=1.0) == []
    assert theorem1_gaps(8, torch.tensor([4.0]), torch.tensor([0.0]), eps2=100.0) == []


def test_both_conditions_are_reported_together():
    assert len(theorem1_gaps(2, torch.tensor([2.0, 2.0]), torch.tensor([0.5, 0.5]), eps2=5.0)) == 2


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 50)), min_size=1, max_size=6),
    st.floats(0.01, 10),
)
def test_gaps_follow_the_printed_inequalities(d, classes, eps2):
    ranks, counts = zip(*classes, strict=True)
    m = sum(counts)
    bound = min(count / m * d**2 / rank**2 for rank, count in classes)
    if math.isclose(eps2**2, bound, rel_tol=1e-6):
        return
    expected = int(d < sum(ranks)) + int(eps2**2 >= bound)
    proportions = torch.tensor(counts, dtype=torch.float64) / m
    assert len(theorem1_gaps(d, torch.tensor(ranks, dtype=torch.float64), proportions, eps2)) == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_equal_proportions_have_no_gap(sizes, classes):
    counts = torch.tensor(sizes)[:, None] * torch.tensor(classes)[None, :]
    assert proportion_gap(counts) == pytest.approx(0, abs=1e-14)


def test_proportion_gap_is_the_largest_deviation():
    # node 0: (0.75, 0.25), node 1: (0.5, 0.5), all: (5/8, 3/8)
    assert proportion_gap(torch.tensor([[3, 1], [2, 2]])) == pytest.approx(0.125)
    # disjoint labels, unequal sizes: node 1 has none of the three quarters
    assert proportion_gap(torch.tensor([[6, 0], [0, 2]])) == pytest.approx(0.75)


def test_cluster_counts_split_replicas_evenly():
    counts = torch.tensor([[6, 0], [2, 4], [0, 8]])
    assert cluster_counts(counts, [(0, 1), (1, 2)]).tolist() == [[7, 2], [1, 10]]
    assert cluster_counts(counts, [(0, 1, 2)]).tolist() == [[8, 12]]


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 4))
def test_clusters_hold_all_samples_whoever_is_replicated(seed, nodes, clusters):
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 20, (nodes, 3), generator=draw)
    members = [
        tuple(i for i in range(nodes) if (i % clusters == s or torch.rand((), generator=draw) < 0.5))
        for s in range(clusters)
    ]
    members = [m for m in members if m]
    torch.testing.assert_close(cluster_counts(counts, members).sum(0), counts.sum(0).double())


def test_assumption_four_is_a_gap_of_zero():
    counts = torch.tensor([[5, 0, 5], [0, 5, 0], [5, 5, 0], [0, 0, 5]])
    assert proportion_gap(cluster_counts(counts, [(0, 1), (2, 3)])) == 0
    apart = cluster_counts(counts, [(0, 1, 2), (3,)])
    assert proportion_gap(apart) == pytest.approx(2 / 3)  # class 2 is all of cluster 1, a third of the whole
    found = Proportions.of(counts, [(0, 1, 2), (3,)])
    assert found.gap == pytest.approx(2 / 3)
    assert found.excused.tolist() == [4 / 25, 2 / 5]  # cluster 1 has five samples, and one member
    assert not found.holds


def test_an_assumption_holds_as_nearly_as_whole_samples_allow():
    """Seven samples of two classes cannot be equal at two nodes; one more of a class is excused, three are not."""
    near, far = torch.tensor([[4, 3], [3, 4]]), torch.tensor([[6, 1], [1, 6]])
    assert Proportions.of(near).holds
    assert not Proportions.of(near).exact
    assert not Proportions.of(far).holds
    assert Proportions.of(torch.tensor([[30, 10], [3, 1]])).exact


def test_balance_settles_unequal_counts_but_not_different_labels():
    assert Proportions.of(torch.tensor([[6, 1], [1, 6]]), balanced=True).exact
    partial = torch.tensor([[60, 10, 0], [10, 0, 60], [20, 30, 40]])
    assert not Proportions.of(partial, balanced=True).holds
    assert Proportions.of(partial, [(0, 1), (2,)], balanced=True).exact  # every cluster covers every label
