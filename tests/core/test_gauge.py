"""Gauge alignment: an orthogonal turn that never makes the match worse, and finds one that was planted."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.gauge import align, polar
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from toy_stats import keep, no_samples

seeds = st.integers(0, 10_000)
betas = st.sampled_from([0.0, 0.2, 1.0, 5.0])
SPREAD = torch.tensor([3.0, 1.5, 0.7], dtype=torch.float64)


@pytest.fixture(scope="session")
def random_stats(unit_rows):
    """Return a function that draws statistics of K classes with means away from zero."""

    def draw(K, d, seed, rows=4):
        Z = unit_rows(rows * K, d, seed) + 0.5 * unit_rows(1, d, seed + 1)
        return ClassStats.of(Z / Z.norm(dim=1, keepdim=True), torch.arange(K).repeat(rows), K)

    return draw


@pytest.fixture(scope="session")
def orthogonal_classes(orthogonal):
    """Return a function that draws classes in orthogonal three-dimensional subspaces with distinct spectra."""

    def draw(K, seed, mean=0.8):
        B, normal = orthogonal(3 * K, seed), torch.Generator().manual_seed(seed)
        inside = (torch.randn(K, 60, 3, generator=normal, dtype=torch.float64) + mean) * SPREAD
        Z = inside @ torch.stack([B[3 * k : 3 * k + 3] for k in range(K)])
        Z = (Z / Z.norm(dim=-1, keepdim=True)).reshape(-1, 3 * K)
        return ClassStats.of(Z, torch.arange(K).repeat_interleave(60), K)

    return draw


def objective(Q, stats, target, means):
    """Σ_k tr(Q V_k Qᵀ M_k) + β Σ_k (Q μ_k)·μ_{M,k}, by loops."""
    total = 0.0
    for V, M, mu, nu in zip(stats.V, target.V, stats.mu, target.mu, strict=True):
        total += torch.trace(Q @ V @ Q.T @ M).item() + means * torch.dot(Q @ mu, nu).item()
    return total


def eye(d):
    return torch.eye(d, dtype=torch.float64)


@given(st.integers(1, 6), seeds)
def test_polar_is_the_best_orthogonal_match(orthogonal, d, seed):
    B = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q = polar(B)
    torch.testing.assert_close(Q @ Q.T, eye(d), rtol=0, atol=1e-12)
    # The maximum of ⟨Q, B⟩ is the sum of the singular values, and QᵀB is the symmetric polar factor.
    assert (Q * B).sum().item() == pytest.approx(torch.linalg.matrix_norm(B, "nuc").item(), rel=1e-10)
    torch.testing.assert_close(Q.T @ B, (Q.T @ B).T, rtol=0, atol=1e-10)
    for other in range(5):
        assert (orthogonal(d, seed + other) * B).sum() <= (Q * B).sum() + 1e-12


@given(st.integers(1, 4), st.integers(1, 7), seeds, betas, st.booleans())
def test_align_is_orthogonal_and_never_lowers_the_objective(random_stats, K, d, seed, means, identity_only):
    stats, target = random_stats(K, d, seed), random_stats(K, d, seed + 9)
    Q = align(stats, target, means=means, from_identity_only=identity_only)
    torch.testing.assert_close(Q @ Q.T, eye(d), rtol=0, atol=1e-10)
    assert objective(Q, stats, target, means) >= objective(eye(d), stats, target, means) - 1e-12


@given(st.integers(1, 3), st.integers(2, 6), seeds, betas)
def test_every_step_climbs(random_stats, K, d, seed, means):
    stats, target = random_stats(K, d, seed), random_stats(K, d, seed + 9)
    for identity_only in (True, False):
        options = {"means": means, "tol": 0.0, "from_identity_only": identity_only}
        turns = [align(stats, target, iterations=i, **options) for i in (0, 1, 2, 3, 10, 40)]
        values = [objective(Q, stats, target, means) for Q in turns]
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(values))


@given(st.integers(1, 3), st.integers(2, 6), seeds)
def test_the_second_start_only_helps(random_stats, K, d, seed):
    stats, target = random_stats(K, d, seed), random_stats(K, d, seed + 9)
    one = objective(align(stats, target, from_identity_only=True), stats, target, 1.0)
    assert objective(align(stats, target), stats, target, 1.0) >= one - 1e-12


def test_iterating_gains_on_random_statistics(random_stats):
    stats, target = random_stats(3, 6, 0), random_stats(3, 6, 9)
    gain = objective(align(stats, target), stats, target, 1.0) - objective(eye(6), stats, target, 1.0)
    assert gain > 0.05


@given(st.integers(1, 3), seeds)
def test_a_planted_rotation_is_found_in_the_second_moments(orthogonal_classes, orthogonal, K, seed):
    stats = orthogonal_classes(K, seed)
    target = stats.rotated(orthogonal(3 * K, seed + 1))
    turned = stats.rotated(align(stats, target, means=0, iterations=500, tol=0.0))
    assert (turned.V - target.V).norm() < 1e-6 * target.V.norm()


@given(st.integers(1, 3), seeds)
def test_a_small_planted_rotation_is_found_with_means(orthogonal_classes, K, seed):
    stats = orthogonal_classes(K, seed)
    A = 0.05 * torch.randn(3 * K, 3 * K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    target = stats.rotated(torch.matrix_exp(A - A.T))
    turned = stats.rotated(align(stats, target, iterations=500, tol=0.0, from_identity_only=True))
    assert (turned.V - target.V).norm() < 1e-6 * target.V.norm()
    assert (turned.mu - target.mu).norm() < 1e-6 * target.mu.norm()


def test_planted_rotations_are_found_with_means(orthogonal_classes, orthogonal):
    for seed in range(8):
        stats = orthogonal_classes(3, seed)
        target = stats.rotated(orthogonal(9, seed + 1))
        turned = stats.rotated(align(stats, target, means=1.0, iterations=500, tol=0.0))
        assert (turned.V - target.V).norm() < 1e-6 * target.V.norm()
        assert (turned.mu - target.mu).norm() < 1e-6 * target.mu.norm()


@given(st.integers(1, 3), seeds, betas)
def test_rates_do_not_change_under_the_turn(random_stats, K, seed, means):
    stats, target = random_stats(K, 5, seed), random_stats(K, 5, seed + 9)
    turned = rate_reduction(stats.rotated(align(stats, target, means=means)))
    before = rate_reduction(stats)
    assert turned.expand.item() == pytest.approx(before.expand.item(), rel=1e-10)
    assert turned.compress.item() == pytest.approx(before.compress.item(), rel=1e-10)


@given(seeds, betas)
def test_equal_statistics_cannot_be_improved(random_stats, seed, means):
    stats = random_stats(3, 4, seed)
    Q = align(stats, stats, means=means)
    # Cauchy–Schwarz: ⟨QVQᵀ, V⟩ ≤ ‖V‖², met at Q = I.
    best = stats.V.square().sum() + means * stats.mu.square().sum()
    assert objective(Q, stats, stats, means) == pytest.approx(best.item(), rel=1e-10)


@given(seeds, betas)
def test_only_shared_classes_count(random_stats, seed, means):
    stats, target, other = (random_stats(4, 5, seed + 20 * i) for i in range(3))
    shared = align(keep(stats, [0, 1]), keep(target, [0, 1]), means=means)
    # Class 2 is this node's alone, class 3 the target's alone.
    torch.testing.assert_close(align(keep(stats, [0, 1, 2]), keep(target, [0, 1, 3]), means=means), shared)
    swapped = keep(stats, [0, 1]) + keep(other, [2])
    torch.testing.assert_close(align(swapped, keep(target, [0, 1, 3]), means=means), shared)


def test_no_shared_class_leaves_the_frame_alone(random_stats):
    stats = random_stats(2, 4, 0)
    assert torch.equal(align(keep(stats, [0]), keep(stats, [1]), from_identity_only=True), eye(4))


def test_means_of_zero_ignores_the_means(random_stats):
    stats, target = random_stats(3, 5, 0), random_stats(3, 5, 9)
    bare = ClassStats.without_means(target.V, target.m)
    assert torch.equal(align(stats, target, means=0), align(stats, bare, means=0))
    assert not torch.allclose(align(stats, target, means=1.0), align(stats, bare, means=1.0))


def opposite_means():
    """Both nodes hold one axis; only the means tell that one of them points the other way."""
    V = torch.diag(torch.tensor([1.0, 0.0]).double())[None]
    one, count = torch.tensor([[0.5, 0.0]]).double(), torch.ones(1).double()
    return ClassStats(V, one, count), ClassStats(V, -one, count)


def test_strong_means_decide_the_side_inside_a_subspace():
    stats, target = opposite_means()
    assert (stats.rotated(align(stats, target, means=20.0)).mu - target.mu).norm() < 1e-12


# The smallest form of it: without signs on the axes both starts would be Q = I, which is a fixed point of the
# climb (B = 1 − β/8 > 0), although the objective is 1 − β/4 there and 1 + β/4 at Q = diag(−1, 1).
def test_weak_means_decide_the_side_inside_a_subspace():
    stats, target = opposite_means()
    assert (stats.rotated(align(stats, target, means=1.0)).mu - target.mu).norm() < 1e-12


def test_shapes_must_match():
    with pytest.raises(
        InputError, match=r"target must have the same K and d as stats: \(2, 4, 4\) against \(2, 3, 3\)"
    ):
        align(no_samples(2, 3), no_samples(2, 4))


def test_weight_of_means_must_not_be_negative(random_stats):
    with pytest.raises(InputError, match=r"means must not be negative; got -1\. 0 leaves class means out"):
        align(random_stats(2, 3, 0), random_stats(2, 3, 1), means=-1)


@pytest.mark.parametrize("part", ["V", "mu", "m"])
def test_statistics_must_be_finite_and_the_class_is_named(random_stats, part):
    good, bad = random_stats(3, 4, 0), random_stats(3, 4, 1)
    bad.tensors()[part][2] = torch.nan
    with pytest.raises(InputError, match=r"target must be finite; class 2 is not\. Look for a diverged encoder"):
        align(good, bad)
    with pytest.raises(InputError, match="stats must be finite; class 2 is not"):
        align(bad, good)


def test_statistics_must_be_statistics(random_stats):
    good = random_stats(2, 3, 0)
    arrays = ClassStats(good.V.numpy(), good.mu.numpy(), good.m.numpy())
    for other, kind in ((arrays, "ClassStats"), (good.V.numpy(), "ndarray"), (good.V, "Tensor")):
        with pytest.raises(InputError, match=rf"target must be ClassStats of tensors; got {kind}\. Use ClassStats\.of"):
            align(good, other)


def test_precisions_must_match(random_stats):
    good = random_stats(2, 3, 0)
    single = ClassStats(good.V.float(), good.mu.float(), good.m.float())
    with pytest.raises(InputError, match=r"and their dtype: torch\.float32 against torch\.float64"):
        align(good, single)
