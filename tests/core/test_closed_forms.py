"""The core's closed forms against derivatives, projections and turns written out, also where shapes are extreme."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ratemesh.core.consensus import coupled_loss, mcr2_loss
from ratemesh.core.gauge import align
from ratemesh.core.lagrangian import Coupling, RunningStats, lagrangian
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats, balanced_counts, nearest_moments
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, directions_holding
from ratemesh.core.theory import Proportions, proportion_gaps
from ratemesh.errors import InputError
from toy_stats import keep, no_samples

EPS2 = 0.5


def symmetric(K: int, d: int, seed: int) -> Tensor:
    A = torch.randn(K, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (A + A.mT) / 2


def coupling_of(K: int, d: int, seed: int) -> Coupling:
    n = torch.arange(K, dtype=torch.float64) % 3
    return Coupling.of(0.1 * symmetric(K, d, seed), 0.2 * symmetric(K, d, seed + 1), n, 0.7)


def printed_loss(Z: Tensor, y: Tensor, coupling: Coupling, scale: float) -> Tensor:
    """(lagran1_2) class by class, for autograd: nothing is shared with the product but Y, T̄ and γn."""
    m, d = Z.shape
    eye = torch.eye(d, dtype=Z.dtype)
    total = -scale * torch.logdet(eye + d / (m * EPS2) * Z.T @ Z) / 2
    for k in y.unique().tolist():
        Z_k = Z[y == k]
        V = Z_k.T @ Z_k / len(Z_k)
        total = total + scale * len(Z_k) / m * torch.logdet(eye + d / EPS2 * V) / 2
        total = total + (coupling.Y[k] * V).sum() + coupling.weight[k] * (V - coupling.T_bar[k]).square().sum()
    return total


@pytest.mark.parametrize("most", [4, 5, 6], ids=["gram", "boundary", "moments"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_both_branches_meet_where_a_class_has_as_many_rows_as_dimensions(unit_rows, labels_of, most, scale):
    d, counts = 5, (most, 1, 0, 3)
    Z = unit_rows(sum(counts), d, most).requires_grad_()
    y, coupling = labels_of(counts, most), coupling_of(4, d, most)
    loss = coupled_loss(Z, y, coupling, eps2=EPS2, scale=scale).total
    expected = printed_loss(Z, y, coupling, scale)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    (ours,), (theirs,) = torch.autograd.grad(loss, Z), torch.autograd.grad(expected, Z)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_far_more_classes_than_rows(unit_rows):
    """Of 300 classes nine are in the batch, the first and the last among them."""
    Z = unit_rows(12, 4).requires_grad_()
    y = torch.tensor([0, 299, 7, 7, 8, 20, 20, 100, 150, 151, 299, 298])
    coupling = coupling_of(300, 4, 1)
    loss, expected = coupled_loss(Z, y, coupling, eps2=EPS2, scale=1.0).total, printed_loss(Z, y, coupling, 1.0)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, Z)[0] for value in (loss, expected)), rtol=1e-10, atol=1e-12
    )


def test_one_dimension_leaves_nothing_to_gain():
    """All unit vectors of one dimension have V = 1: ΔR is zero, whatever the signs and the labels."""
    Z = torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)
    assert abs(float(mcr2_loss(Z, torch.tensor([0, 1, 1]), 2))) < 1e-15


@given(seed=st.integers(0, 2**16))
def test_h_is_the_derivative_by_second_moments(stats_of, seed):
    """⟨H, D⟩ is the slope of L along any symmetric D, a class that is not held has none."""
    stats = stats_of((5, 0, 8, 2), d=4, seed=seed, dtype=torch.float64)
    coupling, D = coupling_of(4, 4, seed), symmetric(4, 4, seed + 5)
    terms, H = lagrangian(stats, coupling, EPS2, 0.6)

    def at(step: float) -> Tensor:
        moved = ClassStats(stats.V + step * D * stats.held[:, None, None], stats.mu, stats.m)
        return lagrangian(moved, coupling, EPS2, 0.6)[0].total

    h = 1e-5
    slope = (at(h) - at(-h)) / (2 * h)
    torch.testing.assert_close((H * D).sum(), slope, rtol=1e-6, atol=1e-7)
    assert bool((H[1] == 0).all())
    torch.testing.assert_close(terms.dual + terms.penalty - 0.6 * terms.reduction, terms.total)


def test_fixed_statistics_count_even_where_every_batch_counts_in_full(stats_of, unit_rows):
    """Algorithm 3 with β = 1: V of classes in the batch is the batch's, all else and the counts stay."""
    start = stats_of((4, 3, 6), d=5, dtype=torch.float64)
    Z, y = unit_rows(7, 5, seed=3), torch.tensor([0, 0, 2, 0, 2, 2, 0])
    batch = ClassStats.of(Z, y, 3)
    mixed = ClassStats.without_means(torch.stack([batch.V[0], start.V[1], batch.V[2]]), start.m)
    coupling = Coupling.of(torch.zeros(3, 5, 5, dtype=Z.dtype), torch.zeros(3, 5, 5, dtype=Z.dtype), 0, 1.0)
    fixed = coupled_loss(Z, y, coupling, eps2=EPS2, scale=1.0, running=RunningStats(start, 1.0, fixed=True))
    torch.testing.assert_close(fixed.reduction, rate_reduction(mixed, EPS2).reduction)
    free = coupled_loss(Z, y, coupling, eps2=EPS2, scale=1.0, running=RunningStats(start, 1.0))
    torch.testing.assert_close(free.reduction, rate_reduction(batch, EPS2).reduction)


