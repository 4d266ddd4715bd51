"""Prototypes on a graph: messages and their fold, FedProto's and FedPCL's objectives against loops, nodes alone."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.errors import RatemeshError
from ratemesh.graph.topology import of_edges
from ratemesh.methods.fedpcl import FedPcl, contrast
from ratemesh.methods.fedproto import FedProto, pull, targets
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalSpec, LocalTrainer, encode
from ratemesh.training.protocol import Node
from ratemesh.training.prototypes import PrototypeProgram, Prototypes, fold, read_prototypes
from test_method_contract import GRAPHS, LINE, nodes, play
from toy_stats import no_samples

SPECS = (FedProto, FedPcl)


def prototypes(counts: Sequence[int], d: int = 5, seed: int = 0) -> Prototypes:
    """Draw class means of unit vectors, float64; a class with count 0 is not held."""
    draw = torch.Generator().manual_seed(seed)
    Z = torch.nn.functional.normalize(torch.randn(sum(counts), d, generator=draw, dtype=torch.float64), dim=1)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Prototypes.of(ClassStats.of(Z, y, len(counts)))


def batch(n: int, d: int, labels: Sequence[int], seed: int = 9) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    Z = torch.nn.functional.normalize(torch.randn(n, d, generator=draw, dtype=torch.float64), dim=1)
    return Z, torch.tensor([labels[i % len(labels)] for i in range(n)])


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# ---- messages


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 10**6))
def test_a_message_has_the_classes_held_and_comes_back_as_it_was(counts: list[int], seed: int) -> None:
    sent = prototypes(counts, seed=seed) if sum(counts) else Prototypes.of(no_samples(len(counts), 5, torch.float64))
    payload = sent.payload()
    assert payload["mu"].shape == (sum(count > 0 for count in counts), 5)
    read = read_prototypes(payload, 1, sent)
    assert torch.equal(read.mu, sent.mu)
    assert torch.equal(read.m, sent.m)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"V": torch.zeros(1)}, "it must hold mu and m; got V, m, mu"),
    "counts of another shape": ({"m": torch.ones(4).double()}, r"'m' must have shape \(3,\)"),
    "counts of another type": ({"m": torch.ones(3)}, "'m' must have shape"),
    "counts that are no numbers": ({"m": torch.tensor([1, math.nan, 1]).double()}, "'m' is not finite"),
    "negative counts": ({"m": torch.tensor([1, -1, 1]).double()}, "counts must not be negative"),
    "too many samples": ({"m": torch.tensor([1, 0, 1e13]).double()}, "and at most 1e"),
    "a class too few": ({"m": torch.tensor([1, 0, 0]).double()}, r"'mu' must have shape \(1, 5\)"),
    "means of another shape": ({"mu": torch.zeros(2, 4).double()}, r"'mu' must have shape \(2, 5\)"),
    "means of another type": ({"mu": torch.zeros(2, 5)}, "'mu' must have shape"),
    "whole numbers": ({"mu": torch.zeros(2, 5, dtype=torch.int64)}, "'mu' must have shape"),
    "means that are no numbers": ({"mu": torch.full((2, 5), math.inf).double()}, "'mu' is not finite"),
    "means longer than their samples": ({"mu": torch.full((2, 5), 0.5).double()}, "must not be longer"),
}


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_a_message_that_no_node_can_have_sent_is_refused(change: dict[str, Tensor], words: str) -> None:
    own = prototypes([2, 0, 3])
    with pytest.raises(RatemeshError, match=f"the message of node 4 was refused: .*{words}"):
        read_prototypes({**own.payload(), **change}, 4, own)


@pytest.mark.parametrize("absent", ["mu", "m"])
def test_a_message_that_lacks_a_part_is_refused(absent: str) -> None:
    own = prototypes([2, 0, 3])
    kept = {name: part for name, part in own.payload().items() if name != absent}
    with pytest.raises(RatemeshError, match="it must hold mu and m; got m"):
        read_prototypes(kept, 4, own)


# ---- fold


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=4), st.integers(0, 10**6))
def test_the_fold_is_the_means_of_all_samples_together(counts: list[list[int]], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    y = [torch.repeat_interleave(torch.arange(3), torch.tensor(own)) for own in counts]
    Z = [torch.nn.functional.normalize(torch.randn(len(own), 4, generator=draw).double(), dim=1) for own in y]
    parts = [Prototypes.of(ClassStats.of(*pair, 3)) for pair in zip(Z, y, strict=True) if len(pair[0])]
    parts += [Prototypes.of(no_samples(3, 4, torch.float64))]  # a node with nothing to say changes nothing
    found, rows, labels = fold(parts), torch.cat(Z), torch.cat(y)
    for k in range(3):
        expected = rows[labels == k].mean(0) if bool((labels == k).any()) else torch.zeros(4).double()
        torch.testing.assert_close(found.mu[k], expected)
    assert found.m.tolist() == torch.bincount(labels, minlength=3).tolist()


def test_only_classes_that_a_neighbour_told_of_have_a_target() -> None:
    own, near, far = prototypes([2, 3, 0, 1]), prototypes([4, 0, 2, 0], seed=1), prototypes([1, 0, 0, 0], seed=2)
    found = targets(own, [near, far])
    torch.testing.assert_close(found.mu[0], (2 * own.mu[0] + 4 * near.mu[0] + far.mu[0]) / 7)
    torch.testing.assert_close(found.mu[2], near.mu[2])
    assert found.held.tolist() == [True, False, True, False]
    assert targets(own, [far]).held.tolist() == [True, False, False, False]  # `near` is lost
    assert not targets(own, []).held.any()


# ---- objectives


@pytest.mark.parametrize("told", [[3, 2, 4], [3, 0, 4], [0, 0, 0]], ids=str)
def test_the_pull_is_a_loop_over_samples(told: list[int]) -> None:
    Z, y = batch(7, 5, [0, 1, 2, 1])
    target = prototypes(told) if sum(told) else Prototypes.of(no_samples(3, 5, torch.float64))
    expected = 0.0
    for z, k in zip(Z.tolist(), y.tolist(), strict=True):
        if told[k]:
            expected += sum((a - b) ** 2 for a, b in zip(z, target.mu[k].tolist(), strict=True)) / len(y)
    assert float(pull(Z, y, target)) == pytest.approx(expected, rel=1e-12)


def contrast_by_loops(Z: Tensor, y: Tensor, sets: Sequence[Prototypes], tau: float) -> float:
    total = 0.0
    for z, k in zip(Z.tolist(), y.tolist(), strict=True):
        costs = []
        for part in sets:
            held = [c for c, count in enumerate(part.m.tolist()) if count > 0]
            scores = {c: math.exp(dot(z, part.mu[c].tolist()) / tau) for c in held}
            if k in scores:
                costs.append(-math.log(scores[k] / sum(scores.values())))
        total += sum(costs) / len(costs) if costs else 0.0
    return total / len(y)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4).filter(any), max_size=4),
    st.sampled_from([0.05, 0.3, 2.0]),
    st.integers(0, 10**6),
)
def test_the_contrast_is_a_loop_over_samples_and_sets(counts: list[list[int]], tau: float, seed: int) -> None:
    Z, y = batch(6, 5, [0, 3, 1], seed)
    sets = [prototypes(own, seed=seed + i) for i, own in enumerate(counts)]
    Z.requires_grad_()
    found = contrast(Z, y, sets, tau)
    assert float(found.detach()) == pytest.approx(contrast_by_loops(Z.detach(), y, sets, tau), rel=1e-10, abs=1e-12)
    if sets:
        (gradient,) = torch.autograd.grad(found, Z)
        assert torch.isfinite(gradient).all()


def test_equal_prototypes_cost_the_logarithm_of_their_number_and_turning_all_costs_nothing() -> None:
    Z, y = batch(6, 5, [0, 2])
    same = Prototypes(torch.full((4, 5), 0.2).double(), torch.tensor([1, 0, 1, 1]).double())
    assert float(contrast(Z, y, [same, same], 0.1)) == pytest.approx(math.log(3))
    other, Q = prototypes([1, 2, 3, 4]), torch.linalg.qr(torch.randn(5, 5).double())[0]
    turned = Prototypes(other.mu @ Q.mT, other.m)
    torch.testing.assert_close(contrast(Z @ Q.mT, y, [turned], 0.1), contrast(Z, y, [other], 0.1))
    torch.testing.assert_close(pull(Z @ Q.mT, y, turned), pull(Z, y, other))


def of(program: PrototypeProgram, heard: Sequence[Prototypes]) -> Tensor:
    """Return the program's objective at its own samples."""
    own = Prototypes.of(program.stats)
    return program.objective(own, heard)(program.node.X, program.node.y).detach()


