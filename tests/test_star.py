"""A server on a star: where it may stand, who must begin alike, and that rounds are averages weighted by samples."""

import warnings
from typing import Any

import pytest
import torch

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, RatemeshError, RatemeshWarning
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan
from ratemesh.graph.topology import Star, of_edges
from ratemesh.methods.fedsimclr import FedSimClr, FedSimClrProgram
from ratemesh.training.averaging import weights_of
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node
from ratemesh.training.star import StarSpec, collapse
from test_method_contract import METHODS, nodes, play

STAR = Star(nodes=3).build(0)
FEDERATED = [name for name, cls in METHODS.items() if issubclass(cls, StarSpec)]
TABLE: dict[str, Any] = {
    "preset": "plain",
    "data": {"name": "digits"},
    "graph": {"name": "star", "nodes": 3},
    "method": {"name": "fedsimclr"},
    "local": {"augment": {"shift": 1}},
}


def still(node: Node, **changes: object) -> Node:
    """Return the node without local epochs, so that a round only averages."""
    return Node(**{**vars(node), "local": LocalSpec(epochs=0), **changes})


def weights(program: FedSimClrProgram) -> torch.Tensor:
    return torch.cat([value.flatten() for value in weights_of(program.model).values()])


def test_a_round_without_training_leaves_everyone_with_the_mean_by_samples() -> None:
    given = [still(node) for node in nodes(STAR)]
    given[2] = still(given[2], X=given[2].X[:5], y=given[2].y[:5])
    programs = [FedSimClr().program(node) for node in given]
    m = torch.tensor([float(len(node.y)) for node in given])
    expected = (m / m.sum()) @ torch.stack([weights(program) for program in programs])
    play(programs, 1)
    for program in programs:
        torch.testing.assert_close(weights(program), expected)
        assert torch.equal(weights(program), weights(programs[0]))


def test_traffic_is_two_models_a_client() -> None:
    """baselines: 2·|C|·(P_f + P_g + B) numbers, and here a count of samples a client."""
    spec = FedSimClr()
    given = nodes(STAR)
    programs = [spec.program(node) for node in given]
    network = given[0].encoder.network
    P_f = sum(p.numel() for p in network.parameters()) + 2 * 12  # and the buffers of its normalisation
    P_g = 6 * 24 + 2 * 24 + 2 * 24 + 24 * 6 + 6
    _, traffic = play(programs, 1)
    assert traffic.bytes.total() == 4 * (2 * 2 * (P_f + P_g) + 2)
    assert sum(map(spec.bytes_sent, given)) == traffic.bytes.total()


def test_nobody_sends_less_than_a_sample() -> None:
    programs = [FedSimClr().program(node) for node in nodes(STAR)]
    message = {**weights_of(programs[1].model), "samples": torch.tensor(0, dtype=torch.int32)}
    with pytest.raises(RatemeshError, match="message of node 1 was refused: 'samples' must be at least 1; got 0"):
        programs[0].read("weights", 1, message)


@pytest.mark.parametrize("name", FEDERATED)
def test_the_server_must_reach_everyone(name: str) -> None:
    line = of_edges(3, [(0, 1), (1, 2)])
    spec = METHODS[name](name=name)
    with pytest.raises(InputError, match=r"method\.server = 0 to all other nodes .* joined to 1 of 2\. Use"):
        spec.check(line, torch.ones(3, 2), LocalSpec())
    with pytest.raises(InputError, match=r"node 2 to method\.server = 0"):
        spec.program(nodes(line)[2])
    METHODS[name](name=name, server=1).check(line, torch.full((3, 2), 100), LocalSpec())


def test_nodes_of_one_model_begin_alike_and_others_do_not() -> None:
    def first(method: str) -> list[torch.Tensor]:
        plan = Plan(make_config({**TABLE, "method": {"name": method}}))
        return [next(plan.node(i).encoder.parameters()) for i in (0, 2)]

    assert torch.equal(*first("fedsimclr"))
    assert not torch.equal(*first("alg1"))


def test_one_model_has_one_architecture() -> None:
    two = {**TABLE, "encoders": [{"name": "mlp"}, {"name": "conv4"}]}
    with pytest.raises(InputError, match="encoders must be one architecture for method 'fedsimclr'"):
        Plan(make_config(two)).check()
    Plan(make_config({**TABLE, "encoders": [{"name": "mlp"}]})).check()


def test_views_that_are_all_the_same_are_warned_of() -> None:
    with pytest.warns(RatemeshWarning, match=r"local\.augment is off, and method 'fedsimclr'"):
        Plan(make_config({**TABLE, "local": {}})).check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Plan(make_config(TABLE)).check()


def test_a_collapse_shows() -> None:
    y = torch.arange(40) % 2
    draw = torch.Generator().manual_seed(0)
    spread = torch.nn.functional.normalize(torch.randn(40, 8, generator=draw, dtype=torch.float64), dim=1)
    point = spread[:1].expand(40, 8)
    plane = torch.nn.functional.normalize(torch.randn(40, 2, generator=draw).double() @ spread[:2], dim=1)
    healthy, collapsed, flat = (collapse(ClassStats.of(Z, y, 2)) for Z in (spread, point, plane))
    covariance = spread.T.cov(correction=0)
    assert healthy["spread"] == pytest.approx(float(covariance.trace().sqrt()))
    p = torch.linalg.eigvalsh(covariance) / covariance.trace()
    assert healthy["rank"] == pytest.approx(float((-(p * p.log()).sum()).exp()))
    assert collapsed["spread"] < 1e-6
    assert flat["rank"] < 2.01 < healthy["rank"]
