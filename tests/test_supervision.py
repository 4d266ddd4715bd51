"""Cross-entropy beside the rate reduction: what it adds to the objective, and what it leaves alone."""

import copy

import torch

from ratemesh.encoders.networks import Mlp
from ratemesh.methods.alg1 import Alg1
from ratemesh.training.classifier import Classifier
from ratemesh.training.coupled import Learner
from test_method_contract import LINE, nodes, play


def orthogonal(d: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(3)))[0]


def trained_head(encoder) -> Classifier:
    classifier = Classifier(encoder, 3)
    torch.nn.init.normal_(classifier.head.weight, generator=torch.Generator().manual_seed(1))
    return classifier


def test_turning_the_gauge_changes_features_and_no_logit() -> None:
    encoder = Mlp(hidden=(12,)).build((8,), 6, 0)
    classifier = trained_head(encoder)
    X = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    features, logits = encoder(X).detach(), classifier(X).detach()
    encoder.turn(orthogonal(6))
    assert float((encoder(X).detach() - features).abs().max()) > 0.1
    torch.testing.assert_close(classifier(X), logits, rtol=1e-5, atol=1e-5)


def test_it_adds_the_weighted_cross_entropy_of_the_same_features() -> None:
    node = nodes(LINE)[0]
    encoder = node.encoder.double()
    learner = Learner(Alg1(cross_entropy=2.5), encoder, node, "test")
    assert isinstance(learner.modules, Classifier)
    torch.nn.init.normal_(learner.modules.head.weight, generator=torch.Generator().manual_seed(1))
    encoder.turn(orthogonal(6).double())
    Z = encoder(torch.randn(7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    logits = 6**0.5 * (Z @ encoder.gauge @ learner.modules.head.weight.T + learner.modules.head.bias)
    by_hand = -(logits - logits.exp().sum(1, keepdim=True).log())[torch.arange(7), y].mean()
    added = torch.as_tensor(learner.supervision(Z, y)).detach()
    torch.testing.assert_close(added, 2.5 * by_hand.detach(), rtol=1e-12, atol=0)


def test_without_weight_nothing_is_added_and_only_the_encoder_is_trained() -> None:
    node = nodes(LINE)[0]
    learner = Learner(Alg1(), node.encoder, node, "test")
    assert learner.modules is node.encoder
    assert learner.supervision(torch.zeros(2, 6), torch.tensor([0, 1])) == 0


def test_the_head_learns_stays_on_the_node_and_is_kept_in_checkpoints() -> None:
    spec = Alg1(name="alg1", cross_entropy=2.0, warm_start={"epochs": 0})
    programs = [spec.program(node) for node in nodes(LINE)]
    plain = [Alg1(name="alg1", warm_start={"epochs": 0}).program(node) for node in nodes(LINE)]
    _, traffic = play(programs, 1)
    _, without = play(plain, 1)
    assert traffic.bytes == without.bytes
    weight = programs[0].state()["modules.head.weight"]
    assert float(weight.abs().max()) > 0
    again = spec.program(nodes(LINE)[0])
    again.load_state(copy.deepcopy(programs[0].state()))
    torch.testing.assert_close(again.state()["modules.head.weight"], weight, rtol=0, atol=0)
