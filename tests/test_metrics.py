"""Geometry of what was learned: closed forms, and what the evaluation puts together."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule
from ratemesh.metrics.evaluate import HeldOut, Learned, evaluate
from ratemesh.metrics.geometry import disagreement, effective_rank, overlap, relative_distance
from toy_stats import keep

AXES = torch.eye(12, dtype=torch.float64)
seeds = st.integers(0, 10_000)


def spread(*axes):
    """Return rows ± along the axes: an isotropic class of that rank with mean zero."""
    return torch.cat([AXES[list(axes)], -AXES[list(axes)]])


def stats_of(*classes):
    y = torch.cat([torch.full((len(Z),), k) for k, Z in enumerate(classes)])
    return ClassStats.of(torch.cat(classes), y, len(classes))


@pytest.mark.parametrize("r", [1, 3, 12])
def test_effective_rank_of_an_isotropic_class_is_its_rank(r):
    assert effective_rank(stats_of(spread(*range(r))).V).item() == pytest.approx(r, rel=1e-10)


@given(st.integers(1, 6), st.integers(1, 8), seeds)
def test_effective_rank_is_the_exponential_of_the_entropy(unit_rows, d, m, seed):
    Z = unit_rows(m, d, seed)
    energies = np.linalg.svd(Z.numpy(), compute_uv=False) ** 2
    V = torch.stack([Z.T @ Z / m, 5 * Z.T @ Z])  # the scale does not matter
    expected = math.exp(entropy(energies / energies.sum()))
    assert effective_rank(V).tolist() == pytest.approx([expected] * 2, rel=1e-8)


def test_overlap_is_zero_for_orthogonal_and_one_for_equal_classes():
    assert overlap(stats_of(spread(0, 1), spread(2, 3), spread(4))) == pytest.approx(0, abs=1e-15)
    assert overlap(stats_of(spread(0, 1), spread(0, 1), spread(0, 1))) == pytest.approx(1, rel=1e-12)


def test_overlap_is_the_mean_over_pairs():
    # ⟨V_0, V_1⟩/(‖V_0‖‖V_1‖) = (1/4)/(1/2) = 1/2 for one shared axis of two; the other pairs are orthogonal.
    assert overlap(stats_of(spread(0, 1), spread(1, 2), spread(3, 4))) == pytest.approx(0.5 / 3, rel=1e-12)


@given(st.integers(2, 4), seeds)
def test_overlap_by_loops(unit_rows, K, seed):
    stats = stats_of(*(unit_rows(5, 4, seed + k) for k in range(K)))
    V = stats.V.numpy()
    pairs = [(k, j) for k in range(K) for j in range(k)]
    cosines = [np.trace(V[k] @ V[j]) / np.sqrt(np.trace(V[k] @ V[k]) * np.trace(V[j] @ V[j])) for k, j in pairs]
    assert overlap(stats) == pytest.approx(np.mean(cosines), rel=1e-10)


def test_overlap_leaves_out_classes_without_samples():
    stats = stats_of(spread(0), spread(0), spread(1))
    assert overlap(keep(stats, [0, 1])) == pytest.approx(1, rel=1e-12)
    assert math.isnan(overlap(keep(stats, [0])))


def test_disagreement_is_zero_for_equal_and_root_two_for_orthogonal_nodes():
    a, b = stats_of(spread(0, 1), spread(2)), stats_of(spread(3, 4), spread(5))
    assert disagreement([a, a], [(0, 1)]) == 0
    assert disagreement([a, b], [(0, 1)]) == pytest.approx(math.sqrt(2), rel=1e-12)
    assert disagreement([a, a, b], [(0, 1), (1, 2)]) == pytest.approx(math.sqrt(2) / 2, rel=1e-12)


@given(seeds)
def test_disagreement_by_loops_over_both_directions(unit_rows, seed):
    """Nodes with spectra of different length, so that ‖V_i‖ and ‖V_j‖ differ."""
    nodes = [stats_of(unit_rows(2 + 3 * i, 4, seed + i), unit_rows(3, 4, seed + 9 + i)) for i in range(3)]
    edges, total = [(0, 1), (0, 2)], 0.0
    for i, j in [(0, 1), (1, 0), (0, 2), (2, 0)]:
        gap = sum(np.linalg.norm(nodes[i].V[k].numpy() - nodes[j].V[k].numpy()) ** 2 for k in range(2))
        own = sum(np.linalg.norm(nodes[i].V[k].numpy()) ** 2 for k in range(2))
        total += math.sqrt(gap / own) / 4
    assert disagreement(nodes, edges) == pytest.approx(total, rel=1e-10)


def test_disagreement_counts_shared_classes_only():
    a = keep(stats_of(spread(0), spread(1), spread(2)), [0, 1])
    b = keep(stats_of(spread(0), spread(3), spread(4)), [0, 2])
    assert relative_distance(a, b) == 0
    c = keep(stats_of(spread(5), spread(1), spread(4)), [0, 1])
    # Of two shared classes one is orthogonal and one equal: √(2/2).
    assert relative_distance(a, c) == pytest.approx(1, rel=1e-12)


def test_nodes_that_share_no_class_have_no_distance():
    a, b = keep(stats_of(spread(0), spread(1)), [0]), keep(stats_of(spread(0), spread(1)), [1])
    assert math.isnan(relative_distance(a, b))
    assert math.isnan(disagreement([a, b], [(0, 1)]))


def test_disagreement_without_edges_is_not_a_number():
    assert math.isnan(disagreement([stats_of(spread(0))], []))


@pytest.fixture
def learned():
    """Two nodes that hold the same two orthogonal classes; a third of node 1's test features are wrong."""
    stats = stats_of(spread(0, 1), spread(2, 3))
    good = torch.cat([spread(0, 1)[[0, 1, 2]], spread(2, 3)[[0, 1, 2]]])
    swapped = good.clone()
    swapped[[0, 3]] = good[[3, 0]]
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    return Learned([stats, stats], [good, good], [y, y], HeldOut(torch.stack([good, swapped]), y), [(0, 1)])


