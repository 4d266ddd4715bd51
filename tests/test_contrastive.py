"""Losses of two views against double loops, and a target that follows exactly."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ratemesh.training.star import Projected, follow, head, nt_xent, regression_loss
from test_method_contract import LINE, nodes

UnitRows = Callable[..., Tensor]


def nt_xent_by_loops(u: Tensor, tau: float) -> float:
    rows, n = u.tolist(), len(u) // 2

    def similar(a: int, c: int) -> float:
        return math.exp(sum(x * y for x, y in zip(rows[a], rows[c], strict=True)) / tau)

    def of(a: int) -> float:
        others = sum(similar(a, c) for c in range(2 * n) if c != a)
        return -math.log(similar(a, (a + n) % (2 * n)) / others)

    return sum(map(of, range(2 * n))) / (2 * n)


@pytest.mark.parametrize(("n", "d", "tau"), [(1, 3, 0.5), (2, 4, 0.07), (7, 5, 0.2)])
def test_the_contrastive_loss_is_a_double_loop(unit_rows: UnitRows, n: int, d: int, tau: float) -> None:
    u = unit_rows(2 * n, d, seed=n)
    assert float(nt_xent(u, tau)) == pytest.approx(nt_xent_by_loops(u, tau), rel=1e-12, abs=1e-12)


def test_the_contrastive_loss_does_not_know_the_order_of_samples_or_views(unit_rows: UnitRows) -> None:
    u = unit_rows(12, 4)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    for other in (torch.cat([u[:6][order], u[6:][order]]), u.roll(6, 0)):
        torch.testing.assert_close(nt_xent(other, 0.1), nt_xent(u, 0.1))
    assert not torch.isclose(nt_xent(torch.cat([u[:6], u[6:][order]]), 0.1), nt_xent(u, 0.1))  # pairs do matter


def test_a_collapsed_batch_costs_the_logarithm_of_its_others(unit_rows: UnitRows) -> None:
    u = unit_rows(1, 5).expand(14, 5)
    assert float(nt_xent(u, 0.3)) == pytest.approx(math.log(13))


def test_the_regression_is_a_loop_over_crossed_views(unit_rows: UnitRows) -> None:
    predicted, target = 3 * unit_rows(8, 5, 1), 0.2 * unit_rows(8, 5, 2)  # length must not matter
    cosine = nn.functional.cosine_similarity
    expected = sum(
        (2 - 2 * cosine(predicted[i], target[4 + i], 0)) + (2 - 2 * cosine(predicted[4 + i], target[i], 0))
        for i in range(4)
    )
    torch.testing.assert_close(regression_loss(predicted, target), expected / 4)
    assert float(regression_loss(target.roll(4, 0), target)) == pytest.approx(0, abs=1e-12)


def test_no_gradient_reaches_the_target(unit_rows: UnitRows) -> None:
    predicted, target = (unit_rows(4, 3, seed).requires_grad_() for seed in (1, 2))
    grads = torch.autograd.grad(regression_loss(predicted, target), [predicted, target], allow_unused=True)
    assert float(grads[0].norm()) > 0
    assert grads[1] is None


def test_a_target_follows_exactly_and_keeps_its_own_buffers() -> None:
    slow, fast = (nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)).double() for _ in range(2))
    slow[0].weight.data.fill_(2.0)
    fast[0].weight.data.fill_(-1.0)
    fast[1].running_mean.fill_(9.0)
    for step in range(1, 4):
        follow(slow, fast, 0.9)
        assert slow[0].weight.item() == pytest.approx(-1 + 3 * 0.9**step, rel=1e-15)
    assert float(slow[1].running_mean) == 0
    assert fast[0].weight.item() == -1


def test_projections_have_unit_length() -> None:
    node = nodes(LINE)[0]
    u = Projected(node.encoder, head(6, 24, 5))(node.X)
    assert u.shape == (len(node.X), 5)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(len(u)))
