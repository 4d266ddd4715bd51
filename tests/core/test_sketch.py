"""Sketch moments: covariances that add up like second moments, turn with the features, and fix a whole frame."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.consensus import majority
from ratemesh.core.gauge import align
from ratemesh.core.sketch import sketch_fault
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from toy_stats import keep

seeds = st.integers(0, 10_000)


def drawn(m, d, p, seed, K=3):
    """Return unit features (m, d) that depend on a sketch (m, p), labels and the sketch, float64."""
    draw = torch.Generator().manual_seed(seed)
    H = torch.tanh(torch.randn(m, p, generator=draw, dtype=torch.float64))
    A = torch.randn(K, p, d, generator=draw, dtype=torch.float64)
    y = torch.arange(m) % K
    Z = torch.einsum("np,npd->nd", H, A[y]) + A.sum(1)[y]
    return Z / Z.norm(dim=1, keepdim=True), y, H


def stats_of(Z, y, H, K=3):
    return ClassStats.of(Z, y, K, H=H)


@given(st.integers(3, 30), st.integers(1, 5), st.integers(1, 4), seeds)
def test_sketch_moments_are_covariances_class_by_class(m, d, p, seed):
    Z, y, H = drawn(m, d, p, seed)
    sketch = stats_of(Z, y, H).sketch
    for k in range(3):
        z, h = Z[y == k], H[y == k]
        by_pairs = sum(torch.outer(a - z.mean(0), b - h.mean(0)) for a, b in zip(z, h, strict=True)) / len(z)
        torch.testing.assert_close(sketch.C[k], by_pairs)
        torch.testing.assert_close(sketch.h[k], h.mean(0))
        torch.testing.assert_close(sketch.v[k], torch.trace(torch.cov(h.T, correction=0).reshape(p, p)))


@given(st.integers(4, 30), st.integers(1, 29), seeds)
def test_statistics_of_parts_add_up_whatever_the_cut(m, cut, seed):
    Z, y, H = drawn(m, 4, 3, seed)
    parts = [stats_of(Z[rows], y[rows], H[rows]) for rows in (slice(0, cut), slice(cut, None))]
    whole, total = stats_of(Z, y, H), ClassStats.sum(parts)
    torch.testing.assert_close(total.sketch.C, whole.sketch.C)
    torch.testing.assert_close(total.sketch.h, whole.sketch.h)
    torch.testing.assert_close(total.sketch.v, whole.sketch.v)


@given(seeds)
def test_sketch_moments_turn_with_the_features(orthogonal, seed):
    Z, y, H = drawn(20, 4, 3, seed)
    Q = orthogonal(4, seed)
    torch.testing.assert_close(stats_of(Z, y, H).rotated(Q).sketch.C, stats_of(Z @ Q.T, y, H).sketch.C)


def test_all_that_is_made_of_statistics_keeps_their_sketch():
    Z, y, H = drawn(12, 4, 3, 0)
    stats = stats_of(Z, y, H)
    assert stats.balanced().sketch is stats.sketch
    torch.testing.assert_close(ClassStats.from_tensors(stats.tensors()).sketch.C, stats.sketch.C)
    assert stats.scaled(0).sketch.C.abs().max() == 0
    assert (stats + ClassStats.of(Z, y, 3)).sketch is None  # of half of the samples nothing is known
    assert "C" not in ClassStats.of(Z, y, 3).tensors()


@given(seeds)
def test_a_planted_turn_inside_classes_is_found_from_unpaired_samples(orthogonal, seed):
    # Both classes fill their subspaces evenly, so V and μ are the same at all nodes and say nothing of the turn.
    Q = torch.block_diag(orthogonal(3, seed), orthogonal(3, seed + 1))
    draw = torch.Generator().manual_seed(seed)
    W = torch.randn(3, 5, generator=draw, dtype=torch.float64)

    def node(shift):
        g = torch.Generator().manual_seed(seed + shift)
        inside = torch.nn.functional.normalize(torch.randn(4000, 3, generator=g, dtype=torch.float64), dim=1)
        y = torch.arange(4000) % 2
        Z = torch.zeros(4000, 6, dtype=torch.float64)
        Z[y == 0, :3], Z[y == 1, 3:] = inside[y == 0], inside[y == 1]
        return Z, y, torch.tanh(inside @ W)

    (Z, y, H), (Z_other, y_other, H_other) = node(1), node(2)
    turned, target = ClassStats.of(Z @ Q.T, y, 2, H=H), ClassStats.of(Z_other, y_other, 2, H=H_other)
    found = align(turned, target)
    assert (found @ Q - torch.eye(6, dtype=torch.float64)).norm() < 0.3
    blind = align(turned, target, sketch=0)
    assert (blind @ Q - torch.eye(6, dtype=torch.float64)).norm() > (
        found @ Q - torch.eye(6, dtype=torch.float64)
    ).norm()


def value(Q, stats, target, eta):
    """The objective with β = 1, class by class; η counts relative to the sizes of V and C."""
    V = sum(torch.trace(Q @ A @ Q.T @ B) for A, B in zip(stats.V, target.V, strict=True))
    mu = sum(torch.dot(Q @ a, b) for a, b in zip(stats.mu, target.mu, strict=True))
    sides = [(s.spread(), s.sketch.v, s.m, s.sketch.C.norm(dim=(1, 2))) for s in (stats, target)]
    signal = [(1 - spread * v / (m - 1) / size**2).clamp(min=0) for spread, v, m, size in sides]
    known = (signal[0] * signal[1]).sqrt()
    C = sum(s * (Q @ A * B).sum() for s, A, B in zip(known, stats.sketch.C, target.sketch.C, strict=True))
    size_V = sum(A.norm() * B.norm() for A, B in zip(stats.V, target.V, strict=True))
    size_C = sum(A.norm() * B.norm() for A, B in zip(stats.sketch.C, target.sketch.C, strict=True))
    return V + mu + eta * size_V / size_C * C


@given(seeds, st.sampled_from([0.1, 1.0, 10.0]), st.integers(1, 6))
def test_more_steps_never_lower_the_objective_and_no_turn_is_not_better(orthogonal, seed, eta, steps):
    stats = stats_of(*drawn(30, 4, 3, seed))
    target = stats_of(*drawn(30, 4, 3, seed + 1)).rotated(orthogonal(4, seed))
    few, more = (
        align(stats, target, sketch=eta, iterations=n, tol=0, from_identity_only=True) for n in (steps, steps + 1)
    )
    assert value(more, stats, target, eta) >= value(few, stats, target, eta) - 1e-12
    best = align(stats, target, sketch=eta)
    assert value(best, stats, target, eta) >= value(torch.eye(4, dtype=torch.float64), stats, target, eta) - 1e-12
    torch.testing.assert_close(best @ best.T, torch.eye(4, dtype=torch.float64))


def test_only_shared_classes_count_and_one_sample_a_class_says_nothing():
    stats, target = stats_of(*drawn(30, 4, 3, 1)), stats_of(*drawn(30, 4, 3, 2))
    both = align(keep(stats, [0, 1]), keep(target, [0, 1]))
    torch.testing.assert_close(align(stats, keep(target, [0, 1])), both)
    Z, y, H = drawn(3, 4, 3, 5)
    torch.testing.assert_close(align(stats_of(Z, y, H), target), align(ClassStats.of(Z, y, 3), target))


def test_another_sketch_is_refused_with_words():
    stats, other = stats_of(*drawn(30, 4, 3, 1)), stats_of(*drawn(30, 4, 2, 2))
    with pytest.raises(InputError, match="p = 2 against 3"):
        align(stats, other)
    with pytest.raises(InputError, match="p = 3 against 2"):
        stats + other
    with pytest.raises(InputError, match=r"sketch must not be negative; got -1"):
        align(stats, stats, sketch=-1)
    Z, y, H = drawn(6, 4, 3, 1)
    with pytest.raises(InputError, match=r"H must lie in −1\.\.1; got 2"):
        ClassStats.of(Z, y, 3, H=H * 0 + 2)
    with pytest.raises(InputError, match=r"with m = 6, one row a sample; got torch\.float64"):
        ClassStats.of(Z, y, 3, H=H[:2])
    with pytest.raises(InputError, match="got list"):
        ClassStats.of(Z, y, 3, H=H.tolist())


@given(st.integers(2, 25), st.integers(1, 6), st.integers(1, 5), seeds)
def test_true_sketch_moments_are_legal_and_larger_ones_are_not(m, d, p, seed):
    Z, y, H = drawn(m, d, p, seed, K=1)
    stats = ClassStats.of(Z, y, 1, H=H)
    sketch, spread = stats.sketch, stats.covariance().diagonal(dim1=1, dim2=2)
    exact = torch.zeros_like(sketch.C), torch.zeros_like(sketch.h)
    assert sketch_fault(sketch, spread, *exact) == ""
    assert "must not exceed" in sketch_fault(replace(sketch, C=sketch.C + 1.1), spread, *exact)
    assert "variance must lie between 0" in sketch_fault(replace(sketch, v=sketch.v + p), spread, *exact)
    assert "variance must lie between 0" in sketch_fault(replace(sketch, v=-sketch.v - 1), spread, *exact)


def test_signal_tells_samples_that_have_to_do_with_their_sketch_from_noise():
    Z, y, H = drawn(3000, 16, 12, 0)
    mixed = H[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    true, noise = (stats.sketch.signal(stats.spread(), stats.m) for stats in (stats_of(Z, y, H), stats_of(Z, y, mixed)))
    assert float(true.min()) > 0.9
    assert float(noise.mean()) < 0.4
    few = stats_of(Z[:3], y[:3], H[:3])  # one sample a class
    assert few.sketch.signal(few.spread(), few.m).tolist() == [0, 0, 0]


def test_a_majority_speaks_for_sketch_moments_too():
    told = [stats_of(*drawn(30, 4, 3, 1))] * 3
    liar = told[0].rotated(-torch.eye(4, dtype=torch.float64))
    heard = majority([*told, liar], "trimmed")
    for stats in heard:
        torch.testing.assert_close(stats.sketch.C, told[0].sketch.C)
    assert majority([told[0], ClassStats.of(*drawn(30, 4, 3, 1)[:2], 3)], "median")[0].sketch is None
