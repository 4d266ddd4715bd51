"""WCCR, IIDR and cosines of class means: loops, closed forms, the identity that ties them, floors by simulation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, NonFiniteFeaturesError
from toy_stats import class_mean_cosine, iidr, wccr

seeds = st.integers(0, 10_000)
# Unbalanced, with a class of one sample and an empty class among them.
counts = st.lists(st.integers(0, 6), min_size=2, max_size=5).filter(
    lambda c: sum(n > 0 for n in c) >= 2 and sum(c) > sum(n > 0 for n in c)
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def simplex(K, d, scale=1.0):
    """Return K vertices of a regular simplex around 0, as rows."""
    E = torch.eye(d, dtype=torch.float64)[:K]
    return scale * (E - E.mean(0))


def by_loops(Z, y):
    """Return S_W, S_T, distances between class means (k < l) and samples' distances to their own mean."""
    Z, y = Z.numpy(), y.numpy()
    labels = sorted(set(y.tolist()))
    mu = {k: np.mean([z for z, label in zip(Z, y, strict=True) if label == k], axis=0) for k in labels}
    own = [np.linalg.norm(z - mu[label]) for z, label in zip(Z, y.tolist(), strict=True)]
    total = [np.linalg.norm(z - Z.mean(0)) ** 2 for z in Z]
    between = [np.linalg.norm(mu[k] - mu[j]) for k in labels for j in labels if k < j]
    return np.mean(np.square(own)), np.mean(total), between, own


@given(counts, seeds)
def test_wccr_and_iidr_by_loops(labels_of, counts, seed):
    y, Z = labels_of(counts, seed), normal(sum(counts), 3, seed=seed)
    S_W, S_T, between, own = by_loops(Z, y)
    assert wccr(Z, y).value == pytest.approx(S_W / S_T, rel=1e-10)
    assert iidr(Z, y).value == pytest.approx(np.mean(between) / np.mean(own), rel=1e-10)
    assert wccr(Z, y).n == iidr(Z, y).n == sum(counts)


@given(counts, seeds)
def test_wccr_from_class_statistics_alone(labels_of, unit_rows, counts, seed):
    y, Z = labels_of(counts, seed), unit_rows(sum(counts), 4, seed)
    s = ClassStats.of(Z, y, len(counts))
    within = (s.proportions * s.covariance().diagonal(dim1=1, dim2=2).sum(1)).sum()
    total = 1 - (s.proportions @ s.mu).square().sum()  # rows of unit length
    assert wccr(Z, y).value == pytest.approx(float(within / total), rel=1e-9)


def test_points_have_wccr_zero_and_means_that_coincide_one():
    eye = torch.eye(4, dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1])
    assert wccr(eye[[0, 0, 1, 1]], y).value == 0
    assert iidr(eye[[0, 0, 1, 1]], y).value == math.inf
    same = torch.stack([eye[0], -eye[0], eye[1], -eye[1]])
    assert wccr(same, y).value == pytest.approx(1, rel=1e-15)
    assert iidr(same, y).value == 0


@pytest.mark.parametrize("K", [2, 3, 10, 100])
def test_iidr_is_a_function_of_wccr_for_equal_distances(K):
    """IIDR = √(2K/(K−1)) √((1−W)/W) when all distances between and all within are equal."""
    d = K + 2
    extra = 0.7 * torch.eye(d, dtype=torch.float64)[[K, K + 1]]
    Z = (simplex(K, d, 1.3)[:, None] + torch.cat([extra, -extra])).reshape(-1, d)
    y = torch.arange(K).repeat_interleave(4)
    W = wccr(Z, y).value
    assert iidr(Z, y).value == pytest.approx(math.sqrt(2 * K / (K - 1) * (1 - W) / W), rel=1e-12)
    assert iidr(Z, y).value == pytest.approx(1.3 * math.sqrt(2) / 0.7, rel=1e-12)


@given(st.integers(2, 6), st.integers(2, 5), seeds)
def test_root_mean_square_distances_of_balanced_classes_satisfy_the_identity(labels_of, K, n_k, seed):
    y, Z = labels_of([n_k] * K, seed), normal(K * n_k, 3, seed=seed)
    _, _, between, own = by_loops(Z, y)
    rms = math.sqrt(np.mean(np.square(between)) / np.mean(np.square(own)))
    W = wccr(Z, y).value
    assert rms == pytest.approx(math.sqrt(2 * K / (K - 1) * (1 - W) / W), rel=1e-9)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 2], [0, 0, 1, 1, 1]])
def test_the_floor_of_wccr_is_its_exact_mean_over_permuted_labels(labels):
    y, Z = torch.tensor(labels), normal(5, 2)
    mean = np.mean([wccr(Z, y[list(order)]).value for order in itertools.permutations(range(5))])
    assert wccr(Z, y).floor == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("counts", [[8] * 5, [4, 6, 12, 20], [1, 5, 0, 30]])
def test_floors_are_the_means_without_class_structure(labels_of, counts):
    y = labels_of(counts)
    draws = [normal(sum(counts), 400, seed=seed) for seed in range(100)]
    for metric in (wccr, iidr):
        mean = np.mean([metric(Z, y).value for Z in draws])
        assert metric(draws[0], y).floor == pytest.approx(mean, rel=0.007)


