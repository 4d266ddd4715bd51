"""Transport against independent formulations: convex programming for plans, loops for distances, marginals."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from ratemesh.errors import RatemeshError
from ratemesh.methods.fedu2 import log_map, sliced_uniformity, transport_uniformity, unbalanced_plan
from ratemesh.methods.orchestra import sinkhorn
from ratemesh.training.star import sphere

UnitRows = Callable[..., Tensor]


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_clusters_come_out_equal_in_size(unit_rows: UnitRows) -> None:
    P = sinkhorn(unit_rows(40, 6, 1) @ unit_rows(5, 6, 2).mT, steps=300, tolerance=0)
    torch.testing.assert_close(P.sum(1), torch.ones(40).double())
    torch.testing.assert_close(P.sum(0), torch.full((5,), 8.0).double())
    assert float(P.min()) >= 0


def test_assignments_are_a_scaling_of_the_kernel(unit_rows: UnitRows) -> None:
    """Only rows and columns may be scaled: log P − λS must be a sum of a row's and a column's number."""
    S = unit_rows(9, 4, 1) @ unit_rows(3, 4, 2).mT
    rest = sinkhorn(S, sharpness=7.0, steps=500, tolerance=0).log() - 7 * S
    mixed = rest - rest.mean(0) - rest.mean(1, keepdim=True) + rest.mean()
    torch.testing.assert_close(mixed, torch.zeros_like(mixed), atol=1e-9, rtol=0)


def objective(plan: np.ndarray, C: np.ndarray, tau: float) -> float:
    def divergence(p: np.ndarray) -> float:
        q = 1 / len(p)
        return float((p * np.log(p / q) - p + q).sum())

    return float((plan * C).sum()) + tau * (divergence(plan.sum(1)) + divergence(plan.sum(0)))


@pytest.mark.parametrize("tau", [0.3, 1.5])
def test_the_unbalanced_plan_is_the_convex_programmes(unit_rows: UnitRows, tau: float) -> None:
    C = torch.cdist(unit_rows(3, 4, 1), unit_rows(4, 4, 2)).square()
    plan = unbalanced_plan(C, tau, steps=4000)
    best = minimize(
        lambda x: objective(np.exp(x).reshape(3, 4), C.numpy(), tau), np.full(12, -3.0), options={"gtol": 1e-10}
    )
    assert objective(plan.numpy(), C.numpy(), tau) == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose(plan.numpy(), np.exp(best.x).reshape(3, 4), atol=1e-4)


def test_a_plan_never_gets_worse_by_more_steps(unit_rows: UnitRows) -> None:
    C = torch.cdist(unit_rows(8, 5, 1), unit_rows(8, 5, 2)).square()
    values = [objective(unbalanced_plan(C, 1.0, steps=n).numpy(), C.numpy(), 1.0) for n in range(12)]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))


def test_mass_is_moved_at_the_usual_price_and_silence_is_refused() -> None:
    u = sphere(64, 128, draw(3))
    C = torch.cdist(u, sphere(64, 128, draw(4))).square()
    assert 0.5 < float(unbalanced_plan(C, float(C.mean())).sum()) < 0.8
    with pytest.raises(RatemeshError, match=r"method\.price must be high enough .* Raise it"):
        transport_uniformity(u, draw(), scale=0.02)


def three_batches(d: int, n: int = 128) -> list[Tensor]:
    """Uniform on the sphere, uniform in 8 dimensions of it, and all at one point."""
    flat = torch.zeros(n, d)
    flat[:, :8] = sphere(n, 8, draw(6))
    return [sphere(n, d, draw(5)), flat, sphere(1, d, draw(7)).expand(n, d)]


@pytest.mark.parametrize(("distance", "d"), [(sliced_uniformity, 256), (transport_uniformity, 16)])
def test_less_uniform_is_farther_from_uniform(distance: Callable[..., Tensor], d: int) -> None:
    uniform, flat, point = (float(distance(u, draw(1))) for u in three_batches(d))
    assert uniform < flat < point
    assert uniform < 0.8 * point


def test_a_sliced_distance_has_the_values_that_theory_gives() -> None:
    uniform, flat, point = (float(sliced_uniformity(u, draw(1), directions=64)) for u in three_batches(256))
    assert uniform < 0.2 < flat < point  # the floor of sampling
    assert point == pytest.approx(math.pi**2 / 2, rel=0.15)  # two quarter circles, squared and independent


def test_a_sliced_distance_is_a_loop(unit_rows: UnitRows) -> None:
    u = unit_rows(7, 5, 3)
    found = float(sliced_uniformity(u, draw(9), points=2, directions=3))
    same = draw(9)
    s, p = sphere(7, 5, same).double(), sphere(2, 5, same).double()
    theta = torch.randn(2, 5, 3, generator=same).double()

    def slice_(x: Tensor, m: int, direction: int) -> list[float]:
        tangents = []
        for row in x:
            c = float(row @ p[m])
            away = row - c * p[m]
            tangents.append(math.acos(c) * away / away.norm())
        return sorted(float(v @ theta[m, :, direction]) for v in tangents)

    terms = [
        (a - b) ** 2 for m in range(2) for k in range(3) for a, b in zip(slice_(u, m, k), slice_(s, m, k), strict=True)
    ]
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-9)


def test_tangents_are_as_long_as_the_angle_and_have_finite_slopes(unit_rows: UnitRows) -> None:
    p, x = unit_rows(3, 4, 1), unit_rows(5, 4, 2).requires_grad_()
    v = log_map(p, x)
    torch.testing.assert_close(v.norm(dim=-1), (p @ x.mT).arccos())
    torch.testing.assert_close((v * p[:, None]).sum(-1), torch.zeros(3, 5).double())
    at_the_point = log_map(x.detach(), x)
    (slope,) = torch.autograd.grad(at_the_point.sum(), x)
    assert bool(torch.isfinite(slope).all())
