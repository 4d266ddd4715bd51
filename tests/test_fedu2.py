"""FedU²: a server that no node objects to, and projections that are kept uniform."""

import pytest
import torch

from ratemesh.methods.fedu2 import FedU2, harmony
from ratemesh.training.averaging import WeightsMessage, weights_of
from test_method_contract import nodes, play
from test_star import STAR, still

Models = list[dict[str, torch.Tensor]]


def models(count: int, seed: int = 0) -> tuple[Models, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)

    def one() -> dict[str, torch.Tensor]:
        return {name: torch.randn(shape, generator=draw).double() for name, shape in {"a": (4, 3), "b": (5,)}.items()}

    return [one() for _ in range(count)], one()


def test_exchangeable_nodes_weigh_the_same() -> None:
    start = {"a": torch.ones(4).double()}
    steps = 0.1 * torch.eye(4).double() + 0.05  # equal lengths, equal angles
    assert harmony([{"a": start["a"] + step} for step in steps], start) == pytest.approx([0.25] * 4)


def test_weights_are_on_the_simplex_and_no_node_objects() -> None:
    made, start = models(4)
    beta = harmony(made, start)
    assert sum(beta) == pytest.approx(1)
    assert min(beta) >= 0
    flat = torch.stack([torch.cat([(model[k] - start[k]).flatten() for k in start]) for model in made])
    step = torch.tensor(beta).double() @ flat  # where the server goes
    towards = flat / flat.norm(dim=1, keepdim=True) @ step
    assert float(towards.min()) > 0
    heard = torch.tensor(beta) > 1e-9
    torch.testing.assert_close(towards[heard], towards[heard][:1].expand(int(heard.sum())), rtol=1e-6, atol=1e-9)


def test_a_long_step_does_not_weigh_more() -> None:
    start = {"a": torch.zeros(2).double()}
    beta = harmony([{"a": torch.tensor([10.0, 0.0]).double()}, {"a": torch.tensor([0.0, 1.0]).double()}], start)
    assert beta == pytest.approx([1 / 11, 10 / 11])


def test_where_nobody_moved_parts_are_equal() -> None:
    _, start = models(0)
    assert harmony([start, start], start) == [0.5, 0.5]


def test_a_round_goes_to_the_weights_of_harmony_and_averages_statistics_by_samples() -> None:
    programs = [FedU2().program(still(node)) for node in nodes(STAR)]
    before = [weights_of(program.model) for program in programs]
    names = [name for name, _ in programs[0].model.named_parameters()]
    elsewhere = {name: value + 0.3 for name, value in before[0].items()}
    programs[0].start = elsewhere
    parts = {i: WeightsMessage(weights, {"samples": 20}) for i, weights in enumerate(before)}
    combined = programs[0].combine(parts)
    beta = harmony([{name: weights[name] for name in names} for weights in before], elsewhere)
    for name, value in combined.items():
        by = beta if name in names else [1 / 3] * 3
        torch.testing.assert_close(value, sum(b * w[name] for b, w in zip(by, before, strict=True)))


@pytest.mark.parametrize("uniformity", ["sliced", "transport"])
def test_both_distances_train_and_are_logged(uniformity: str) -> None:
    programs = [FedU2(uniformity=uniformity).program(node) for node in nodes(STAR)]
    logs, _ = play(programs, 1)
    assert all(log["uniformity"] > 0 for log in logs)
    plain = [FedU2(uniformity=uniformity, weight=0.0).program(node) for node in nodes(STAR)]
    play(plain, 1)
    assert not torch.equal(next(programs[0].model.parameters()), next(plain[0].model.parameters()))
