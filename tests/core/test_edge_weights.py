"""Weights of edges: the bound they promise, the same at both ends, and what they leave of duals and midpoints."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.consensus import dual_step, edge_weights, fold_neighbours
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats

K, D, EPS2 = 3, 6, 0.4
seeds = st.integers(0, 2**16)


@pytest.fixture(scope="module")
def nodes(stats_of):
    """Return a function that draws four nodes' statistics, float64; node 3 lacks class 1."""

    def draw(seed):
        counts = [(5, 7, 4), (6, 3, 8), (9, 9, 2), (4, 0, 6)]
        return [stats_of(c, D, seed + i, torch.float64) for i, c in enumerate(counts)]

    return draw


def penalty(a: ClassStats, b: ClassStats, gamma: float) -> float:
    """γ‖V_i − T_ij‖² over the classes that both hold, class by class."""
    shared = [k for k in range(K) if a.m[k] > 0 and b.m[k] > 0]
    return gamma * sum(float((a.V[k] - (a.V[k] + b.V[k]) / 2).norm() ** 2) for k in shared)


@given(seed=seeds, gamma=st.floats(0.01, 100), balance=st.floats(0.001, 1))
def test_no_edge_pulls_more_than_its_part_of_the_smaller_gain(nodes, seed, gamma, balance):
    own, *others = nodes(seed)
    weights = edge_weights(own, others, gamma=gamma, eps2=EPS2, balance=balance)
    gained = [float(rate_reduction(s, EPS2).reduction) for s in (own, *others)]
    for w, other, gain in zip(weights.tolist(), others, gained[1:], strict=True):
        most, full = balance * min(gained[0], gain), penalty(own, other, gamma)
        assert w == pytest.approx(min(1.0, most / full), rel=1e-9)


@given(seed=seeds, gamma=st.floats(0.01, 100))
def test_both_ends_give_an_edge_the_same_weight(nodes, seed, gamma):
    """To the bit: else the duals of all nodes would not add to zero."""
    stats = nodes(seed)
    at = {
        (i, j): float(edge_weights(stats[i], [stats[j]], gamma=gamma, eps2=EPS2, balance=0.05)[0])
        for i in range(4)
        for j in range(4)
        if i != j
    }
    assert all(at[i, j] == at[j, i] for i, j in at)


@given(seed=seeds)
def test_weighted_duals_add_to_zero_and_midpoints_are_weighted_means(nodes, seed):
    stats = nodes(seed)
    total = torch.zeros(K, D, D, dtype=torch.float64)
    for i, own in enumerate(stats):
        others = [s for j, s in enumerate(stats) if j != i]
        w = edge_weights(own, others, gamma=30.0, eps2=EPS2, balance=0.05)
        assert bool((w < 1).any())
        total += dual_step(torch.zeros_like(own.V), own, others, 0.3, w)
        T_bar, n = fold_neighbours(own, others, w)
        for k in own.held.nonzero().flatten().tolist():
            sharing = [(float(w_j), s) for w_j, s in zip(w, others, strict=True) if s.m[k] > 0]
            assert float(n[k]) == pytest.approx(sum(w_j for w_j, _ in sharing))
            mean = sum(w_j * (own.V[k] + s.V[k]) / 2 for w_j, s in sharing) / float(n[k])
            torch.testing.assert_close(T_bar[k], mean)
    assert float(total.abs().max()) < 1e-13


def test_nodes_that_agree_or_have_gained_enough_count_in_full(nodes):
    own, other, *_ = nodes(1)
    assert float(edge_weights(own, [own], gamma=5.0, eps2=EPS2, balance=0.01)[0]) == 1
    assert float(edge_weights(own, [other], gamma=1e-6, eps2=EPS2, balance=0.01)[0]) == 1


def test_a_collapsed_neighbour_does_not_pull(nodes):
    own = nodes(1)[0]
    Z = torch.eye(D, dtype=torch.float64)[[0] * 6]
    collapsed = ClassStats.of(Z, torch.arange(6) % K, K)  # all classes in one direction: ΔR = 0
    assert float(edge_weights(own, [collapsed], gamma=1.0, eps2=EPS2, balance=0.01)[0]) < 1e-12
