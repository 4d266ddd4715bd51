"""CKA against its kernel form, its exact expectation over permutations, and an unbiased estimate by definition."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError
from ratemesh.metrics.geometry import cka_paired, cka_unpaired, mean_cka, participation_ratio

seeds = st.integers(0, 10_000)
sizes = st.tuples(st.integers(4, 9), st.integers(1, 5), st.integers(1, 5))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def cka(X, Y, debiased=False):
    return mean_cka([X, Y], debiased)


def kernel_cka(X, Y):
    """Return HSIC(K, L)/√(HSIC(K, K) HSIC(L, L)) with tr(KHLH), as CKA is defined for any kernel."""
    n = len(X)
    H = np.eye(n) - 1 / n
    K, L = X.numpy() @ X.numpy().T, Y.numpy() @ Y.numpy().T
    hsic = lambda A, B: np.trace(A @ H @ B @ H)  # noqa: E731
    return hsic(K, L) / math.sqrt(hsic(K, K) * hsic(L, L))


def u_centred(X):
    """Return the Gram matrix with every row and column summing to 0 off a zero diagonal (Székely and Rizzo)."""
    K = X.numpy() @ X.numpy().T
    np.fill_diagonal(K, 0)
    n = len(K)
    rows = K.sum(1)
    U = K - rows[:, None] / (n - 2) - rows[None, :] / (n - 2) + K.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(U, 0)
    return U


@given(sizes, seeds)
def test_cka_is_its_kernel_form(sizes, seed):
    n, d, e = sizes
    X, Y = normal(n, d, seed=seed) + 2, normal(n, e, seed=seed + 1)
    assert cka(X, Y) == pytest.approx(kernel_cka(X, Y), rel=1e-9)
    assert cka(X, Y) == pytest.approx(cka(Y, X), rel=1e-12)
    assert 0 <= cka(X, Y) <= 1 + 1e-12


@given(sizes, seeds)
def test_cka_sees_neither_rotation_nor_scale_nor_shift_nor_order(orthogonal, sizes, seed):
    n, d, e = sizes
    X, Y = normal(n, d, seed=seed), normal(n, e, seed=seed + 1)
    order = torch.randperm(n, generator=draw(seed))
    moved = 3 * X @ orthogonal(d, seed) - 5
    for debiased in (False, True):
        assert cka(X, moved, debiased=debiased) == pytest.approx(1, rel=1e-9)
        assert cka(moved[order], Y[order], debiased=debiased) == pytest.approx(
            cka(X, Y, debiased=debiased), rel=1e-7, abs=1e-9
        )


@given(sizes, seeds)
def test_debiased_cka_is_the_cosine_of_u_centred_kernels(sizes, seed):
    n, d, e = sizes
    X, Y = normal(n, d, seed=seed) + 1, normal(n, e, seed=seed + 1)
    A, B = u_centred(X), u_centred(Y)
    expected = (A * B).sum() / math.sqrt((A * A).sum() * (B * B).sum())
    assert cka(X, Y, debiased=True) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_debiased_cka_of_unrelated_features_is_zero_on_average():
    pairs = [(normal(20, 30, seed=s), normal(20, 30, seed=s + 1000)) for s in range(200)]
    biased = np.array([cka(X, Y) for X, Y in pairs])
    debiased = np.array([cka(X, Y, debiased=True) for X, Y in pairs])
    assert biased.mean() > 0.5
    assert abs(debiased.mean()) < 3 * debiased.std() / math.sqrt(len(pairs))
    assert debiased.min() < 0


@given(st.integers(2, 4), seeds)
def test_paired_cka_is_the_mean_over_pairs(N, seed):
    """Σ_{i≠j} ⟨K_i, K_j⟩ = ‖Σ_i K_i‖² − N for kernels of norm 1."""
    Z = normal(N, 7, 3, seed=seed)
    X = (Z - Z.mean(1, keepdim=True)).numpy()
    kernels = [x @ x.T / np.linalg.norm(x @ x.T) for x in X]
    expected = (np.linalg.norm(sum(kernels)) ** 2 - N) / (N * (N - 1))
    assert cka_paired(Z) == pytest.approx(expected, rel=1e-9)
    by_pairs = [cka(Z[i], Z[j], debiased=True) for i in range(N) for j in range(i)]
    assert cka_paired(Z, debiased=True) == pytest.approx(np.mean(by_pairs), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("d", "e"), [(1, 1), (1, 4), (3, 2)])
def test_the_floor_of_unpaired_cka_is_its_exact_mean_over_permutations(d, e):
    X, Y = normal(5, d, seed=d) + 1, normal(5, e, seed=9 + e)
    mean = np.mean([cka(X, Y[list(order)]) for order in itertools.permutations(range(5))])
    assert cka_unpaired([X, Y], draw()).floor == pytest.approx(mean, rel=1e-9)


def test_unpaired_cka_of_one_network_is_at_its_floor_and_paired_cka_is_one(orthogonal):
    """Two nodes with the same encoder: the paper's column cannot see that they agree."""
    Z = normal(1000, 16)
    found = cka_unpaired([Z[:500], Z[500:]], draw())
    assert found.value == pytest.approx(found.floor, rel=0.3)
    assert found.value < 0.05
    assert cka_paired(torch.stack([Z, Z @ orthogonal(16)])) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("rank", "printed"), [(128, 0.0250), (120, 0.0234)])
