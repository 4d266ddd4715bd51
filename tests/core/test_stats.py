"""Class statistics: the definition by loops, and the laws that make streaming and pooling one operation."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, NonFiniteFeaturesError
from toy_stats import no_samples

K = 4
seeds = st.integers(0, 10_000)
dims = st.integers(1, 6)
class_counts = st.lists(st.integers(0, 9), min_size=K, max_size=K)


@pytest.fixture(scope="session")
def stats_of(unit_rows, labels_of):
    """Return a function that draws statistics with these counts."""

    def draw(counts, d, seed):
        return ClassStats.of(unit_rows(sum(counts), d, seed), labels_of(counts, seed), len(counts))

    return draw


def assert_same(a, b, tol=1e-12):
    for left, right in ((a.V, b.V), (a.mu, b.mu), (a.m, b.m)):
        torch.testing.assert_close(left, right, rtol=tol, atol=tol)


@given(class_counts, dims, seeds)
def test_definition_by_loops(unit_rows, labels_of, counts, d, seed):
    Z, y = unit_rows(sum(counts), d, seed), labels_of(counts, seed)
    stats = ClassStats.of(Z, y, K)
    for k in range(K):
        rows = [z for z, label in zip(Z.numpy(), y.tolist(), strict=True) if label == k]
        V = sum((np.outer(z, z) for z in rows), np.zeros((d, d))) / max(len(rows), 1)
        mu = sum(rows, np.zeros(d)) / max(len(rows), 1)
        np.testing.assert_allclose(stats.V[k].numpy(), V, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(stats.mu[k].numpy(), mu, rtol=1e-10, atol=1e-14)
        assert stats.m[k] == len(rows) == counts[k]


@given(class_counts, dims, seeds)
def test_second_moments_are_symmetric_psd_of_trace_one(stats_of, counts, d, seed):
    stats = stats_of(counts, d, seed)
    assert torch.equal(stats.V, stats.V.mT)
    assert torch.linalg.eigvalsh(stats.V).min() >= -1e-12
    trace = stats.V.diagonal(dim1=1, dim2=2).sum(1)
    torch.testing.assert_close(trace, torch.tensor([float(c > 0) for c in counts]).double(), rtol=0, atol=1e-12)
    assert stats.held.tolist() == [c > 0 for c in counts]


def test_one_class_that_holds_almost_everything(unit_rows):
    y = torch.tensor([2] * 90 + [0, 1])
    Z = unit_rows(92, 5)
    stats = ClassStats.of(Z, y, 3)
    torch.testing.assert_close(stats.V[2], Z[:90].T @ Z[:90] / 90, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(stats.V[0], torch.outer(Z[90], Z[90]), rtol=1e-12, atol=1e-14)


@given(class_counts, class_counts, dims, seeds)
def test_addition_is_the_statistics_of_the_union(unit_rows, labels_of, left, right, d, seed):
    Z1, y1 = unit_rows(sum(left), d, seed), labels_of(left, seed)
    Z2, y2 = unit_rows(sum(right), d, seed + 1), labels_of(right, seed + 1)
    union = ClassStats.of(torch.cat([Z1, Z2]), torch.cat([y1, y2]), K)
    assert_same(ClassStats.of(Z1, y1, K) + ClassStats.of(Z2, y2, K), union)


@given(class_counts, class_counts, class_counts, dims, seeds)
def test_addition_is_a_commutative_monoid(stats_of, one, two, three, d, seed):
    a, b, c = (stats_of(counts, d, seed + i) for i, counts in enumerate((one, two, three)))
    assert_same(a + b, b + a, tol=0)
    assert_same((a + b) + c, a + (b + c))
    zero = no_samples(K, d, torch.float64)
    assert_same(a + zero, a, tol=0)
    assert_same(zero + a, a, tol=0)
    assert_same(ClassStats.sum([a, b, c]), a + b + c, tol=0)


@given(class_counts, seeds, st.lists(st.integers(0, 36), max_size=5))
def test_streaming_equals_one_pass(unit_rows, labels_of, counts, seed, cuts):
    Z, y = unit_rows(sum(counts), 3, seed), labels_of(counts, seed)
    ends = [0, *sorted(min(c, len(y)) for c in cuts), len(y)]
    batches = [ClassStats.of(Z[a:b], y[a:b], K) for a, b in pairwise(ends)]
    assert_same(ClassStats.sum(batches), ClassStats.of(Z, y, K))


@given(class_counts, dims, seeds, st.floats(0.01, 10), st.floats(0.01, 10))
def test_scaling_changes_counts_only_and_composes(stats_of, counts, d, seed, a, b):
    stats = stats_of(counts, d, seed)
    assert torch.equal(stats.scaled(a).V, stats.V)
    assert torch.equal(stats.scaled(a).mu, stats.mu)
    assert_same(stats.scaled(a).scaled(b), stats.scaled(a * b))
    assert_same(stats.scaled(a) + stats.scaled(b), stats.scaled(a + b))


@given(class_counts, class_counts, seeds, st.floats(0.01, 10))
def test_scaling_distributes_over_addition(stats_of, left, right, seed, weight):
    a, b = stats_of(left, 3, seed), stats_of(right, 3, seed + 1)
    assert_same((a + b).scaled(weight), a.scaled(weight) + b.scaled(weight))


@given(class_counts, seeds, st.integers(0, 3))
def test_scaling_by_a_whole_number_is_repetition(unit_rows, labels_of, counts, seed, times):
    Z, y = unit_rows(sum(counts), 3, seed), labels_of(counts, seed)
    repeated = ClassStats.of(Z.repeat(times, 1), y.repeat(times), K)
    assert_same(ClassStats.of(Z, y, K).scaled(times), repeated)


@given(class_counts, class_counts, dims, seeds)
def test_mixture_is_the_second_moment_of_all_samples(unit_rows, labels_of, left, right, d, seed):
    parts = [(unit_rows(sum(c), d, seed + i), labels_of(c, seed)) for i, c in enumerate((left, right))]
    a, b = (ClassStats.of(Z, y, K) for Z, y in parts)
    Z = torch.cat([Z for Z, _ in parts])
    torch.testing.assert_close((a + b).mixture(), Z.T @ Z / max(len(Z), 1), rtol=1e-12, atol=1e-12)
    weighted = (sum(left) * a.mixture() + sum(right) * b.mixture()) / max(len(Z), 1)
    torch.testing.assert_close((a + b).mixture(), weighted, rtol=1e-12, atol=1e-12)


@given(class_counts, dims, seeds)
def test_proportions_add_to_one_or_are_zero(stats_of, counts, d, seed):
    proportions = stats_of(counts, d, seed).proportions
    assert proportions.tolist() == pytest.approx([c / max(sum(counts), 1) for c in counts], abs=1e-15)


@given(class_counts, seeds)
def test_covariance_is_numpys(unit_rows, labels_of, counts, seed):
    Z, y = unit_rows(sum(counts), 3, seed), labels_of(counts, seed)
    covariance = ClassStats.of(Z, y, K).covariance()
    for k in (k for k in range(K) if counts[k] > 0):
        expected = np.cov(Z[y == k].numpy().T, bias=True)
        np.testing.assert_allclose(covariance[k].numpy(), expected, rtol=1e-10, atol=1e-14)


@given(class_counts, st.integers(1, 5), seeds)
def test_rotated_is_the_statistics_of_rotated_features(unit_rows, labels_of, orthogonal, counts, d, seed):
    Z, y, Q = unit_rows(sum(counts), d, seed), labels_of(counts, seed), orthogonal(d, seed)
    turned = ClassStats.of(Z, y, K).rotated(Q)
    assert_same(turned, ClassStats.of(Z @ Q.T, y, K))
    assert torch.equal(turned.V, turned.V.mT)


def test_averaged_features_need_not_have_unit_length(unit_rows):
    Z = unit_rows(6, 3) * 0.5
    stats = ClassStats.of(Z, torch.zeros(6, dtype=torch.int64), 1, unit=False)
    assert stats.V[0].trace().item() == pytest.approx(0.25)


def test_dtype_of_features_is_kept(unit_rows):
    stats = ClassStats.of(unit_rows(4, 3).float(), torch.tensor([0, 1, 0, 1]), 2)
    assert (stats.V.dtype, stats.mu.dtype, stats.m.dtype) == (torch.float32,) * 3


def test_sizes_are_those_of_the_arrays():
    stats = no_samples(5, 3)
    assert (stats.num_classes, stats.d) == (5, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_must_be_finite_and_the_class_is_named(unit_rows, value):
    Z = unit_rows(4, 3)
    Z[2, 1] = value
    with pytest.raises(NonFiniteFeaturesError, match=r"Z must be finite; row 2 \(label 3\).*diverged encoder") as error:
        ClassStats.of(Z, torch.tensor([0, 1, 3, 2]), 4)
    assert error.value.label == 3


def test_rows_must_have_unit_length(unit_rows):
    Z = unit_rows(4, 3)
    Z[1] *= 2
    with pytest.raises(InputError, match=r"Z must have rows of unit length; row 1 has length 2\..*normalize\(Z"):
        ClassStats.of(Z, torch.tensor([0, 1, 0, 1]), 2)


@pytest.mark.parametrize(("labels", "bad"), [([0, 3], 3), ([-1, 0], -1)])
def test_labels_must_lie_in_range(labels, bad):
    with pytest.raises(InputError, match=rf"y must lie in 0\.\.2; got label {bad}\. Renumber"):
        ClassStats.of(torch.eye(2), torch.tensor(labels), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_labels_must_be_integers(dtype):
    with pytest.raises(InputError, match=rf"y must hold integers; got {dtype}\. Convert with y\.long\(\)"):
        ClassStats.of(torch.eye(2), torch.tensor([0, 1]).to(dtype), 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_labels_of_any_integer_type_count(unit_rows, dtype):
    Z, y = unit_rows(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    assert_same(ClassStats.of(Z, y.to(dtype), 3), ClassStats.of(Z, y, 3), tol=0)


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_one_label_per_row(shape):
    with pytest.raises(InputError, match=r"y must have shape \(2,\), one label per row of Z; got \("):
        ClassStats.of(torch.eye(2), torch.zeros(shape, dtype=torch.int64), 2)


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), (3, 0)])
def test_features_must_be_a_matrix(shape):
    with pytest.raises(InputError, match=r"Z must have shape \(m, d\), one sample per row; got \("):
        ClassStats.of(torch.zeros(shape), torch.tensor([0, 1]), 2)


def test_features_must_be_floating_point():
    with pytest.raises(InputError, match=r"Z must be floating point; got torch\.int64\. Convert with Z\.float\(\)"):
        ClassStats.of(torch.eye(2, dtype=torch.int64), torch.tensor([0, 1]), 2)


def test_features_and_labels_must_be_tensors():
    Z, y = torch.eye(2), torch.tensor([0, 1])
    for bad in ((Z.numpy(), y), (Z, y.tolist())):
        with pytest.raises(
            InputError, match=r"Z and y must be tensors; got \w+ and \w+\. Convert with torch\.as_tensor"
        ):
            ClassStats.of(*bad, 2)


def test_there_must_be_a_class():
    with pytest.raises(InputError, match="num_classes must be at least 1; got 0"):
        ClassStats.of(torch.eye(2), torch.tensor([0, 1]), 0)


def test_only_equal_shapes_are_added():
    with pytest.raises(InputError, match=r"same K and d.*\(2, 3, 3\) against \(2, 4, 4\).*same num_classes"):
        no_samples(2, 3) + no_samples(2, 4)
    with pytest.raises(TypeError):
        no_samples(2, 3) + 1


@pytest.mark.parametrize("weight", [-1, float("nan")])
def test_weight_must_not_be_negative(weight):
    with pytest.raises(InputError, match=rf"weight must not be negative; got {weight}\. Use 1/S_i"):
        no_samples(2, 3).scaled(weight)