def test_a_coupling_in_its_own_precision_is_itself():
    """What it computed once for a round is not computed again."""
    coupling = coupling_of(2, 3, 0)
    assert coupling.to(torch.float64) is coupling
    single = coupling.to(torch.float32)
    assert {t.dtype for t in (single.Y, single.T_bar, single.weight, single.pull, single.offset)} == {torch.float32}
    expected = coupling.Y - 2 * coupling.weight[:, None, None] * coupling.T_bar
    torch.testing.assert_close(coupling.pull, expected)
    torch.testing.assert_close(coupling.offset, coupling.weight * (coupling.T_bar**2).sum((1, 2)))


@given(d=st.integers(1, 6), seed=st.integers(0, 2**16), size=st.floats(0.01, 10))
def test_the_nearest_second_moment_is_a_projection(unit_rows, d, seed, size):
    """P is a second moment, its own nearest one, and no second moment W is on V's side of it: ⟨V − P, W − P⟩ ≤ 0."""
    V = size * symmetric(3, d, seed)
    P = nearest_moments(V)
    torch.testing.assert_close(P.diagonal(dim1=1, dim2=2).sum(1), torch.ones(3, dtype=V.dtype))
    assert float(torch.linalg.eigvalsh(P).min()) > -1e-9
    torch.testing.assert_close(nearest_moments(P), P, rtol=0, atol=1e-9)
    for i in range(4):
        Z = unit_rows(i + 1, d, seed + i)
        assert float(((V - P) * (Z.T @ Z / len(Z) - P)).sum((1, 2)).max()) < 1e-7


def away_objective(stats: ClassStats, target: ClassStats, B: Tensor, Q: Tensor) -> float:
    """Σ_k ⟨Q V_k Qᵀ, M_k − B⟩, M_k only of classes that both hold."""
    total = 0.0
    for k in range(stats.num_classes):
        M = target.V[k] if bool(stats.held[k] & target.held[k]) else torch.zeros_like(B)
        total += float(((Q @ stats.V[k] @ Q.T) * (M - B)).sum())
    return total


@settings(max_examples=8)
@given(seed=st.integers(0, 2**16))
def test_turning_away_is_orthogonal_and_never_worse_than_staying(stats_of, seed):
    d = 5
    stats = keep(stats_of((6, 6, 6, 6), d=d, seed=seed, dtype=torch.float64), [0, 1])
    target = keep(stats_of((6, 6, 6, 6), d=d, seed=seed + 1, dtype=torch.float64), [1, 2, 3])
    B = target.V[2] + target.V[3]
    Q = align(stats, target, means=0, away=B)
    torch.testing.assert_close(Q @ Q.T, torch.eye(d, dtype=Q.dtype))
    stay = torch.eye(d, dtype=Q.dtype)
    assert away_objective(stats, target, B, Q) >= away_objective(stats, target, B, stay) - 1e-9


def test_a_private_class_is_turned_into_the_room_that_is_left():
    """Own class along axis 0, where a foreign one is; axis 2 is free."""
    axes = torch.eye(3, dtype=torch.float64)
    own = ClassStats.of(axes[[0, 0]], torch.tensor([0, 0]), 3)
    others = ClassStats.of(axes[[0, 1]], torch.tensor([1, 2]), 3)
    B = others.V.sum(0)
    turned = own.rotated(align(own, others, means=0, away=B))
    torch.testing.assert_close(turned.V[0], torch.outer(axes[2], axes[2]), rtol=0, atol=1e-9)
    assert float((turned.V[0] * B).sum()) < 1e-9 < float((own.V[0] * B).sum())


def test_a_fit_needs_labels_unless_it_is_told_the_classes():
    with pytest.raises(InputError, match=r"y must hold labels to fit on; it is empty\. Give at least one sample"):
        SubspaceJudge().fit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    fitted = SubspaceJudge().fit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), num_classes=2)
    assert bool((fitted.residuals(torch.eye(3)) == torch.inf).all())


@given(energy=st.floats(0.01, 1), seed=st.integers(0, 2**16), d=st.integers(1, 9))
def test_the_fewest_directions_hold_the_energy_and_one_less_does_not(energy, seed, d):
    values = torch.rand(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).sort(descending=True)[0]
    r = int(directions_holding(energy, values, slack=0))
    assert 1 <= r <= d
    part = values.cumsum(0) / values.sum()
    assert r == d or float(part[r - 1]) >= energy - 1e-12
    assert r == 1 or float(part[r - 2]) < energy + 1e-12
    assert int(SubspaceRule(energy, most=2).ranks(values)) == min(2, int(directions_holding(energy, values)))


def test_classes_and_nodes_without_samples_have_no_proportion():
    """An empty node has proportions 0, an empty mesh no gap; nothing is divided by zero."""
    counts = torch.tensor([[4, 4], [0, 0]])
    assert proportion_gaps(counts).tolist() == [[0, 0], [-0.5, -0.5]]
    assert Proportions.of(torch.zeros(2, 3)).exact
    assert balanced_counts(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).tolist() == [[0, 0], [3, 0]]
    nothing = no_samples(3, 2, torch.float64)
    assert float(rate_reduction(nothing).reduction) == 0
    assert not bool(nothing.balanced().held.any())
