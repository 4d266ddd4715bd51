"""FedU: who keeps a predictor, a target that is the node's own, and movement measured on the right layers."""

import pytest
import torch
from torch import nn

from ratemesh.encoders.networks import Conv4, Mlp, ResNet18
from ratemesh.errors import RatemeshError
from ratemesh.methods.fedu import FedU, FedUProgram, watched_weights
from ratemesh.training.averaging import weights_of
from ratemesh.training.local import LocalSpec
from test_method_contract import nodes, play
from test_star import STAR, still


def programs(**settings) -> list[FedUProgram]:
    """Three nodes that begin with different weights, so that an average is told from a node's own."""
    made = [FedU(**settings).program(node) for node in nodes(STAR)]
    for i, program in enumerate(made):
        for weight in program.model.predictor.parameters():
            weight.data += i
    return made


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in weights_of(module).values()])


def test_without_movement_the_averaged_predictor_is_taken_over() -> None:
    made = [FedU(mu=0.4).program(still(node)) for node in nodes(STAR)]
    logs, _ = play(made, 1)
    assert [log["moved"] for log in logs] == [0, 0, 0]
    assert [log["took_over"] for log in logs] == [1, 1, 1]


@pytest.mark.parametrize(("mu", "same"), [(0.0, False), (1e9, True)])
def test_the_threshold_decides_over_the_predictor_and_nothing_else(mu: float, same: bool) -> None:
    made = programs(mu=mu)
    logs, _ = play(made, 1)
    assert all(log["moved"] > 0 and bool(log["took_over"]) is same for log in logs)
    heads = [flat(program.model.predictor) for program in made]
    assert all(torch.equal(head, heads[0]) is same for head in heads[1:])
    online = [flat(program.model.online) for program in made]
    assert all(torch.equal(one, online[0]) for one in online)


def test_the_threshold_is_the_median_of_every_round() -> None:
    made = programs()
    for t in (1, 2):
        logs, _ = play(made, t)
        moved = sorted(log["moved"] for log in logs)
        assert [log["threshold"] for log in logs] == pytest.approx([moved[1]] * 3)
        assert [log["took_over"] for log in logs] == [float(log["moved"] == moved[0]) for log in logs]


def test_a_target_follows_its_own_node_and_is_never_replaced() -> None:
    made = programs(keep=0.9)
    before = [flat(program.target) for program in made]
    play(made, 1)
    for t in (2, 3):
        received = flat(made[0].model.online)
        play(made, t)
        targets = [flat(program.target) for program in made]
        assert not any(torch.equal(target, received) for target in targets)
        assert not torch.equal(targets[0], targets[1])
    assert not any(torch.equal(a, b) for a, b in zip(before, targets, strict=True))


def test_one_step_moves_the_target_by_a_part_of_the_way() -> None:
    node = nodes(STAR)[0]
    one_step = LocalSpec(epochs=1, batch_size=len(node.y), lr=0.05)
    program = FedU(keep=0.75).program(still(node, local=one_step, neighbours=()))
    before = [p.detach().clone() for p in program.target.parameters()]
    program.train(1)
    for old, new, online in zip(before, program.target.parameters(), program.model.online.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), 0.75 * old + 0.25 * online.detach())


def test_movement_is_of_convolutions_and_of_linear_layers_without_any() -> None:
    assert len(watched_weights(ResNet18(width=0.0625).build((3, 8, 8), 4, 0))) == 17  # 20, three of them shortcuts
    assert len(watched_weights(Conv4(width=0.05).build((1, 16, 16), 4, 0))) == 4
    assert len(watched_weights(Mlp(hidden=(5,)).build((8,), 4, 0))) == 2


def test_a_threshold_that_is_no_number_is_refused() -> None:
    program = FedU().program(nodes(STAR)[1])
    answer = {**weights_of(program.model), "median": torch.tensor(float("nan"))}
    with pytest.raises(RatemeshError, match="message of node 0 was refused: 'median' is not finite"):
        program.read("weights", 0, answer)