def test_unpaired_cka_of_five_thousand_samples_is_what_the_paper_prints(rank, printed):
    """Isotropic in 128 dimensions, or ten 12-dimensional classes: Table I has 0.0245 and 0.0208 for Algorithm 1."""
    found = cka_unpaired([normal(5000, rank, seed=s) for s in range(2)], draw())
    assert found.floor == pytest.approx(printed, abs=1e-4)
    assert found.value == pytest.approx(printed, rel=0.05)


def test_unpaired_cka_shuffles_every_node_and_cuts_to_the_shortest():
    Z = [normal(n, 3, seed=n) for n in (9, 6, 7)]
    shared = draw(4)
    kept = [Z_i[torch.randperm(len(Z_i), generator=shared)[:6]] for Z_i in Z]
    found = cka_unpaired(Z, draw(4))
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert found.value == pytest.approx(np.mean([kernel_cka(kept[i], kept[j]) for i, j in pairs]), rel=1e-9)
    ratios = [float(participation_ratio(torch.cov(Z_i.T))) for Z_i in kept]
    assert found.floor == pytest.approx(np.mean([math.sqrt(ratios[i] * ratios[j]) / 5 for i, j in pairs]), rel=1e-9)
    assert found.n == 6
    assert cka_unpaired(Z, draw(5)).value != found.value


def test_rows_sorted_by_class_do_not_align_unpaired_features():
    """Nodes hand their samples over sorted by class; without the shuffle CKA would be near 1."""
    mu = 20 * torch.eye(4, dtype=torch.float64).repeat_interleave(50, 0)
    Z = [mu + normal(200, 4, seed=s) for s in range(2)]
    assert cka(*Z) > 0.9
    assert cka_unpaired(Z, draw()).value < 0.1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cka(torch.ones(3, 2) / 3, torch.eye(3)), "features must vary"),
        (lambda: cka(torch.eye(3), torch.eye(3), debiased=True), "at least 4 rows; got 3"),
        (lambda: cka(torch.ones(1, 2), torch.ones(1, 2)), "at least 2 rows; got 1"),
        (lambda: cka(torch.full((3, 2), torch.nan), torch.eye(3)), "finite"),
        (lambda: cka_paired(torch.ones(1, 4, 2)), r"at least two nodes to compare; got \(1, 4, 2\)"),
        (lambda: cka_paired(torch.ones(4, 2)), r"shape \(N, m, d\)"),
        (lambda: cka_unpaired([torch.eye(3)], draw()), "at least two nodes to compare; got 1"),
    ],
)
def test_what_cannot_be_compared_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_equidistant_points_have_no_structure_that_the_unbiased_estimate_could_see():
    """Every pair of rows of a simplex is alike: off the diagonal the centred kernel is zero."""
    assert cka(torch.eye(5), torch.eye(5)) == pytest.approx(1)
    with pytest.raises(InputError, match="self-similarity above 0"):
        cka(torch.eye(5), torch.eye(5), debiased=True)
