"""Means of weights: identity for equals, whole numbers untouched; weights of smallest norm by quadratic programming."""

from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from ratemesh.errors import RatemeshError
from ratemesh.training.averaging import load_weights, min_norm_weights, read_weights, weighted_mean, weights_of

UnitRows = Callable[..., Tensor]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    net(torch.randn(5, 3, dtype=torch.float64))  # so that running statistics differ
    return net


def test_equals_average_to_themselves() -> None:
    own = weights_of(network(0))
    mean = weighted_mean([(0.2, own), (0.5, own), (0.3, own)])
    for name, value in own.items():
        torch.testing.assert_close(mean[name], value, rtol=1e-15, atol=1e-15)


def test_the_mean_is_the_weighted_sum_of_every_number() -> None:
    parts = [weights_of(network(seed)) for seed in range(3)]
    mean = weighted_mean(list(zip([0.5, 0.25, 0.25], parts, strict=True)))
    for name in parts[0]:
        stacked = torch.stack([part[name] for part in parts])
        torch.testing.assert_close(mean[name], torch.tensordot(torch.tensor([0.5, 0.25, 0.25]).double(), stacked, 1))


def test_counters_are_whole_numbers_and_stay_a_nodes_own() -> None:
    net = network(0)
    net(torch.randn(5, 3, dtype=torch.float64))
    assert "1.running_mean" in weights_of(net)
    assert not any(name.endswith("num_batches_tracked") for name in weights_of(net))
    load_weights(net, weights_of(network(1)))
    assert int(net[1].num_batches_tracked) == 2
    assert torch.equal(net[1].running_mean, network(1)[1].running_mean)


@pytest.mark.parametrize("damage", ["name", "shape", "number", "lack"])
def test_weights_of_another_network_are_refused(damage: str) -> None:
    own, least = weights_of(network(0)), {"samples": torch.tensor(1)}
    sent = {**own, "samples": torch.tensor(3)}
    read = read_weights(sent, 7, network(0), least)
    assert read.numbers == {"samples": 3}
    assert all(torch.equal(read.weights[name], value) for name, value in own.items())
    if damage == "name":
        sent["other"] = torch.zeros(1)
    elif damage == "lack":
        del sent["samples"]
    else:
        sent["0.bias"] = torch.zeros(3) if damage == "shape" else own["0.bias"] * torch.nan
    with pytest.raises(RatemeshError, match="message of node 7 was refused"):
        read_weights(sent, 7, network(0), least)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "d"), [(2, 5), (4, 3), (6, 20)])
def test_weights_of_smallest_norm_are_the_quadratic_programmes(unit_rows: UnitRows, n: int, d: int, seed: int) -> None:
    v = unit_rows(n, d, seed) + 0.4  # mostly agreeing, as updates do
    gram = v @ v.mT
    alpha = min_norm_weights(gram)
    assert float(alpha.sum()) == pytest.approx(1)
    assert float(alpha.min()) >= 0
    best = minimize(
        lambda a: a @ gram.numpy() @ a,
        [1 / n] * n,
        jac=lambda a: 2 * gram.numpy() @ a,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert float(alpha @ gram @ alpha) == pytest.approx(best.fun, abs=1e-6)
    serves = v @ (alpha @ v)
    assert float(serves.min()) >= float(alpha @ gram @ alpha) - 1e-6


def test_vectors_that_are_alike_weigh_the_same() -> None:
    gram = torch.full((4, 4), 0.2).double() + 0.8 * torch.eye(4).double()
    torch.testing.assert_close(min_norm_weights(gram), torch.full((4,), 0.25).double())
    assert float(min_norm_weights(torch.zeros(3, 3)).sum()) == pytest.approx(1)  # nobody moved