def test_evaluation_puts_the_numbers_together(learned):
    numbers = evaluate(learned, eps2=0.5, rule=SubspaceRule(rank=2))
    # Alone, node 0 is right everywhere and node 1 in four of six.
    assert numbers["acc_node"] == pytest.approx((1 + 4 / 6) / 2)
    assert numbers["disagreement"] == 0
    assert numbers["overlap"] == pytest.approx(0, abs=1e-15)
    assert (numbers["rank_min"], numbers["rank_max"]) == pytest.approx((2, 2))
    assert numbers["expand"] == pytest.approx(2 * math.log(1 + 12 / (4 * 0.5)))
    assert numbers["compress"] == pytest.approx(math.log(1 + 12 / (2 * 0.5)))
    assert numbers["reduction"] == pytest.approx(numbers["expand"] - numbers["compress"])


def test_evaluation_tells_averaged_from_fused_features():
    """Two encoders that agree on the subspace but not on the side: averages cancel, energies do not."""
    stats = stats_of(spread(0, 1), spread(2, 3))
    Z = torch.cat([spread(0, 1), spread(2, 3)])
    off = Z + 0.1 * AXES[4]
    sideways = -Z + 0.1 * AXES[[2] * 4 + [0] * 4]  # a little of the other class
    y = torch.tensor([0] * 4 + [1] * 4)
    learned = Learned([stats, stats], [off, sideways], [y, y], HeldOut(torch.stack([off, sideways]), y), [(0, 1)])
    numbers = evaluate(learned, eps2=0.5, rule=SubspaceRule(rank=2))
    assert numbers["acc_energy"] == 1
    assert numbers["acc_average"] == 0