def exact(node: Node) -> Node:
    """Return the node in float64."""
    return Node(**{**vars(node), "X": node.X.double(), "encoder": node.encoder.double()})


def test_objectives_are_the_papers_sums() -> None:
    node = exact(nodes(LINE)[0])
    heard = [prototypes([3, 0, 2], 6, 1), prototypes([5, 1, 0], 6, 2)]
    proto, pcl = FedProto(weight=3.0).program(node), FedPcl(temperature=0.4, cross_entropy=0.5).program(node)
    for program in (proto, pcl):
        torch.nn.init.normal_(program.classifier.head.weight, generator=torch.Generator().manual_seed(1))
    Z, y = encode(node.encoder, node.X), node.y
    head = pcl.classifier.head
    L_S = 0.0
    for z, k in zip(Z, y.tolist(), strict=True):
        scores = (6**0.5 * (head.weight @ z + head.bias)).tolist()
        L_S -= math.log(math.exp(scores[k]) / sum(map(math.exp, scores))) / len(y)
    own = Prototypes.of(proto.stats)
    L_R = 0.0
    for k in range(3):
        parts = [part for part in (own, *heard) if part.m[k] > 0]
        mean = sum(part.m[k] * part.mu[k] for part in parts) / sum(part.m[k] for part in parts)
        L_R += float((Z[y == k] - mean).square().sum()) / len(y)
    assert float(of(proto, heard)) == pytest.approx(L_S + 3.0 * L_R, rel=1e-9)
    expected = contrast_by_loops(Z, y, [fold([own, *heard])], 0.4) + contrast_by_loops(Z, y, heard, 0.4) + 0.5 * L_S
    assert float(of(pcl, heard)) == pytest.approx(expected, rel=1e-9)


