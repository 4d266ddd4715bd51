"""Orchestra: clusters found together, a memory that forgets the oldest, and turns that are told."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ratemesh.encoders.networks import Conv4
from ratemesh.errors import InputError, RatemeshError
from ratemesh.graph.topology import Star, of_edges
from ratemesh.methods.orchestra import Orchestra, OrchestraProgram, global_centres, local_centres, turned
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node
from test_method_contract import nodes, play
from test_star import STAR, still

UnitRows = Callable[..., Tensor]
SMALL = {"local_clusters": 4, "global_clusters": 3, "rotations": 0, "steps": 20}


def image_node(batch: int = 8, memory: int = 12) -> OrchestraProgram:
    draw = torch.Generator().manual_seed(0)
    node = Node(
        index=0,
        neighbours=(),
        X=torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8, generator=draw),
        y=torch.arange(24) % 2,
        num_classes=2,
        share=1.0,
        encoder=Conv4(width=0.05).build((1, 8, 8), 6, 0),
        local=LocalSpec(epochs=1, batch_size=batch, augment={"shift": 1}),
        seed=0,
    )
    return Orchestra(local_clusters=4, global_clusters=3, memory=memory).program(node)


def test_turns_are_exact_quarters() -> None:
    X = torch.arange(2 * 9.0).reshape(2, 1, 3, 3)
    out = turned(X, torch.tensor([1, 2]))
    assert out[0, 0].tolist() == [[2, 5, 8], [1, 4, 7], [0, 3, 6]]
    assert torch.equal(out[1], X[1].flip(-1, -2))
    assert torch.equal(turned(turned(X, torch.tensor([1, 3])), torch.tensor([3, 1])), X)


def test_before_training_nothing_but_the_memory_is_made() -> None:
    """The published round 0: weights, running statistics and target are those of a node that never clustered."""
    encoder, fresh = (Conv4(width=0.05).build((1, 8, 8), 6, 0) for _ in range(2))
    program = image_node()
    fresh.eval()
    for name, value in fresh.state_dict().items():
        assert torch.equal(program.encoder.state_dict()[name], encoder.state_dict()[name]), name
        assert torch.equal(program.target.encoder.state_dict()[name], value), name
    assert program.memory.shape == (12, 6)
    torch.testing.assert_close(program.memory.norm(dim=1), torch.ones(12))


def test_the_memory_forgets_the_oldest_first() -> None:
    program = image_node(batch=4, memory=12)
    before = program.memory.clone()
    program.draw = torch.Generator().manual_seed(0)
    program.objective(torch.zeros(3 * 4, 1, 8, 8), torch.zeros(12))
    assert torch.equal(program.memory[:8], before[4:])
    assert not torch.equal(program.memory[8:], before[:4])
    program.objective(torch.rand(3 * 20, 1, 8, 8), torch.zeros(60))  # more than there is room for
    assert program.memory.shape == (12, 6)


def test_local_centres_are_those_of_equal_clusters(unit_rows: UnitRows) -> None:
    tight = torch.nn.functional.normalize(torch.eye(4, 6).repeat_interleave(8, 0) + 0.01 * unit_rows(32, 6).float())
    draw = torch.Generator().manual_seed(2)
    centres = local_centres(tight, 4, draw)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(4))
    spread = local_centres(unit_rows(128, 6, 4), 16, draw)
    sizes = torch.bincount((unit_rows(128, 6, 4) @ spread.mT).argmax(1), minlength=16)
    assert int(sizes.min()) >= 3  # 8 each would be equal; nearest centres come close
    assert int(sizes.max()) <= 16


def test_global_centres_find_the_groups_of_local_ones(unit_rows: UnitRows) -> None:
    groups = torch.linalg.qr(unit_rows(8, 8, 1))[0][:3]
    Z = torch.nn.functional.normalize(groups.repeat_interleave(10, 0) + 0.05 * unit_rows(30, 8, 2), dim=1)
    start = unit_rows(3, 8, 3)
    C = global_centres(Z, start, 0.1, 300)
    torch.testing.assert_close(C.norm(dim=1), torch.ones(3).double())
    nearest = (Z @ C.mT).argmax(1).reshape(3, 10)
    assert sorted(nearest[:, 0].tolist()) == [0, 1, 2]
    assert bool((nearest == nearest[:, :1]).all())


def test_all_nodes_end_a_round_with_the_servers_centres() -> None:
    programs = [Orchestra(**SMALL).program(node) for node in nodes(STAR)]
    first = programs[0].centres.clone()
    logs, _ = play(programs, 1)
    assert all(torch.equal(program.centres, programs[0].centres) for program in programs)
    assert not torch.equal(programs[0].centres, first)
    assert all(1 <= log["clusters_used"] <= 3 for log in logs)


def test_turns_are_learned_and_count_in_the_loss() -> None:
    program = image_node()
    X = torch.rand(3 * 8, 1, 8, 8)
    losses = []
    for weight in (0.0, 1.0):
        program.spec = program.spec.model_copy(update={"rotation_weight": weight})
        program.draw = torch.Generator().manual_seed(3)
        losses.append(program.objective(X, torch.zeros(24)))
    grad = torch.autograd.grad(losses[1], program.model.turns.weight, allow_unused=True)[0]
    assert float(grad.norm()) > 0
    assert float(losses[1].detach()) > float(losses[0].detach())


def test_too_many_clusters_are_warned_of_or_refused() -> None:
    counts = torch.full((3, 2), 100)
    local = LocalSpec(augment={"shift": 1})
    star, alone = Star(nodes=3).build(0), of_edges(3, [])
    assert Orchestra(global_clusters=48).check(star, counts, local) == []
    for graph, centres in ((star, 48), (alone, 16)):
        (words,) = Orchestra(global_clusters=49).check(graph, counts, local)
        assert f"more than the {centres} centres" in words
    with pytest.raises(InputError, match=r"local_clusters must not exceed a node's memory of 10 samples; got 16"):
        Orchestra().check(star, torch.full((3, 2), 5), local)


def test_samples_that_cannot_be_turned_are_refused() -> None:
    with pytest.raises(InputError, match=r"method\.rotations must be 0 .* samples of shape \(8,\)"):
        Orchestra(local_clusters=4).program(nodes(STAR)[0])


def test_centres_that_are_none_are_refused() -> None:
    program = Orchestra(**SMALL).program(still(nodes(STAR)[0]))
    for wrong in (torch.zeros(4, 6), torch.ones(3, 6) / 6**0.5, torch.full((4, 6), torch.nan)):
        with pytest.raises(RatemeshError, match="message of node 2 was refused: 'centres'"):
            program.read("centres", 2, {"centres": wrong})
