"""Algorithm 1 with weights shared inside an architecture: the mean of D-SGD, and Algorithm 1 where nobody is alike."""

import pytest
import torch

from ratemesh.encoders.networks import Mlp
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan
from ratemesh.graph.topology import of_edges
from ratemesh.methods.alg1 import Alg1
from ratemesh.methods.alg1_weights import Alg1Weights, Alg1WeightsProgram
from ratemesh.training.averaging import Scope, mixable
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node
from test_method_contract import LINE, assert_same, nodes, play, states

KINDS = ("a", "b", "a")


def changed(node: Node, **changes: object) -> Node:
    return Node(**{**vars(node), **changes})


def weights(program: Alg1WeightsProgram) -> torch.Tensor:
    return torch.cat([value.flatten() for value in mixable(program.learner.modules).values()])


@pytest.mark.parametrize("cross_entropy", [0.0, 1.0])
def test_a_round_without_training_multiplies_by_the_metropolis_matrix(cross_entropy: float) -> None:
    spec = Alg1Weights(cross_entropy=cross_entropy, warm_start={"epochs": 0})
    programs = [spec.program(changed(node, local=LocalSpec(epochs=0))) for node in nodes(LINE)]
    before = torch.stack([weights(program) for program in programs])
    play(programs, 1)
    W = torch.tensor([[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])
    torch.testing.assert_close(torch.stack([weights(program) for program in programs]), W @ before)


def test_where_no_two_networks_are_alike_it_is_algorithm_1() -> None:
    own = [changed(node, kinds=("a", "b", "c")) for node in nodes(LINE)]
    shared = [Alg1Weights(scope="group").program(node) for node in own]
    plain = [Alg1().program(node) for node in nodes(LINE)]
    for t in (1, 2, 3):
        assert str(play(shared, t)[0]) == str(play(plain, t)[0])
    assert_same(states(shared), states(plain))


def test_a_group_has_one_network_and_every_node_its_own_frame() -> None:
    spec = Alg1Weights(scope="group", coupling={"start": 2})
    programs = [spec.program(changed(node, kinds=KINDS)) for node in nodes(LINE)]
    for t in (1, 2, 3):
        play(programs, t)
    torch.testing.assert_close(weights(programs[0]), weights(programs[2]))
    assert not torch.allclose(weights(programs[0]), weights(programs[1]), atol=1e-2)
    X = programs[0].node.X
    for program in programs:
        program.encoder.eval()
    # One network in two frames: features differ by the two gauges and by nothing else.
    first, third = (program.encoder(X) @ program.encoder.gauge for program in (programs[0], programs[2]))
    torch.testing.assert_close(first, third, rtol=1e-4, atol=1e-5)


def test_statistics_are_of_the_averaged_network() -> None:
    programs = [Alg1Weights().program(node) for node in nodes(LINE)]
    play(programs, 1)
    for program in programs:
        told, now = program.stats, program.shard_stats(1)
        torch.testing.assert_close(told.V, now.V, rtol=1e-4, atol=1e-5)


def test_weights_of_another_network_are_refused_by_name() -> None:
    first, second, third = nodes(LINE)
    other = changed(second, encoder=Mlp(hidden=(13,)).build((8,), 6, 0, 1))
    with pytest.raises(RatemeshError, match=r"message of node \d was refused"):
        play([Alg1Weights().program(node) for node in (first, other, third)], 1)


def test_a_bad_message_is_refused_before_it_changes_anything() -> None:
    program = Alg1Weights().program(nodes(LINE)[0])
    before = states([program])
    message = {**mixable(program.learner.modules), "degree": torch.tensor(1, dtype=torch.int32)}
    program.read("weights", 1, message)
    name = next(iter(message))
    negative = torch.tensor(-1, dtype=torch.int32)
    for wrong in ({**message, name: message[name] * torch.nan}, {**message, "degree": negative}):
        with pytest.raises(RatemeshError, match="message of node 1 was refused"):
            program.read("weights", 1, wrong)
    with pytest.raises(RatemeshError, match="'gossip' is no message of this method"):
        program.read("gossip", 1, message)
    assert_same(before, states([program]))


def test_a_defence_that_leaves_weights_open_is_refused() -> None:
    settings = {"method": {"name": "alg1_weights", "robust": {"fold": "median"}}, "graph": {"nodes": 3}}
    with pytest.raises(InputError, match=r"method\.robust\.fold must be 'off' for method 'alg1_weights'; got 'median'"):
        Plan(make_config(settings)).check()


@pytest.mark.parametrize(("scope", "words"), [("edges", "over edges"), ("group", "by architecture")])
def test_its_name_says_who_shares(scope: Scope, words: str) -> None:
    assert Alg1Weights(scope=scope).label(LINE).endswith(f"weights averaged {words}")
    assert ("weights averaged" in Alg1Weights(scope=scope).label(of_edges(3, []))) == (scope == "group")
