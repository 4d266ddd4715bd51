"""Orthogonalised momentum: against singular value decompositions, and by what it may not depend on."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.training.local import LocalSpec
from ratemesh.training.optimizers import MUON_LR, VECTORS, Muon, Name, make_optimizers, orthogonalised


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_singular_vectors_stay_and_singular_values_come_near_one(rows: int, columns: int, seed: int) -> None:
    U, _, Wh = torch.linalg.svd(random(rows, columns, seed=seed), full_matrices=False)
    values = torch.logspace(0, -1.5, min(rows, columns), dtype=torch.float64)
    found = U.mT @ orthogonalised(U @ values.diag() @ Wh, 5) @ Wh.mT
    assert torch.allclose(found, found.diagonal().diag(), atol=1e-10)
    assert 0.5 < float(found.diagonal().min()) <= float(found.diagonal().max()) < 1.25


@given(st.floats(1e-6, 1e6))
def test_the_length_of_the_gradient_does_not_matter(scale: float) -> None:
    G = random(5, 9)
    assert torch.allclose(orthogonalised(scale * G), orthogonalised(G), atol=1e-9)


def test_no_gradient_is_no_step() -> None:
    assert bool((orthogonalised(torch.zeros(3, 4)) == 0).all())


def step(weight: torch.Tensor, gradients: list[torch.Tensor], **how: float) -> torch.Tensor:
    weight = nn.Parameter(weight.clone())
    optimizer = Muon([weight], 0.1, **how)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def test_steps_follow_the_formula() -> None:
    W, G1, G2 = random(6, 3), random(6, 3, seed=1), random(6, 3, seed=2)
    after = step(W, [G1, G2], weight_decay=0.0)
    m1 = 0.05 * G1
    m2 = 0.95 * m1 + 0.05 * G2
    length = 0.1 * 2**0.5  # twice as many rows as columns
    first = W - length * orthogonalised(0.05 * G1 + 0.95 * m1)
    assert torch.allclose(after, first - length * orthogonalised(0.05 * G2 + 0.95 * m2))
    decayed = step(W, [G1], weight_decay=0.5)
    assert torch.allclose(decayed, step(W, [G1 + 0.5 * W]))


def test_a_kernel_is_a_matrix_of_its_outputs() -> None:
    W, G = random(4, 2, 3, 3), random(4, 2, 3, 3, seed=1)
    assert torch.equal(step(W, [G]), step(W.flatten(1), [G.flatten(1)]).reshape(W.shape))


def test_matrices_and_vectors_are_told_apart() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    made = make_optimizers(net, "muon", 0.02, 0.0)
    assert [[w.ndim for w in made[name].param_groups[0]["params"]] for name in made] == [[4, 2], [1, 1, 1, 1]]
    assert [made[name].param_groups[0]["lr"] for name in made] == [0.02, pytest.approx(VECTORS * 0.02)]
    assert list(make_optimizers(net, "adam", 0.02, 0.0)) == ["optimizer"]
    assert list(make_optimizers(net, "sgd", 0.02, 0.0)) == ["optimizer"]
    assert list(make_optimizers(nn.Linear(2, 2, bias=False), "muon", 0.02, 0.0)) == ["muon"]


@pytest.mark.parametrize(
    ("given", "lr"), [({}, 1e-3), ({"optimizer": "muon"}, MUON_LR), ({"optimizer": "muon", "lr": 0.3}, 0.3)]
)
def test_every_optimizer_has_its_own_usual_rate(given: dict[str, object], lr: float) -> None:
    assert LocalSpec(**given).lr == make_config({"preset": "plain", "local": given}).local.lr == lr


def test_another_optimizer_than_the_recipe_s_has_its_own_rate() -> None:
    assert make_config({}).local.lr == MUON_LR
    assert make_config({"local": {"optimizer": "adam"}}).local.lr == 1e-3


def test_a_typing_error_names_the_choices() -> None:
    *others, last = (f"'{name}'" for name in get_args(Name))
    with pytest.raises(InputError, match=rf"local\.optimizer: .*{', '.join(others)} or {last}; got 'lion'"):
        make_config({"local": {"optimizer": "lion"}})
