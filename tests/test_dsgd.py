"""D-SGD: Metropolis averaging against a matrix product, by architecture, and a classifier that learns."""

import pytest
import torch

from ratemesh.encoders.networks import Mlp
from ratemesh.errors import RatemeshError
from ratemesh.graph.topology import of_edges
from ratemesh.methods.dsgd import DSgd, DSgdProgram
from ratemesh.training.averaging import Scope, alike, weights_of
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node
from test_method_contract import LINE, nodes, play


def still(node: Node, **changes: object) -> Node:
    """Return the node without local epochs, so that a round only averages."""
    return Node(**{**vars(node), "local": LocalSpec(epochs=0), **changes})


def weights(program: DSgdProgram) -> torch.Tensor:
    return torch.cat([value.flatten() for value in weights_of(program.classifier).values()])


def test_a_round_without_training_multiplies_by_the_metropolis_matrix() -> None:
    programs = [DSgd().program(still(node)) for node in nodes(LINE)]
    before = torch.stack([weights(program) for program in programs])
    play(programs, 1)
    W = torch.tensor([[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])
    torch.testing.assert_close(torch.stack([weights(program) for program in programs]), W @ before)


def test_rounds_without_training_end_in_the_mean_of_all() -> None:
    programs = [DSgd().program(still(node)) for node in nodes(LINE)]
    mean = torch.stack([weights(program) for program in programs]).mean(0)
    for t in range(1, 60):
        play(programs, t)
    for program in programs:
        torch.testing.assert_close(weights(program), mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scope", "expected"), [("edges", [(), (), ()]), ("group", [(2,), (), (0,)])])
def test_only_equal_architectures_are_averaged(scope: Scope, expected: list[tuple[int, ...]]) -> None:
    kinds = ("a", "b", "a")
    assert [alike(still(node, kinds=kinds), scope) for node in nodes(LINE)] == expected


def test_weights_of_another_network_are_refused_by_name() -> None:
    given = nodes(of_edges(2, [(0, 1)]))
    other = still(given[1], encoder=Mlp(hidden=(13,)).build((8,), 6, 0, 1))
    with pytest.raises(RatemeshError, match=r"message of node \d was refused"):
        play([DSgd().program(still(given[0])), DSgd().program(other)], 1)


def test_the_classifier_learns_its_shard() -> None:
    quick = LocalSpec(epochs=1, batch_size=8, lr=0.02)
    programs = [DSgd().program(still(node, local=quick)) for node in nodes(LINE)]
    first, _ = play(programs, 1)
    for t in range(2, 60):
        last, _ = play(programs, t)
    assert all(b["total"] < 0.5 * a["total"] for a, b in zip(first, last, strict=True))
    assert all(log["train_accuracy"] > 0.9 for log in last)


def test_the_head_starts_undecided() -> None:
    node = nodes(LINE)[0]
    loss, _ = Classifier(node.encoder, 3).fit(node.X, node.y)
    assert loss == pytest.approx(torch.tensor(3.0).log().item())
