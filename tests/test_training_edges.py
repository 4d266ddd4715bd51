"""Local training where it may fail or has little to do: lost numbers, few samples, no gradient, frames, averages."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.encoders.networks import Mlp
from ratemesh.errors import InputError, NonFiniteError, RatemeshError
from ratemesh.graph.topology import of_edges
from ratemesh.messages.statistics import NO_FRAME, StatsMessage
from ratemesh.methods import METHODS
from ratemesh.methods.alg1 import Alg1, RobustSpec
from ratemesh.methods.alg1_weights import Alg1Weights
from ratemesh.methods.fedu2 import transport_uniformity, unbalanced_plan
from ratemesh.training.averaging import alike, averaged, min_norm_weights, read_weights, weights_bytes, weights_of
from ratemesh.training.classifier import Classifier, supervised
from ratemesh.training.coupled import CouplingSpec, RunningSpec, WarmStartSpec, weighed
from ratemesh.training.gauge import Gauge, GaugeSpec, PartialGauge, PartialGaugeSpec
from ratemesh.training.local import LocalSpec, LocalTrainer, batches, encode, named, under
from ratemesh.training.optimizers import Muon
from ratemesh.training.protocol import MethodSpec, Node

D = 4


def encoder(seed: int = 0) -> Encoder:
    return Mlp(hidden=(6,)).build((3,), D, seed)


def samples(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def node_of(kinds: tuple[str, ...] = (), index: int = 1, neighbours: tuple[int, ...] = (0, 2)) -> Node:
    X, y = samples()
    return Node(index, neighbours, X, y, 3, 0.5, encoder(), LocalSpec(), 0, kinds=kinds)


@given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 3), st.integers(0, 99))
def test_an_epoch_sees_every_sample_once_in_batches_of_nearly_one_size(rows, size, epochs, seed):
    found = list(
        batches(torch.zeros(rows), LocalSpec(batch_size=size, epochs=epochs), torch.Generator().manual_seed(seed))
    )
    assert sorted(torch.cat(found).tolist()) == sorted(list(range(rows)) * epochs)
    lengths = [len(batch) for batch in found]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) <= max(size, 3)  # three samples are not cut into two and one
    assert min(lengths) >= 2 or rows == 1


def test_without_epochs_nothing_is_trained_and_the_loss_is_unknown():
    trainer = LocalTrainer(encoder(), LocalSpec(epochs=0), 0, 0, "test")
    before = weights_of(trainer.modules)
    assert math.isnan(trainer.train(*samples(), lambda X, y: trainer.modules(X).sum(), 1))
    assert trainer.sample_passes == 0
    assert all(torch.equal(value, before[name]) for name, value in weights_of(trainer.modules).items())


def test_balanced_batches_need_samples():
    with pytest.raises(InputError, match=r"y must hold labels to make batches of; got none\. Give the node data"):
        next(batches(torch.zeros(0), LocalSpec(balance=True, batch_size=4), torch.Generator()))


def test_a_lost_loss_names_the_class_whose_features_are_lost():
    """Class 2 alone has inputs that overflow; the message says so, and where the learning rate is."""
    X, y = samples()
    X[y == 2] = torch.inf
    trainer = LocalTrainer(nn.Linear(3, 2), LocalSpec(lr=0.25), 0, 3, "test")
    message = r"loss of node 3 must be finite; got nan in round 7, class 2\. .*Lower local\.lr \(now 0\.25\)"
    with pytest.raises(NonFiniteError, match=message):
        trainer.train(X, y, lambda X, y: trainer.modules(X).mean() * 0, 7)


def test_a_loss_lost_by_itself_names_the_most_frequent_class():
    X, y = samples()[0], torch.tensor([1] * 8 + [0] * 4)
    trainer = LocalTrainer(nn.Linear(3, 2), LocalSpec(), 0, 0, "test")
    with pytest.raises(NonFiniteError, match=r"got inf at the start of round 1, class 1\."):
        trainer.train(X, y, lambda X, y: trainer.modules(X).sum() * 0 + torch.inf, 0)


def test_lost_features_of_the_whole_shard_are_named():
    X, y = samples()
    X[4] = torch.nan  # class 1
    trainer = LocalTrainer(encoder(), LocalSpec(), 0, 5, "test")
    with pytest.raises(NonFiniteError, match=r"features of node 5 must be finite; got nan in round 2, class 1\."):
        trainer.stats(trainer.modules, X, y, 3, 2)


def test_a_target_may_follow_after_every_step_and_views_stand_in_blocks():
    X, y = samples()
    trainer = LocalTrainer(encoder(), LocalSpec(batch_size=4, epochs=2), 0, 0, "test", views=3)
    steps, shown = [], []

    def objective(X: Tensor, y: Tensor) -> Tensor:
        shown.append((X.clone(), y.clone()))
        return trainer.modules(X)[:, 0].mean()

    trainer.train(X, y, objective, 1, after_step=lambda: steps.append(1))
    assert len(steps) == len(shown) == 6
    assert trainer.sample_passes == 24  # a sample counts once, however many views there are
    for batch, labels in shown:
        assert all(torch.equal(part, batch[:4]) for part in batch.split(4))
        assert labels.tolist() == labels[:4].tolist() * 3


def test_weights_without_a_gradient_are_left_alone():
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    used.grad = torch.eye(2)
    Muon([used, unused], 0.1, weight_decay=0.5).step()
    assert bool((unused == 1).all())
    assert not bool((used == 1).all())


@given(st.dictionaries(st.sampled_from(["a", "b.c", ""]), st.integers()), st.sampled_from(["", "x.", "a"]))
def test_names_with_a_prefix_come_back(tensors, prefix):
    assert under(prefix, named(prefix, tensors)) == tensors
    assert under("other.", named("x.", tensors)) == {}


def test_no_turn_of_the_gauge_changes_what_a_classifier_says(orthogonal):
    X, y = samples()
    classifier = Classifier(encoder(), 3)
    assert classifier.fit(X, y)[0] == pytest.approx(math.log(3))  # the head starts undecided
    nn.init.normal_(classifier.head.weight)
    before = classifier.eval()(X)
    classifier.encoder.turn(orthogonal(D).float())
    assert torch.allclose(classifier(X), before, atol=1e-5)
    loss, accuracy = classifier.fit(X, y)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(before, y).detach()), abs=1e-5)
    assert accuracy == pytest.approx(float((before.argmax(1) == y).double().mean()))


def test_without_cross_entropy_there_is_no_head():
    own = encoder()
    assert supervised(own, 3, 0.0) is own
    assert isinstance(supervised(own, 3, 0.1), Classifier)


def stats(seed: int = 0) -> ClassStats:
    X, y = samples(24)
    return ClassStats.of(encode(encoder(seed), X), y, 3)


def test_a_node_without_framed_peers_keeps_its_frame():
    own, net = stats(), encoder()
    gauge = Gauge(GaugeSpec(), root=False)
    assert gauge.turn(net, own, [StatsMessage(stats(1), NO_FRAME)]) is own
    assert gauge.turn(net, own, []) is own
    assert gauge.hops == NO_FRAME
    off = Gauge(GaugeSpec(enabled=False), root=False)
    assert off.turn(net, own, [StatsMessage(stats(1), 0)]) is own
    assert torch.equal(net.gauge, torch.eye(D))


def test_a_new_node_aligns_to_the_peers_nearest_to_the_root_only():
    gauge, net, own = Gauge(GaugeSpec(iterations=50), root=False), encoder(), stats()
    peers = [StatsMessage(stats(1), 5), StatsMessage(stats(2), 2), StatsMessage(stats(3), NO_FRAME)]
    turned = gauge.turn(net, own, peers)
    assert gauge.hops == 3
    alone, other = Gauge(GaugeSpec(iterations=50), root=False), encoder()
    assert torch.allclose(alone.turn(other, own, peers[1:2]).V, turned.V)
    X, y = samples(24)
    assert torch.allclose(ClassStats.of(encode(net, X), y, 3).V, turned.V, atol=1e-5)


def test_among_other_labels_a_node_waits_for_all_lower_numbers():
    gauge, net, own = PartialGauge(PartialGaugeSpec(), root=False), encoder(), stats()
    waiting = {0: StatsMessage(stats(1), 0), 1: StatsMessage(stats(2), NO_FRAME), 3: StatsMessage(stats(3), NO_FRAME)}
    assert gauge.turn_towards([net], own, waiting, 2, lambda s: 0.0) is own
    assert gauge.hops == NO_FRAME
    gauge.turn_towards([net], own, waiting | {1: StatsMessage(stats(2), 4)}, 2, lambda s: 0.0)
    assert gauge.hops == 5
    first = PartialGauge(PartialGaugeSpec(), root=False)  # nobody has a lower number: it begins a frame of its own
    assert first.turn_towards([net], own, {3: StatsMessage(stats(3), 0)}, 2, lambda s: 0.0) is own
    assert first.hops == 0


def test_a_settled_turn_that_would_raise_the_objective_is_left_out():
    net, own = encoder(), stats()
    peers = {0: StatsMessage(stats(1), 0)}
    rising = {id(own): 0.0}
    gauge = PartialGauge(PartialGaugeSpec(), root=True)
    assert gauge.turn_towards([net], own, peers, 1, lambda s: rising.get(id(s), 1.0)) is own
    assert torch.equal(net.gauge, torch.eye(D))
    turned = gauge.turn_towards([net], own, peers, 1, lambda s: -rising.get(id(s), 1.0))
    assert not torch.equal(turned.V, own.V)
    off = PartialGauge(PartialGaugeSpec(enabled=False), root=True)
    assert off.turn_towards([net], own, peers, 1, lambda s: 0.0) is own


@pytest.mark.parametrize(
    ("kinds", "scope", "expected"),
    [
        ((), "edges", (0, 2)),
        ((), "group", (0, 2)),
        (("a", "a", "b", "a"), "edges", (0,)),
        (("a", "a", "b", "a"), "group", (0, 3)),
        (("a", "b", "c", "d"), "group", ()),
    ],
)
def test_weights_are_averaged_among_alike(kinds, scope, expected):
    assert alike(node_of(kinds), scope) == expected


def test_an_average_with_nobody_changes_nothing():
    net = encoder()
    before = weights_of(net)
    round_ = averaged(net, ())
    assert next(round_).recv == frozenset()
    with pytest.raises(StopIteration):
        round_.send({})
    assert all(torch.equal(value, before[name]) for name, value in weights_of(net).items())


def test_weights_with_too_few_peers_are_refused():
    net = encoder()
    payload = {**weights_of(net), "degree": torch.tensor(-1, dtype=torch.int32)}
    with pytest.raises(RatemeshError, match="node 4 was refused: 'degree' must be at least 0; got -1"):
        read_weights(payload, 4, net)
    assert weights_bytes(net) == sum(4 * value.numel() for value in payload.values())


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**16))
def test_no_vector_objects_to_the_combination_of_smallest_norm(n, d, seed):
    """⟨v_k, v*⟩ ≥ ‖v*‖² for all k, and no corner of the simplex is shorter."""
    v = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    alpha = min_norm_weights(v @ v.mT)
    best = alpha @ v
    assert float(alpha.min()) >= 0
    assert float(alpha.sum()) == pytest.approx(1)
    assert float((v @ best).min()) >= float(best @ best) - 1e-6 * float((v * v).sum())


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 8))
def test_ramps_rise_in_equal_steps_to_full_strength(t, start, ramp):
    spec = CouplingSpec(schedule="ramp", start=start, ramp=ramp)
    assert spec.at(t) == (0 if t < start else min(1, (t - start + 1) / ramp))
    assert CouplingSpec(schedule="late", start=start).at(t) == float(t >= start)
    assert CouplingSpec(schedule="constant").at(t) == 1
    assert spec.at(t + 1) >= spec.at(t)


def test_switches_that_are_off_have_no_name():
    assert (
        CouplingSpec(schedule="constant").label()
        == RunningSpec(beta=1).label()
        == WarmStartSpec(epochs=0).label()
        == ""
    )
    assert CouplingSpec(schedule="ramp").label() == "ramp coupling"
    assert GaugeSpec(means=0, sketch=0).label() == "gauge"
    assert GaugeSpec(sketch=0).label() == "gauge with class means"
    assert GaugeSpec().label() == "gauge with class means and sketch"
    assert RobustSpec(fold="trimmed").label() == "trimmed over neighbours"
    assert Alg1(warm_start=WarmStartSpec(epochs=3)).epochs_before == 3
    assert METHODS["dsgd"](name="dsgd").epochs_before == 0


def test_balance_weighs_the_classes_in_the_loss_only():
    own = stats()
    assert weighed(own, LocalSpec()) is own
    few = ClassStats(own.V, own.mu, torch.tensor([6.0, 0.0, 2.0]))
    assert weighed(few, LocalSpec(balance=True)).m.tolist() == [4, 0, 4]


def test_averaged_weights_have_no_majority():
    spec, counts = Alg1Weights(name="alg1_weights", robust=RobustSpec(fold="median")), torch.full((2, 3), 4)
    with pytest.raises(InputError, match=r"method\.robust\.fold must be 'off' for method 'alg1_weights'; got 'median'"):
        spec.check(of_edges(2, [(0, 1)]), counts, LocalSpec())


@pytest.mark.parametrize(
    ("counts", "remedy"), [([[9, 1], [1, 9]], "local.balance = true"), ([[9, 0], [0, 9]], "'alg3'")]
)
def test_assumption_1_has_a_remedy_for_each_way_to_fail(counts, remedy):
    (words,) = MethodSpec.check(Alg1(), of_edges(2, [(0, 1)]), torch.tensor(counts) * 100, LocalSpec())
    assert words.startswith("Assumption 1 does not hold: class proportions differ between nodes by up to 0.")
    assert remedy in words


def test_a_price_at_which_nothing_moves_is_refused(unit_rows):
    u = unit_rows(6, 3)
    draw = torch.Generator().manual_seed(0)
    assert float(transport_uniformity(u, draw)) > 0
    with pytest.raises(
        RatemeshError, match=r"method\.price must be high enough for mass to be moved; with 0\.001 only"
    ):
        transport_uniformity(u, draw, scale=0.001)
    free = unbalanced_plan(torch.zeros(3, 5, dtype=torch.float64), 1.0)  # nothing costs anything: all of it moves
    assert torch.allclose(free, torch.full((3, 5), 1 / 15, dtype=torch.float64))
