"""Small ε² in float32: computed in float64 where features allow, refused where statistics are already rounded."""

import pytest
import torch

from ratemesh.core.checks import working_precision
from ratemesh.core.consensus import consensus_loss, mcr2_loss
from ratemesh.core.lagrangian import RunningStats
from ratemesh.core.rates import coding_rate, rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError


def value_and_gradient(loss, Z):
    Z = Z.clone().requires_grad_()
    value = loss(Z)
    return value.detach(), torch.autograd.grad(value, Z)[0]


def collapsed(unit_rows, rows, d, dtype):
    """Return features whose classes are points, exactly, and labels."""
    y = torch.arange(rows) % 4
    return unit_rows(4, d, 5).to(dtype)[y], y


@pytest.mark.parametrize("rows", [40, 400], ids=["gram", "dense"])
@pytest.mark.parametrize("eps2", [1e-3, 1e-4, 1e-5, 1e-6])
def test_collapsed_classes_and_small_eps2_have_the_loss_and_gradient_of_float64(unit_rows, rows, eps2):
    """In float32 alone d/ε² drowns the ones of I + (d/ε²)V: wrong values, NaN, or gradients wrong by a multiple."""
    Z, y = collapsed(unit_rows, rows, 64, torch.float32)
    nothing = torch.zeros(4, 64, 64)
    expected, wide = value_and_gradient(lambda X: mcr2_loss(X, y, 4, eps2), Z.double())
    for loss in (
        lambda X: mcr2_loss(X, y, 4, eps2),
        lambda X: consensus_loss(X, y, Y=nothing, T_bar=nothing, n=0, gamma=1.0, eps2=eps2).total,
    ):
        value, gradient = value_and_gradient(loss, Z)
        assert (value.dtype, gradient.dtype) == (torch.float32, torch.float32)
        assert value.item() == pytest.approx(expected.item(), rel=1e-6)
        along = gradient.double() - (gradient * Z).sum(1, keepdim=True) * Z
        wide_along = wide - (wide * Z).sum(1, keepdim=True) * Z
        assert (along - wide_along).norm() < 1e-4 * wide.norm()


def test_the_precision_is_that_of_the_features_at_the_papers_eps2():
    assert working_precision(torch.float32, 128, 0.5) == torch.float32
    assert working_precision(torch.float16, 128, 0.5) == torch.float32
    assert working_precision(torch.float32, 4000, 0.5) == torch.float32
    assert working_precision(torch.float32, 128, 0.01) == torch.float64
    assert working_precision(torch.float64, 128, 1e-6) == torch.float64


def test_running_statistics_that_cannot_hold_so_small_an_eps2_are_refused(unit_rows):
    Z, y = collapsed(unit_rows, 40, 64, torch.float32)
    options = {"Y": torch.zeros(4, 64, 64), "T_bar": torch.zeros(4, 64, 64), "n": 0, "gamma": 1.0}
    running = RunningStats(ClassStats.of(Z, y, 4))
    with pytest.raises(
        InputError, match=r"eps2 must be at least 7\.6e-05 for second moments of torch\.float32 with d = 64"
    ):
        consensus_loss(Z, y, **options, eps2=1e-5, running=running)
    value = consensus_loss(Z, y, **options, eps2=1e-3, running=running).total
    assert value.item() == pytest.approx(mcr2_loss(Z.double(), y, 4, 1e-3).item(), rel=1e-3)


def test_rates_of_rounded_statistics_are_right_or_refused(unit_rows):
    Z, y = collapsed(unit_rows, 400, 64, torch.float32)
    for eps2 in (0.5, 1e-2, 1e-3, 1e-4):
        exact = rate_reduction(ClassStats.of(Z.double(), y, 4, unit=False), eps2).reduction.item()
        assert rate_reduction(ClassStats.of(Z, y, 4), eps2).reduction.item() == pytest.approx(exact, rel=0.02)
    with pytest.raises(
        InputError, match=r"got 1e-05\. Their rounding would decide the rates\. Raise eps2, lower d, or"
    ):
        rate_reduction(ClassStats.of(Z, y, 4), 1e-5)
    assert coding_rate(torch.eye(64).double() / 64, 1e-5).isfinite()
    with pytest.raises(InputError, match=r"second moments of torch\.float64 with d = 64"):
        mcr2_loss(Z.double(), y, 4, 1e-14)