# ---- rounds


@pytest.mark.parametrize("graph", ["one node", "no edges"])
def test_fedproto_alone_is_cross_entropy(graph: str) -> None:
    programs = [FedProto(weight=7.0).program(node) for node in nodes(GRAPHS[graph])]
    classifiers = [Classifier(node.encoder, 3) for node in nodes(GRAPHS[graph])]
    for program, classifier in zip(programs, classifiers, strict=True):
        node = program.node
        plain = LocalTrainer(classifier, node.local, node.seed, node.index, "FedProto")
        for t in (1, 2):
            with pytest.raises(StopIteration):
                rounds = program.round(t)
                assert next(rounds).send == {}
                rounds.send({})
            plain.train(node.X, node.y, classifier.loss, t)
        pairs = zip(program.classifier.parameters(), classifier.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_fedpcl_alone_contrasts_with_its_own_prototypes() -> None:
    program = FedPcl(temperature=0.5, cross_entropy=0.0).program(exact(nodes(GRAPHS["one node"])[0]))
    Z = encode(program.encoder, program.node.X)
    expected = contrast_by_loops(Z, program.node.y, [Prototypes.of(program.stats)], 0.5)
    assert float(of(program, [])) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_messages_that_are_lost_only_leave_their_sender_out(spec: type[FedProto | FedPcl]) -> None:
    """The middle of a line that hears one neighbour plays as if the other were not there."""
    three, two = ([spec().program(node) for node in nodes(LINE)] for _ in range(2))
    letter = three[0].read("prototypes", 0, next(three[0].round(1)).send[1])
    states = []
    for program, graph in ((three[1], LINE), (two[1], of_edges(3, [(0, 1)]))):
        program.node = Node(**{**vars(program.node), "neighbours": graph.neighbours(1)})
        rounds = program.round(1)
        assert sorted(next(rounds).recv) == list(graph.neighbours(1))
        with pytest.raises(StopIteration):
            rounds.send({0: letter})
        states.append(program.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def partial(node: Node, labels: Sequence[int]) -> Node:
    """Return the node with the samples of some classes only."""
    kept = torch.isin(node.y, torch.tensor(labels))
    return Node(**{**vars(node), "X": node.X[kept], "y": node.y[kept]})


@pytest.mark.parametrize("spec", SPECS)
def test_nodes_with_different_labels_send_what_they_hold(spec: type[FedProto | FedPcl]) -> None:
    held = [(0, 1), (1, 2), (0,)]
    method = spec()
    given_ = [partial(node, labels) for node, labels in zip(nodes(LINE), held, strict=True)]
    programs = [method.program(node) for node in given_]
    for t in (1, 2):
        logs, traffic = play(programs, t)
        assert all(math.isfinite(log["total"]) for log in logs)
        for i, node in enumerate(given_):
            sent = sum(count for (_, sender, _), count in traffic.bytes.items() if sender == i)
            assert sent == method.bytes_sent(node) == 4 * len(node.neighbours) * (6 * len(held[i]) + 3)


@pytest.mark.parametrize("spec", SPECS)
def test_neighbours_end_in_one_space(spec: type[FedProto | FedPcl]) -> None:
    """Prototypes of nodes that talk meet, and node j's judge node i's features better than where nobody talks."""

    def played(graph: str) -> tuple[float, float]:
        quick = LocalSpec(epochs=2, batch_size=8, lr=0.02)
        programs = [spec().program(Node(**{**vars(node), "local": quick})) for node in nodes(GRAPHS[graph])]
        for t in range(1, 13):
            play(programs, t)
        rules = [SubspaceJudge(rank=0).fit_stats(program.stats) for program in programs]
        Z = [encode(program.encoder, program.node.X) for program in programs]
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        apart = [float((programs[i].stats.mu - programs[j].stats.mu).norm(dim=1).mean()) for i, j in pairs]
        return fmean(apart), fmean(rules[j].score(Z[i], programs[i].node.y) for i, j in pairs)

    (near, across), (far, by_chance) = played("line"), played("no edges")
    assert near < 0.6 * far
    assert across > by_chance
