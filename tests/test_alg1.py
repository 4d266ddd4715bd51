"""Algorithm 1 against a plain float64 transcription of the paper's pseudo-code, and its switches."""

import math

import pytest
import torch
from torch import Tensor

from ratemesh.core.consensus import edge_weights
from ratemesh.core.stats import ClassStats
from ratemesh.encoders.networks import Mlp
from ratemesh.graph.topology import of_edges
from ratemesh.messages.statistics import NO_FRAME
from ratemesh.methods.alg1 import Alg1
from ratemesh.metrics.geometry import relative_distance
from ratemesh.training.coupled import CouplingSpec, Edges
from ratemesh.training.gauge import Gauge
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node
from test_method_contract import LINE, nodes, play

RHO, GAMMA, EPS2, K, D = 0.3, 0.7, 0.5, 3, 6


def in_double(node: Node, epochs: int) -> Node:
    """The node in float64, one batch an epoch, so that the order of samples cannot matter."""
    changes = {
        "X": node.X.double(),
        "encoder": Mlp(hidden=()).build((8,), D, 0, node.index).double(),
        "local": LocalSpec(epochs=epochs, batch_size=10_000, lr=0.01, weight_decay=0.0),
    }
    return Node(**{**{name: getattr(node, name) for name in node.__dataclass_fields__}, **changes})


def second_moments(Z: Tensor, y: Tensor) -> list[Tensor]:
    return [Z[y == k].T @ Z[y == k] / int((y == k).sum()) for k in range(K)]


def transcription(given: list[Node], rounds: int) -> list[list[Tensor]]:
    """Algorithm 1 line by line: duals per edge and class, (lagran1_2) by autograd, weights m_i/m."""
    m = sum(len(node.y) for node in given)
    optimizers = [torch.optim.Adam(node.encoder.parameters(), lr=0.01) for node in given]
    V = [second_moments(node.encoder(node.X).detach(), node.y) for node in given]
    Y = {(i, j, k): torch.zeros(D, D).double() for i, n in enumerate(given) for j in n.neighbours for k in range(K)}
    for _ in range(rounds):
        Y = {(i, j, k): dual + RHO * (V[i][k] - V[j][k]) for (i, j, k), dual in Y.items()}  # (R1_2a)
        for i, node in enumerate(given):
            for _ in range(node.local.epochs):
                Z = node.encoder(node.X)
                now = second_moments(Z, node.y)
                eye, m_i = torch.eye(D).double(), len(node.y)
                loss = -m_i / (2 * m) * torch.logdet(eye + D / (m_i * EPS2) * Z.T @ Z)
                for k in range(K):
                    m_ik = int((node.y == k).sum())
                    loss = loss + m_ik / (2 * m) * torch.logdet(eye + D / EPS2 * now[k])
                    for j in node.neighbours:
                        loss = loss + torch.trace(Y[i, j, k].T @ (now[k] - V[j][k]))
                        loss = loss + GAMMA * ((now[k] - (V[i][k] + V[j][k]) / 2) ** 2).sum()
                optimizers[i].zero_grad()
                loss.backward()
                optimizers[i].step()
        V = [second_moments(node.encoder(node.X).detach(), node.y) for node in given]
    return V


def test_as_printed_it_is_the_papers_algorithm() -> None:
    spec = Alg1(
        name="alg1",
        rho=RHO,
        gamma=GAMMA,
        eps2=EPS2,
        objective_scale="paper",
        coupling={"schedule": "constant", "balance": 0},
        running={"beta": 1.0},
        gauge={"enabled": False},
        warm_start={"epochs": 0},
    )
    expected = transcription([in_double(node, 3) for node in nodes(LINE)], rounds=3)
    programs = [spec.program(in_double(node, 3)) for node in nodes(LINE)]
    for t in (1, 2, 3):
        play(programs, t)
    for program, V in zip(programs, expected, strict=True):
        torch.testing.assert_close(program.stats.V, torch.stack(V), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("balance", [0, 0.5])
def test_duals_of_all_nodes_add_to_zero(balance: float) -> None:
    spec = Alg1(name="alg1", coupling={"schedule": "constant", "balance": balance})
    programs = [spec.program(node) for node in nodes(LINE)]
    for t in range(1, 5):
        play(programs, t)
    total = sum(program.edges.Y for program in programs)
    assert float(total.abs().max()) < 1e-6
    assert all(float(program.edges.Y.abs().max()) > 1e-3 for program in programs)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1, 1]),
        ({"schedule": "late", "start": 3}, [0, 0, 1, 1, 1]),
        ({"schedule": "ramp", "start": 2, "ramp": 3}, [0, 1 / 3, 2 / 3, 1, 1]),
    ],
)
def test_coupling_schedules(spec: dict[str, object], expected: list[float]) -> None:
    assert [CouplingSpec(**spec).at(t) for t in range(1, 6)] == pytest.approx(expected)


