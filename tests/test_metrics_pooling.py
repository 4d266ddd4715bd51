"""What is measured together decides what is seen: nodes in consensus on V may cancel in each other's means."""

import pytest
import torch
from torch.nn.functional import normalize

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import Measured, varies
from toy_stats import class_mean_cosine, iidr, wccr

K, N, R, D = 10, 10, 12, 128


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def structured(seed, n_k=200, lean=0.3):
    """Return features of K orthogonal R-dimensional classes whose samples lean to one side of their subspace."""
    inside = normal(K, n_k, R, seed=seed) + lean
    axes = torch.eye(D, dtype=torch.float64)[: K * R].view(K, R, D)
    return normalize(inside @ axes, dim=-1).reshape(-1, D), torch.arange(K).repeat_interleave(n_k)


def signs(seed):
    return normal(K, seed=seed).sign()


def test_signs_that_v_cannot_see_cancel_class_means_in_the_pooled_features():
    """§8.4 of the notes: one node 0.92/0.43, as the paper's centralised row; pooled 0.99/0.1, as Algorithm 1's."""
    nodes = [structured(seed) for seed in range(N)]
    turned = [(signs(100 + i)[y][:, None] * Z, y) for i, (Z, y) in enumerate(nodes)]
    for (Z, y), (Z_turned, _) in zip(nodes, turned, strict=True):
        assert torch.allclose(ClassStats.of(Z, y, K).V, ClassStats.of(Z_turned, y, K).V, atol=1e-15)
    (Z, y), (Z_turned, _) = zip(*nodes, strict=True), zip(*turned, strict=True)

    alone = wccr(Z, y, per_node=True).value, iidr(Z, y, per_node=True).value
    assert alone == pytest.approx((0.923, 0.43), abs=0.02)
    assert (wccr(Z_turned, y, per_node=True).value, iidr(Z_turned, y, per_node=True).value) == pytest.approx(
        alone, rel=0.01
    )

    # Without signs pooling changes nothing; with them (1 − WCCR) shrinks by about N.
    assert (1 - wccr(Z, y).value) / (1 - alone[0]) == pytest.approx(1, abs=0.1)
    assert 5 < (1 - alone[0]) / (1 - wccr(Z_turned, y).value) < 20
    assert 0.07 < iidr(Z_turned, y).value < 0.2


def test_opposite_nodes_cancel_exactly():
    Z, y = structured(0)
    both = torch.stack([Z, -Z])
    assert wccr(both, y).value == pytest.approx(1, rel=1e-12)
    assert iidr(both, y).value == pytest.approx(0, abs=1e-12)
    assert class_mean_cosine(both, y).noise == tuple(range(K))
    assert wccr(both, y, per_node=True).value == pytest.approx(wccr(Z, y).value, rel=1e-12)
    assert class_mean_cosine(Z, y).noise == class_mean_cosine(-Z, y).noise == ()


def test_both_ways_are_what_they_say():
    Z, y = normal(3, 8, 5), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    for metric in (wccr, iidr):
        assert metric(Z, y).value == pytest.approx(metric(Z.reshape(-1, 5), y.repeat(3)).value, rel=1e-12)
        alone = [metric(part, y) for part in Z]
        each = metric(Z, y, per_node=True)
        assert each.value == pytest.approx(sum(m.value for m in alone) / 3, rel=1e-12)
        assert each.floor == pytest.approx(alone[0].floor, rel=1e-12)
        assert (each.n, each.skipped) == (8, ())
        assert metric(Z, y).n == 24
    assert class_mean_cosine(Z, y) == class_mean_cosine(Z.reshape(-1, 5), y.repeat(3))


def test_nodes_may_hold_different_numbers_of_samples_and_different_classes():
    Z = [normal(4, 3, seed=0), normal(6, 3, seed=1)]
    y = [torch.tensor([0, 0, 2, 2]), torch.tensor([0, 1, 1, 2, 2, 2])]
    each = wccr(Z, y, per_node=True)
    assert each.n == 5
    assert each.value == pytest.approx((wccr(Z[0], y[0]).value + wccr(Z[1], y[1]).value) / 2)
    assert wccr(Z, y).value == pytest.approx(wccr(torch.cat(Z), torch.cat(y)).value, rel=1e-12)
    assert class_mean_cosine(Z, y) == class_mean_cosine(torch.cat(Z), torch.cat(y))


def test_nodes_that_cannot_be_measured_are_named():
    Z = [normal(4, 3, seed=i) for i in range(4)]
    y = [torch.tensor(labels) for labels in ([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1])]
    Z.append(torch.ones(4, 3, dtype=torch.float64) / 3)
    y.append(y[0])
    each = wccr(Z, y, per_node=True)
    assert each.skipped == (1, 2, 4)  # one class, one sample a class, features all the same
    assert each.value == pytest.approx((wccr(Z[0], y[0]).value + wccr(Z[3], y[3]).value) / 2)
    with pytest.raises(InputError, match="at the first node"):
        iidr(Z[1:3], y[1:3], per_node=True)


def test_means_of_measurements():
    parts = [Measured(1.0, 0.5, 4), Measured(2.0, 1.0, 8)]
    assert Measured.mean(parts, [3]) == Measured(1.5, 0.75, 6, (3,))


@pytest.mark.parametrize(
    ("Z", "y", "words"),
    [
        ([torch.eye(2)] * 2, [torch.tensor([0, 1]), torch.tensor([])], "it is empty at one"),
        (torch.eye(2), torch.tensor([0.0, 1.0]), "y must hold integers"),
        ([torch.tensor([1.0, 2.0])], torch.tensor([0, 1]), r"Z must have shape \(m, d\)"),
    ],
)
def test_what_cannot_be_pooled_is_said(Z, y, words):
    for metric in (wccr, iidr, class_mean_cosine):
        with pytest.raises(InputError, match=words):
            metric(Z, y)


def test_rounding_is_not_variation():
    row = normal(1, 7) / 3
    assert not varies(row.repeat(11, 1))
    assert varies(torch.cat([row.repeat(11, 1), row * (1 + 1e-9)]))
