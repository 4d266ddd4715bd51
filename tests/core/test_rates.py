"""Coding rates against singular values, closed forms and the laws they obey."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.rates import coding_rate, half_logdet, rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from toy_stats import no_samples

counts_lists = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(lambda c: sum(c) > 0)
seeds = st.integers(0, 10_000)
distortions = st.sampled_from([0.05, 0.5, 2.0])


def rate_of_rows(Z, eps2):
    """R of eq. (eqR) from the singular values of the features: ½ Σ log(1 + d σ² / (m ε²))."""
    m, d = Z.shape
    sigma = np.linalg.svd(Z.numpy(), compute_uv=False)
    return 0.5 * np.log1p(d * sigma**2 / (m * eps2)).sum()


def compress_of_rows(Z, y, eps2):
    """R^c of eq. (eqRc), class by class; tr(Π_k) is the number of rows."""
    total = 0.0
    for k in set(y.tolist()):
        Z_k = Z[y == k]
        total += len(Z_k) / len(Z) * rate_of_rows(Z_k, eps2)
    return total


def isotropic_classes(K, r, d):
    """Return 2r rows per class that fill r coordinate axes of their own evenly."""
    rows = torch.eye(d, dtype=torch.float64)[: K * r]
    return torch.cat([rows, -rows]), torch.arange(K).repeat_interleave(r).repeat(2)


@pytest.mark.parametrize(("m", "d"), [(30, 7), (5, 11), (1, 4), (8, 8)])
def test_coding_rate_is_the_sum_over_singular_values(unit_rows, m, d):
    Z = unit_rows(m, d)
    assert coding_rate(Z.T @ Z / m, 0.3).item() == pytest.approx(rate_of_rows(Z, 0.3), rel=1e-10)


def test_coding_rate_is_batched(unit_rows):
    V = torch.stack([unit_rows(9, 4, seed).T @ unit_rows(9, 4, seed) / 9 for seed in range(6)]).view(2, 3, 4, 4)
    expected = [[rate_of_rows(unit_rows(9, 4, 3 * a + b), 0.5) for b in range(3)] for a in range(2)]
    np.testing.assert_allclose(coding_rate(V).numpy(), expected, rtol=1e-10)


@given(counts_lists, st.integers(1, 8), seeds, distortions)
def test_terms_equal_the_printed_equations(unit_rows, labels_of, counts, d, seed, eps2):
    Z, y = unit_rows(sum(counts), d, seed), labels_of(counts, seed)
    terms = rate_reduction(ClassStats.of(Z, y, len(counts)), eps2)
    expand, compress = rate_of_rows(Z, eps2), compress_of_rows(Z, y, eps2)
    assert terms.expand.item() == pytest.approx(expand, rel=1e-10)
    assert terms.compress.item() == pytest.approx(compress, rel=1e-10)
    assert terms.reduction.item() == pytest.approx(expand - compress, rel=1e-10, abs=1e-10)


@given(counts_lists, st.integers(1, 8), seeds, distortions)
def test_reduction_is_never_negative(unit_rows, labels_of, counts, d, seed, eps2):
    stats = ClassStats.of(unit_rows(sum(counts), d, seed), labels_of(counts, seed), len(counts))
    assert rate_reduction(stats, eps2).reduction.item() >= -1e-12


@given(counts_lists, st.integers(2, 8), seeds)
def test_terms_do_not_change_under_a_rotation(unit_rows, labels_of, orthogonal, counts, d, seed):
    Z, y = unit_rows(sum(counts), d, seed), labels_of(counts, seed)
    Q = orthogonal(d, seed + 1)
    before = rate_reduction(ClassStats.of(Z, y, len(counts)))
    for turned in (ClassStats.of(Z @ Q.T, y, len(counts)), ClassStats.of(Z, y, len(counts)).rotated(Q)):
        after = rate_reduction(turned)
        assert after.expand.item() == pytest.approx(before.expand.item(), rel=1e-10)
        assert after.compress.item() == pytest.approx(before.compress.item(), rel=1e-10)


@given(counts_lists, seeds, st.randoms(use_true_random=False))
def test_terms_do_not_depend_on_the_names_of_classes(unit_rows, labels_of, counts, seed, random):
    Z, y = unit_rows(sum(counts), 5, seed), labels_of(counts, seed)
    names = list(range(len(counts)))
    random.shuffle(names)
    before = rate_reduction(ClassStats.of(Z, y, len(counts)))
    after = rate_reduction(ClassStats.of(Z, torch.tensor(names)[y], len(counts)))
    assert after.expand.item() == pytest.approx(before.expand.item(), rel=1e-10)
    assert after.compress.item() == pytest.approx(before.compress.item(), rel=1e-10)


@given(st.lists(st.integers(2, 12), min_size=2, max_size=4), st.integers(2, 6), seeds)
def test_pooled_rate_is_at_least_the_weighted_rates_of_nodes(unit_rows, sizes, d, seed):
    """Jensen, eq. (eqR1): R(Z) ≥ Σ_i (m_i/m) R(Z_i)."""
    nodes = [unit_rows(m, d, seed + i) for i, m in enumerate(sizes)]
    stats = [ClassStats.of(Z, torch.zeros(len(Z), dtype=torch.int64), 1) for Z in nodes]
    pooled = coding_rate(ClassStats.sum(stats).mixture())
    bound = sum(m / sum(sizes) * rate_of_rows(Z, 0.5) for m, Z in zip(sizes, nodes, strict=True))
    # Random nodes never agree exactly, so the inequality is strict.
    assert pooled.item() > bound + 1e-9


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), seeds)
def test_jensen_bound_is_met_at_consensus(unit_rows, orthogonal, copies, seed):
    """Nodes of different size and different samples, but of one second moment: R(Z) = Σ_i (m_i/m) R(Z_i)."""
    Z = unit_rows(6, 4, seed)
    # Signs change the samples, not the second moment; copies change the size only.
    signs = [torch.sign(unit_rows(6, 1, seed + i + 1)) for i in range(len(copies))]
    nodes = [(Z * s).repeat(c, 1) for s, c in zip(signs, copies, strict=True)]
    stats = [ClassStats.of(X, torch.zeros(len(X), dtype=torch.int64), 1) for X in nodes]
    bound = sum(len(X) / (6 * sum(copies)) * rate_of_rows(X, 0.5) for X in nodes)
    assert coding_rate(ClassStats.sum(stats).mixture()).item() == pytest.approx(bound, rel=1e-10)


@pytest.mark.parametrize(("K", "r", "d"), [(1, 1, 1), (2, 3, 6), (4, 2, 12), (5, 4, 20), (3, 1, 16)])
@pytest.mark.parametrize("eps2", [0.1, 0.5, 3.0])
def test_closed_form_of_orthogonal_isotropic_classes(K, r, d, eps2):
    terms = rate_reduction(ClassStats.of(*isotropic_classes(K, r, d), K), eps2)
    assert terms.expand.item() == pytest.approx(K * r / 2 * math.log(1 + d / (K * r * eps2)), rel=1e-12)
    assert terms.compress.item() == pytest.approx(r / 2 * math.log(1 + d / (r * eps2)), rel=1e-12)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 6), seeds)
def test_identical_classes_have_no_reduction(unit_rows, K, m, d, seed):
    Z = unit_rows(m, d, seed).repeat(K, 1)
    terms = rate_reduction(ClassStats.of(Z, torch.arange(K).repeat_interleave(m), K))
    assert terms.expand.item() > 0
    assert terms.reduction.item() == pytest.approx(0, abs=1e-12)


def test_no_samples_have_no_rate():
    terms = rate_reduction(no_samples(3, 4, torch.float64))
    assert (terms.expand.item(), terms.compress.item()) == (0, 0)


def test_half_logdet_returns_the_factor_it_used(unit_rows):
    S = torch.stack([unit_rows(5, 3, seed).T @ unit_rows(5, 3, seed) for seed in range(2)])
    alpha = torch.tensor([0.7, 4.0], dtype=torch.float64)[:, None, None]
    values, U = half_logdet(S, alpha)
    A = torch.eye(3, dtype=torch.float64) + alpha * S
    torch.testing.assert_close(U.mT @ U, A, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values, 0.5 * torch.linalg.eigvalsh(A).log().sum(-1), rtol=1e-12, atol=0)


def test_half_logdet_leaves_its_argument_alone():
    S = torch.eye(3)
    half_logdet(S, 1.0)
    assert torch.equal(S, torch.eye(3))


def test_a_matrix_that_is_not_positive_definite_gives_nan_and_spoils_no_other():
    V = torch.stack([torch.eye(3), -torch.eye(3), torch.full((3, 3), torch.nan), torch.eye(3)]).double()
    rates = coding_rate(V, 0.5)
    assert rates.isnan().tolist() == [False, True, True, False]
    assert rates[0].item() == pytest.approx(1.5 * math.log(7))


def test_a_singular_matrix_gives_nan_and_not_minus_infinity():
    assert half_logdet(-torch.eye(2), 1.0)[0].isnan()


@pytest.mark.parametrize("eps2", [0, -0.5, math.nan])
def test_distortion_must_be_positive(eps2):
    with pytest.raises(InputError, match=rf"eps2 must be positive; got {eps2}.*default is 0\.5"):
        coding_rate(torch.eye(2), eps2)
    with pytest.raises(InputError, match="eps2 must be positive"):
        rate_reduction(no_samples(2, 2), eps2)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 5, 4)])
def test_second_moments_must_be_square(shape):
    with pytest.raises(InputError, match=r"V must be square .*got \(.*\)\. For features Z \(m, d\) pass Z\.T @ Z"):
        coding_rate(torch.zeros(shape))