def test_edges_pull_as_far_as_their_ends_have_gained() -> None:
    spec = Alg1(name="alg1", gamma=3.0, coupling={"schedule": "constant", "balance": 0.1}, warm_start={"epochs": 0})
    programs = [spec.program(node) for node in nodes(LINE)]
    before = [program.stats for program in programs]
    logs, _ = play(programs, 1)
    for i, (node, log) in enumerate(zip(nodes(LINE), logs, strict=True)):
        near = [before[j] for j in node.neighbours]
        expected = edge_weights(before[i], near, gamma=3.0, eps2=spec.eps2, balance=0.1)
        assert log["coupling"] == pytest.approx(float(expected.mean()), rel=1e-5)
        assert 0 < log["coupling"] < 1


def test_uncoupled_rounds_leave_the_duals_alone() -> None:
    programs = [Alg1(name="alg1", coupling={"start": 3}).program(node) for node in nodes(LINE)]
    for t in (1, 2):
        play(programs, t)
        assert all(not program.edges.Y.any() for program in programs)
    play(programs, 3)
    assert all(program.edges.Y.any() for program in programs)


def test_the_frame_spreads_one_hop_a_round_and_turns_only_the_frame() -> None:
    chain = of_edges(4, [(0, 1), (1, 2), (2, 3)])
    programs = [Alg1(name="alg1").program(node) for node in nodes(chain)]
    hops = []
    for t in (1, 2, 3):
        play(programs, t)
        hops.append([program.gauge.hops for program in programs])
    assert hops == [[0, 1, NO_FRAME, NO_FRAME], [0, 1, 2, NO_FRAME], [0, 1, 2, 3]]
    for program in programs:
        gauge = program.encoder.gauge
        torch.testing.assert_close(gauge @ gauge.T, torch.eye(D), atol=1e-5, rtol=0)
        turned = ClassStats.of(program.encoder(program.node.X).detach(), program.node.y, K)
        torch.testing.assert_close(turned.V, program.stats.V, atol=1e-5, rtol=0)


@pytest.mark.parametrize("edges", [[(0, 1)], [(0, 1), (1, 2), (0, 2)]])
def test_gauge_brings_nodes_together_that_training_alone_leaves_apart(edges: list[tuple[int, int]]) -> None:
    graph = of_edges(max(max(edge) for edge in edges) + 1, edges)
    apart = {}
    for enabled in (True, False):
        # These nodes' samples follow no common law, which sketch moments rely on.
        spec = Alg1(name="alg1", gauge={"enabled": enabled, "sketch": 0}, coupling={"start": 1000})
        programs = [spec.program(node) for node in nodes(graph)]
        for t in range(1, 9):
            play(programs, t)
        # As they are now: a log compares with what neighbours were before they turned.
        apart[enabled] = sum(relative_distance(programs[i].stats, programs[j].stats) for i, j in graph.edges)
    assert apart[True] < 0.5 * apart[False]


def test_warm_start_passes_samples_and_changes_the_start() -> None:
    cold, warm = (
        Alg1(name="alg1", warm_start={"epochs": epochs, "batch_size": 8}).program(nodes(LINE)[0]) for epochs in (0, 20)
    )
    for program in (cold, warm):
        next(program.round(1))  # up to the first exchange
    assert cold.sample_passes == 0
    assert warm.sample_passes == 20 * 20
    rates = [float((p.stats.V[0] * p.stats.V[1]).sum()) for p in (cold, warm)]
    assert rates[1] < rates[0]  # cross-entropy drives classes apart


def test_logs_say_when_there_is_no_neighbour() -> None:
    programs = [Alg1(name="alg1").program(node) for node in nodes(of_edges(2, []))]
    logs, traffic = play(programs, 1)
    assert all(math.isnan(log["disagreement"]) for log in logs)
    assert traffic.bytes.total() == 0


def test_a_prior_starts_running_statistics_between_own_and_neighbours() -> None:
    eye = torch.eye(2)
    own, other = (ClassStats.of(eye[[i, i]], torch.tensor([0, 1]), 3) for i in (0, 1))
    lacking = ClassStats.of(eye[[1]], torch.tensor([0]), 3)

    def start(prior: float, *neighbours: ClassStats) -> torch.Tensor:
        spec = Alg1(running={"prior": prior})
        return Edges(spec, Gauge(spec.gauge, root=True), 0, own).prior(own, neighbours).V

    assert torch.equal(start(0.0, other, lacking), own.V)
    torch.testing.assert_close(start(1.0, other, lacking)[:2], other.V[:2])
    torch.testing.assert_close(start(0.5, other, lacking)[0], eye / 2)
    assert torch.equal(start(0.5, lacking)[1], own.V[1])
