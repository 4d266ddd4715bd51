"""Principal angles against SciPy and planes with known angles; spectra against NumPy's singular values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import (
    leading_directions,
    mean_principal_angle,
    participation_ratio,
    principal_angles,
    stats_singular_values,
)
from toy_stats import keep

AXES = torch.eye(6, dtype=torch.float64)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plane(*rows):
    """Return the projection on the span of orthonormal rows."""
    R = torch.stack(rows)
    return R.mT @ R / len(R)


def turned(i, j, angle):
    """Return axis i, turned by an angle towards axis j."""
    return math.cos(angle) * AXES[i] + math.sin(angle) * AXES[j]


def angles(V_a, V_b, **rule):
    """Return the angles between the leading subspaces of two second moments."""
    return principal_angles(*(leading_directions(V, SubspaceRule(**rule)) for V in (V_a, V_b)))


@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_angles_are_scipys(r, q, seed):
    A, B = normal(6, r, seed=seed), normal(6, q, seed=seed + 1)
    found = angles(A @ A.mT, B @ B.mT, energy=1.0)
    expected = subspace_angles(A.numpy(), B.numpy())[::-1]
    assert len(found) == min(r, q)
    assert found.numpy() == pytest.approx(expected, abs=1e-7)


@given(seeds)
def test_angles_see_neither_the_frame_nor_what_happens_inside_a_subspace(orthogonal, seed):
    A, B = normal(6, 3, seed=seed), normal(6, 2, seed=seed + 1)
    Q, inside = orthogonal(6, seed), orthogonal(3, seed + 1) * torch.tensor([1.0, 2.0, 0.5]).double()
    expected = angles(A @ A.mT, B @ B.mT, energy=1.0)
    A_turned, B_turned = Q @ A @ inside, Q @ B
    found = angles(A_turned @ A_turned.mT, B_turned @ B_turned.mT, energy=1.0)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-7)


@pytest.mark.parametrize("small", [0.0, 1e-9, 0.3])
@pytest.mark.parametrize("large", [0.8, math.pi / 2 - 1e-9, math.pi / 2])
def test_angles_of_planes_keep_their_digits(small, large):
    A, B = plane(AXES[0], AXES[1]), plane(turned(0, 2, small), turned(1, 3, large))
    assert angles(A, B, energy=1.0).tolist() == pytest.approx([small, large], abs=1e-13)


def test_rank_and_energy_choose_the_directions():
    V = torch.diag(torch.tensor([0.6, 0.3, 0.1, 0, 0, 0], dtype=torch.float64))
    assert [leading_directions(V, SubspaceRule(energy=e)).shape[1] for e in (0.5, 0.6, 0.61, 0.9, 0.95, 1.0)] == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert [leading_directions(V, SubspaceRule(rank=r)).shape[1] for r in (1, 2, 5)] == [1, 2, 3]
    assert leading_directions(V, SubspaceRule(rank=2)).abs().tolist() == AXES[:, :2].tolist()
    assert leading_directions(V.float(), SubspaceRule(energy=1.0)).shape[1] == 3
    W = torch.diag(torch.tensor([0.5, 0, 0.5, 0, 0, 0], dtype=torch.float64))
    assert angles(V, W, rank=1).numel() == 1
    assert angles(V, W, energy=0.9).tolist() == pytest.approx([0, math.pi / 2], abs=1e-12)


def stats_of(*planes):
    V = torch.stack(planes)
    return ClassStats.without_means(V, torch.full((len(V),), 4.0, dtype=torch.float64))


def test_the_mean_angle_goes_over_angles_then_classes_then_pairs_of_nodes():
    base = stats_of(plane(AXES[0], AXES[1]), plane(AXES[3]))
    other = stats_of(plane(turned(0, 2, 0.2), turned(1, 4, 0.6)), plane(turned(3, 5, 1.0)))
    degrees = 180 / math.pi
    assert mean_principal_angle([base, other], rule=SubspaceRule(1.0)) == pytest.approx(0.7 * degrees, rel=1e-9)
    assert mean_principal_angle([base, base, other], [(0, 1)]) == pytest.approx(0, abs=1e-12)
    assert mean_principal_angle([base, base, other], [(0, 1), (1, 2)]) == pytest.approx(0.35 * degrees, rel=1e-9)
    assert mean_principal_angle([base, base, other]) == pytest.approx(0.7 * degrees * 2 / 3, rel=1e-9)
    assert mean_principal_angle([keep(base, [0]), other]) == pytest.approx(0.4 * degrees, rel=1e-9)
    # A pair that shares one class weighs as much as a pair that shares two: 0.4 and 0, not 0.4, 0 and 0.
    assert mean_principal_angle([keep(base, [0]), other, other], [(0, 1), (1, 2)]) == pytest.approx(0.2 * degrees)


def test_angles_that_do_not_exist_are_said():
    base = stats_of(plane(AXES[0]), plane(AXES[1]))
    for stats in ([base], [keep(base, [0]), keep(base, [1])]):
        with pytest.raises(InputError, match="two nodes that share a class"):
            mean_principal_angle(stats)
    with pytest.raises(InputError, match="V must not be zero"):
        angles(torch.zeros(3, 3), torch.eye(3))
    with pytest.raises(InputError, match=r"energy must lie in \(0, 1\]; got 0"):
        leading_directions(AXES, SubspaceRule(energy=0))
    with pytest.raises(InputError, match="rank must be at least 1; got 0"):
        leading_directions(AXES, SubspaceRule(rank=0))


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4).filter(any), seeds)
def test_statistics_hold_the_same_singular_values_as_features(labels_of, unit_rows, counts, seed):
    y, Z = labels_of(counts, seed), unit_rows(sum(counts), 4, seed)
    overall, by_class = stats_singular_values(ClassStats.of(Z, y, len(counts)))
    for values, rows in zip([overall, *by_class], [Z, *(Z[y == k] for k in range(len(counts)))], strict=True):
        expected = np.zeros(4)
        expected[: min(len(rows), 4)] = np.linalg.svd(rows.numpy(), compute_uv=False)
        assert values.numpy() == pytest.approx(expected, abs=1e-6)
    # Squared, they add up to the number of rows, all of unit length.
    assert by_class.square().sum(1).tolist() == pytest.approx(counts, abs=1e-9)


@given(st.integers(1, 6), st.integers(1, 8), seeds)
def test_participation_ratio_from_eigenvalues(d, m, seed):
    Z = normal(m, d, seed=seed)
    values = np.linalg.svd(Z.numpy(), compute_uv=False) ** 2
    found = participation_ratio(torch.stack([Z.mT @ Z, 7 * Z.mT @ Z]))
    assert found.tolist() == pytest.approx([values.sum() ** 2 / (values**2).sum()] * 2, rel=1e-9)
    assert 1 - 1e-9 <= found[0] <= d + 1e-9


def test_participation_ratio_of_an_isotropic_class_is_its_rank_and_of_nothing_zero():
    assert participation_ratio(torch.stack([plane(*AXES[:r]) for r in (1, 2, 6)])).tolist() == pytest.approx([1, 2, 6])
    assert participation_ratio(torch.zeros(3, 3)).item() == 0