@pytest.mark.parametrize(("n_k", "floor", "distance"), [(50, 0.980, 0.200), (100, 0.990, 0.141), (500, 0.998, 0.063)])
def test_floors_of_a_hundred_classes(n_k, floor, distance):
    y = torch.arange(100).repeat_interleave(n_k)
    Z = normal(len(y), 2)
    assert wccr(Z, y).floor == pytest.approx(floor, abs=5e-4)
    assert iidr(Z, y).floor == pytest.approx(distance, rel=0.011)  # √(2/n_k), to first order


@given(counts, seeds)
def test_nothing_depends_on_frame_order_or_names(labels_of, orthogonal, counts, seed):
    y, Z = labels_of(counts, seed), normal(sum(counts), 4, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    order, names = torch.randperm(len(y), generator=draw), torch.randperm(len(counts), generator=draw)
    turned, renamed = (2.5 * Z @ orthogonal(4, seed))[order], names[y][order]
    for metric in (wccr, iidr):
        assert metric(turned + 3, renamed).value == pytest.approx(metric(Z, y).value, rel=1e-9)
        assert metric(turned, renamed).floor == pytest.approx(metric(Z, y).floor, rel=1e-12)
    a, b = class_mean_cosine(Z, y), class_mean_cosine(turned, renamed)
    assert (b.mean, b.std) == pytest.approx((a.mean, a.std), abs=1e-9)


@pytest.mark.parametrize(
    ("Z", "y", "words"),
    [
        (torch.eye(3), torch.tensor([1, 1, 1]), "two classes and more samples than classes; got \\[0, 3\\]"),
        (torch.eye(3), torch.tensor([0, 1, 2]), "more samples than classes"),
        (normal(1, 7).repeat(11, 1) / 3, torch.tensor([0] * 5 + [1] * 6), "Z must vary"),
        (torch.eye(3), torch.tensor([0, 1]), "y must have shape \\(3,\\)"),
        (torch.eye(3), torch.tensor([-1, 1, 1]), "got label -1"),
        (torch.empty(0, 3), torch.tensor([], dtype=torch.long), "it is empty"),
    ],
)
def test_what_cannot_be_measured_is_said(Z, y, words):
    for metric in (wccr, iidr):
        with pytest.raises(InputError, match=words):
            metric(Z, y)


def test_features_that_are_not_numbers_are_refused():
    Z = torch.eye(4)
    Z[2, 0] = torch.nan
    for metric in (wccr, iidr, class_mean_cosine):
        with pytest.raises(NonFiniteFeaturesError, match="row 2"):
            metric(Z, torch.tensor([0, 0, 1, 1]))


@given(counts, seeds)
def test_cosines_by_loops(labels_of, counts, seed):
    y, Z = labels_of(counts, seed), normal(sum(counts), 3, seed=seed)
    found = class_mean_cosine(Z, y)
    mu = [Z[y == k].mean(0).numpy() for k, n in enumerate(counts) if n]
    expected = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in mu] for a in mu]
    off = [expected[k][j] for k in range(len(mu)) for j in range(len(mu)) if k != j]
    assert (found.mean, found.std) == pytest.approx((np.mean(off), np.std(off)), abs=1e-9)


@pytest.mark.parametrize("K", [2, 5, 10])
def test_an_offset_that_all_classes_share_shows(K):
    """⟨μ_k, μ_l⟩ = 0.04 against ‖μ_k‖² = 1.04."""
    shift = 0.1 * torch.eye(K + 1, dtype=torch.float64)[K]
    mu = torch.eye(K, K + 1, dtype=torch.float64) + 2 * shift
    Z = torch.stack([mu + shift, mu - shift], dim=1).reshape(2 * K, -1)
    found = class_mean_cosine(Z, torch.arange(K).repeat_interleave(2))
    assert (found.mean, found.std) == pytest.approx((0.04 / 1.04, 0), rel=1e-9, abs=1e-9)


def test_a_mean_within_its_own_noise_is_named():
    """S_W = 1 and n_k = 2, so means shorter than √1.5 are noise."""
    eye = torch.eye(4, dtype=torch.float64)
    mu = torch.stack([math.sqrt(1.4) * eye[0], math.sqrt(1.6) * eye[1], 0 * eye[2]])
    Z = torch.stack([mu + eye[3], mu - eye[3]], dim=1).reshape(6, 4)
    found = class_mean_cosine(Z, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert found.noise == (0, 2)
    assert (found.mean, found.std) == (0, 0)  # a mean of length zero has cosine 0 with all others


def test_points_at_the_origin_are_noise_although_they_do_not_spread():
    found = class_mean_cosine(
        torch.eye(3)[[0, 0, 1, 1, 2, 2]] * torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1, 2, 2])
    )
    assert found.noise == (1,)


def test_cosines_need_two_classes():
    with pytest.raises(InputError, match=r"at least two classes; got classes \[1\]"):
        class_mean_cosine(torch.eye(3), torch.tensor([1, 1, 1]))
