"""Connecting encoders by their statistics: known maps are found, the climb never falls, nobody is left out silently."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.connect import Frames, connect, join, padded
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError

K, P = 3, 10


def samples(d: int, seed: int = 0, each: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Features (m, d) in float64 about class means of their own, labels, and a sketch of what varies in them."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(K * each) % K
    spread = torch.linspace(0.2, 1.0, d, dtype=torch.float64)
    centre = 2 * torch.randn(K, d, generator=draw, dtype=torch.float64)
    Z = normalize(centre[y] + spread * torch.randn(len(y), d, generator=draw, dtype=torch.float64), dim=1)
    H = torch.tanh(Z @ torch.randn(d, P, generator=draw, dtype=torch.float64))
    return Z, y, H


def turn(d: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64))[0]


def test_maps_of_turned_features_are_found_exactly() -> None:
    Z, y, H = samples(8)
    turns = [turn(8, seed) for seed in range(3)]
    maps = connect([ClassStats.of(Z @ R.T, y, K, H=H) for R in turns], tol=1e-15).maps
    common = [Z @ R.T @ W.T for R, W in zip(turns, maps, strict=True)]
    for other in common[1:]:
        torch.testing.assert_close(other, common[0], atol=1e-6, rtol=0)


def test_a_narrow_encoder_gets_orthonormal_columns_and_falls_on_the_wide_one() -> None:
    Z, y, H = samples(5)
    wide = torch.nn.functional.pad(Z, (0, 3)) @ turn(8, 1).T  # the same features inside eight dimensions
    maps = connect([ClassStats.of(Z, y, K, H=H), ClassStats.of(wide, y, K, H=H)], tol=1e-15).maps
    assert [tuple(W.shape) for W in maps] == [(8, 5), (8, 8)]
    torch.testing.assert_close(maps[0].T @ maps[0], torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(Z @ maps[0].T, wide @ maps[1].T, atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), sketched=st.booleans())
def test_the_climb_never_falls_and_is_the_energy_of_the_pool(seed: int, sketched: bool) -> None:
    sites = []
    for i in range(3):
        Z, y, H = samples(6, seed + i, each=10 + 5 * i)
        sites.append(ClassStats.of(Z, y, K, H=H if sketched else None))
    found = connect(sites, sweeps=8, tol=0.0)
    steps = torch.tensor(found.objective, dtype=torch.float64)
    assert bool((steps.diff() >= -1e-9 * steps[-1]).all())
    if not sketched:  # F = ½Σ‖V‖² + ½Σ‖μ‖² of the pooled statistics
        pool = ClassStats.sum(site.rotated(W) for site, W in zip(sites, found.maps, strict=True))
        torch.testing.assert_close((pool.V.square().sum() + pool.mu.square().sum()).item() / 2, steps[-1].item())


def test_a_turn_follows_half_the_gradient_of_the_objective() -> None:
    sites = []
    for i in range(2):
        Z, y, H = samples(4, i)
        sites.append(ClassStats.of(Z, y, K, H=H))
    Q = torch.eye(4, dtype=torch.float64, requires_grad=True)
    frames = Frames(sites, 1.0, 10.0)
    V = frames.V[0] + Q @ frames.V[1] @ Q.mT
    F = frames.F[0] + Q @ frames.F[1]
    ((V.square().sum() + F.square().sum()) / 2).backward()
    assert Q.grad is not None
    # ∇ at the identity, less what no orthogonal Q changes (site 1 with itself).
    alone = 2 * (frames.V[1] @ frames.V[1]).sum(0) + (frames.F[1] @ frames.F[1].mT).sum(0)
    U, _, Wh = torch.linalg.svd(Q.grad - alone)
    torch.testing.assert_close(frames.turn(1), U @ Wh)


def test_who_joins_finds_the_place_of_one_who_was_there() -> None:
    Z, y, H = samples(8)
    here, new = ClassStats.of(Z, y, K, H=H), ClassStats.of(Z @ turn(8, 3).T, y, K, H=H)
    W = join(new, here)
    torch.testing.assert_close(Z @ turn(8, 3).T @ W.T, Z, atol=1e-3, rtol=0)
    wider = ClassStats.of(torch.nn.functional.pad(Z, (0, 2)) @ turn(10, 4).T, y, K, H=H)
    assert join(wider, here).shape == (10, 10)


def test_padding_appends_zeros() -> None:
    Z, y, H = samples(4)
    wide, same = padded(ClassStats.of(Z, y, K, H=H), 6), ClassStats.of(torch.nn.functional.pad(Z, (0, 2)), y, K, H=H)
    for key, value in wide.tensors().items():
        torch.testing.assert_close(value, same.tensors()[key])


def test_a_chain_of_shared_classes_is_enough() -> None:
    Z, y, H = samples(8, each=60)
    turns = [turn(8, seed) for seed in range(3)]
    held = [y < 2, y > 0, y > 1]  # the first and the last share nothing
    sites = [ClassStats.of(Z[k] @ R.T, y[k], K, H=H[k]) for k, R in zip(held, turns, strict=True)]
    maps = connect(sites, tol=1e-12).maps
    middle = Z @ turns[1].T @ maps[1].T
    assert float((Z @ turns[0].T @ maps[0].T - middle)[y < 2].norm(dim=1).mean()) < 0.05


def test_input_that_cannot_be_connected_is_refused_by_name() -> None:
    Z, y, H = samples(4)
    whole = ClassStats.of(Z, y, K, H=H)
    apart = [ClassStats.of(Z[y == k], y[y == k], K) for k in range(2)]
    with pytest.raises(InputError, match="at least two"):
        connect([whole])
    with pytest.raises(InputError, match="b share none with a"):
        connect(apart, names=["a", "b"])
    with pytest.raises(InputError, match="one number of classes"):
        connect([whole, ClassStats.of(Z, y, K + 1)])
    with pytest.raises(InputError, match="one sketch dimension p"):
        connect([whole, ClassStats.of(Z, y, K, H=H[:, :2])])
    with pytest.raises(InputError, match="one precision"):
        connect([whole, ClassStats.of(Z.float(), y, K)])
