"""Algorithm 3: against a plain transcription of the paper, against Algorithm 1, and over clusters with replicas."""

import copy
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ratemesh.core.gauge import align, alignment
from ratemesh.core.stats import ClassStats
from ratemesh.encoders.networks import Mlp
from ratemesh.engines.meter import Traffic
from ratemesh.engines.router import Router
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.site import Plan
from ratemesh.graph.topology import of_edges
from ratemesh.methods.alg1 import Alg1
from ratemesh.methods.alg3 import Alg3, Alg3Program, ClusterPlan
from ratemesh.methods.local import LocalSpec
from ratemesh.methods.protocol import Node, Program
from ratemesh.report.page import write_report

K, P, D = 4, 6, 5
LABELS = ((0, 1), (1, 2, 3), (0, 2))  # Algorithm 2 gives {0, 1} and {1, 2}: agent 1 is replicated
PRINTED = {
    "objective_scale": "paper",
    "rho": 0.1,
    "gamma": 1.0,
    "coupling": {"schedule": "constant"},
    "running": {"beta": 1.0},
    "gauge": {"enabled": False},
    "warm_start": {"epochs": 0},
}
COLD = {"warm_start": {"epochs": 0}}


def make_nodes(labels: Sequence[tuple[int, ...]], lr: float = 0.01, epochs: int = 1, seed: int = 0) -> list[Node]:
    """Nodes with a linear encoder in float64; a batch is the whole shard, so an epoch is one step."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, P, generator=draw, dtype=torch.float64)
    found = []
    for i, held in enumerate(labels):
        y = torch.tensor([k for k in held for _ in range(4 + i)])
        X = centres[y] + 0.3 * torch.randn(len(y), P, generator=draw, dtype=torch.float64)
        found.append((X, y))
    total = sum(len(y) for _, y in found)
    N = len(labels)
    return [
        Node(
            index=i,
            neighbours=tuple(j for j in range(N) if j != i),
            X=X,
            y=y,
            num_classes=K,
            share=len(y) / total,
            encoder=Mlp(hidden=()).build((P,), D, seed, i).double(),
            local=LocalSpec(epochs=epochs, batch_size=1000, lr=lr, weight_decay=0),
            seed=seed,
            labels=tuple(labels),
        )
        for i, (X, y) in enumerate(found)
    ]


def play(programs: Sequence[Program], t: int) -> Traffic:
    router = Router(len(programs))
    rounds = {i: program.round(t) for i, program in enumerate(programs)}
    inboxes: list[tuple[int, object]] = [(i, None) for i in rounds]
    while rounds:
        for i, inbox in inboxes:
            try:
                router.post(i, next(rounds[i]) if inbox is None else rounds[i].send(inbox))  # type: ignore[arg-type]
            except StopIteration:
                del rounds[i]
        inboxes = list(router.ready())
        assert inboxes or not rounds, router.stuck()
    return router.traffic


class Paper:
    """The printed formulas, virtual node by virtual node and edge by edge, with autograd."""

    def __init__(self, nodes: Sequence[Node], clusters: Sequence[Sequence[int]], rho: float, gamma: float) -> None:
        self.nodes, self.clusters, self.rho, self.gamma = nodes, clusters, rho, gamma
        self.virtual = [(s, i) for s, cluster in enumerate(clusters) for i in cluster]
        self.S = {i: sum(i in c for c in clusters) for i in range(len(nodes))}
        self.net: dict[tuple[int, int], nn.Module] = {v: copy.deepcopy(nodes[v[1]].encoder) for v in self.virtual}
        self.optimizer = {v: torch.optim.Adam(net.parameters(), lr=nodes[v[1]].local.lr) for v, net in self.net.items()}
        self.V = {v: self.second_moments(v) for v in self.virtual}
        self.Y = {(v, u, k): torch.zeros(D, D, dtype=torch.float64) for v, u, k in self.edges()}

    def edges(self) -> list[tuple[tuple[int, int], tuple[int, int], int]]:
        held = {v: set(self.nodes[v[1]].y.tolist()) for v in self.virtual}
        return [(v, u, k) for v in self.virtual for u in self.virtual if u != v for k in sorted(held[v] & held[u])]

    def second_moments(self, v: tuple[int, int]) -> dict[int, Tensor]:
        node = self.nodes[v[1]]
        Z = self.net[v](node.X)
        return {k: Z[node.y == k].T @ Z[node.y == k] / (node.y == k).sum() for k in sorted(set(node.y.tolist()))}

    def loss(self, v: tuple[int, int], T: dict[object, Tensor]) -> Tensor:
        s = v[0]
        alpha, eye = D / 0.5, torch.eye(D, dtype=torch.float64)
        own = self.second_moments(v)
        count = {(j, k): int((self.nodes[j].y == k).sum()) / self.S[j] for j in self.clusters[s] for k in range(K)}
        m_k = {k: sum(count[j, k] for j in self.clusters[s]) for k in range(K)}
        m_s, m = sum(m_k.values()), sum(len(node.y) for node in self.nodes)
        mixed = {}
        for k in range(K):
            others = sum(count[j, k] / m_k[k] * self.V[s, j][k].detach() for j in self.clusters[s] if count[j, k])
            mixed[k] = own.get(k, others)
        R = 0.5 * torch.logdet(eye + alpha * sum(m_k[k] / m_s * mixed[k] for k in range(K)))
        R_c = sum(0.5 * m_k[k] / m_s * torch.logdet(eye + alpha * mixed[k]) for k in range(K))
        total = -(m_s / m) * (R - R_c)
        for a, u, k in self.edges():
            if a == v:
                total = total + (self.Y[v, u, k] * own[k]).sum() + self.gamma * (own[k] - T[v, u, k]).square().sum()
        return total

    def round(self) -> None:
        old = {v: {k: V.detach() for k, V in stats.items()} for v, stats in self.V.items()}
        for v, u, k in self.edges():
            self.Y[v, u, k] = self.Y[v, u, k] + self.rho * (old[v][k] - old[u][k])
        T: dict[object, Tensor] = {(v, u, k): (old[v][k] + old[u][k]) / 2 for v, u, k in self.edges()}
        for v in self.virtual:  # a cluster's members in turn
            self.optimizer[v].zero_grad()
            self.loss(v, T).backward()
            self.optimizer[v].step()
            self.V[v] = self.second_moments(v)
        for i in range(len(self.nodes)):
            replicas = [self.net[v] for v in self.virtual if v[1] == i]
            for parameters in zip(*(net.parameters() for net in replicas), strict=True):
                mean = sum(p.detach() for p in parameters) / len(parameters)
                for p in parameters:
                    p.data.copy_(mean)
        self.V = {v: self.second_moments(v) for v in self.virtual}


def test_every_round_is_that_of_a_plain_transcription_in_float64() -> None:
    nodes = make_nodes(LABELS)
    paper = Paper(nodes, [(0, 1), (1, 2)], rho=0.1, gamma=1.0)
    programs = [Alg3(**PRINTED).program(node) for node in nodes]
    assert programs[1].plan.mine == [0, 1]
    for t in range(1, 5):
        play(programs, t)
        paper.round()
        for s, i in paper.virtual:
            expected = paper.V[s, i]
            for k in LABELS[i]:
                torch.testing.assert_close(programs[i].stats.V[k], expected[k], rtol=1e-9, atol=1e-11)
            assert programs[i].stats.held.nonzero().flatten().tolist() == list(LABELS[i])


def test_with_all_labels_everywhere_it_is_algorithm_1() -> None:
    everything = ((0, 1, 2, 3),) * 3
    one, three = ([spec(**PRINTED).program(n) for n in make_nodes(everything)] for spec in (Alg1, Alg3))
    for t in (1, 2, 3):
        play(one, t)
        play(three, t)
    for a, b in zip(one, three, strict=True):
        torch.testing.assert_close(a.stats.V, b.stats.V, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(a.Y, b.Y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", [PRINTED, {}], ids=["as printed", "default"])
def test_bytes_are_those_of_the_formula_and_grow_with_the_labels_held(settings: dict[str, object]) -> None:
    """Remark 4: |K_i|·d(d+1)/2 numbers to everyone that gets them; here numbers have eight bytes."""
    nodes = make_nodes(LABELS)
    spec = Alg3(**settings)
    traffic = play([spec.program(node) for node in nodes], 1)
    hops = 1 if spec.gauge.enabled else 0  # the one number that has four bytes in either precision
    for node in nodes:
        sent = sum(size for (_, sender, _), size in traffic.bytes.items() if sender == node.index)
        assert sent == 2 * spec.bytes_sent(node) - 4 * hops * len(ClusterPlan.of(node).peers)


def test_resuming_is_not_stopping_with_replicas() -> None:
    straight, stopped = ([Alg3().program(n) for n in make_nodes(LABELS)] for _ in range(2))
    for t in (1, 2, 3, 4):
        play(straight, t)
    for t in (1, 2):
        play(stopped, t)
    resumed = [Alg3().program(n) for n in make_nodes(LABELS)]
    for program, other in zip(resumed, stopped, strict=True):
        program.load_state(other.state())
    for t in (3, 4):
        play(resumed, t)
    for a, b in zip(straight, resumed, strict=True):
        assert a.sample_passes == b.sample_passes
        for name, value in a.state().items():
            assert torch.equal(value, b.state()[name]), name


def test_replicas_are_equal_after_a_round_and_were_trained_apart() -> None:
    programs = [Alg3(**COLD).program(node) for node in make_nodes(LABELS)]
    play(programs, 1)
    first, second = (replica.encoder.state_dict() for replica in programs[1].replicas.values())
    assert all(torch.equal(first[name], second[name]) for name in first)
    moments = [replica.trainer.state()["optimizer.0.exp_avg"] for replica in programs[1].replicas.values()]
    assert not torch.equal(*moments)
    assert programs[1].sample_passes == 2 * len(programs[1].node.y)


def test_a_turn_of_the_gauge_never_raises_the_cluster_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all frames are settled; what the node minimises is −ΔR of its clusters and its coupling."""
    seen: list[tuple[float, float]] = []
    original = Alg3Program._turn_gauge

    def watched(self, peers, known, coupling):
        before, settled = self.stats, all(peer.hops >= 0 for peer in peers.values()) and self.gauge.hops >= 0
        original(self, peers, known, coupling)
        if settled:
            values = [self._objective(stats, known, coupling) for stats in (before, self.stats)]
            seen.append((values[0], values[1]))

    monkeypatch.setattr(Alg3Program, "_turn_gauge", watched)
    programs = [Alg3(coupling={"start": 3}).program(node) for node in make_nodes(LABELS, epochs=3)]
    for t in range(1, 9):
        play(programs, t)
    assert len(seen) >= 9
    assert all(after <= before for before, after in seen)
    assert any(after < before for before, after in seen)


def test_private_classes_are_turned_out_of_the_subspaces_of_others() -> None:
    """d = 4: the peer holds classes 0 (axis 0) and 2 (axis 1); this node has 0 on axis 0 and its own 1 on axis 1."""
    axes = torch.eye(4, dtype=torch.float64)
    stats = ClassStats.of(axes[[0, 1]], torch.tensor([0, 1]), 3)
    peer = ClassStats.of(axes[[0, 1]], torch.tensor([0, 2]), 3)
    Q = align(stats, peer, means=0.0, away=peer.V[2], iterations=200)
    turned = stats.rotated(Q)
    torch.testing.assert_close(Q @ Q.T, axes)
    assert float((turned.V[1] * peer.V[2]).sum()) < 1e-3 < float((stats.V[1] * peer.V[2]).sum())
    assert float((turned.V[0] * peer.V[0]).sum()) > 0.9


def test_the_climb_with_foreign_classes_is_monotone() -> None:
    draw = torch.Generator().manual_seed(3)
    Z = nn.functional.normalize(torch.randn(40, 6, generator=draw, dtype=torch.float64), dim=1)
    y = torch.arange(40) % 4
    stats, peer = ClassStats.of(Z, y, 4).only([0, 1, 2]), ClassStats.of(Z.roll(3, 1), y, 4).only([1, 2, 3])
    away = peer.V[3]

    def value(Q: Tensor) -> float:
        return float(alignment(Q, stats, peer.only([1, 2]), 1.0) - (stats.rotated(Q).V * away).sum())

    values = [value(align(stats, peer, iterations=n, tol=0, away=away, from_identity_only=True)) for n in range(1, 12)]
    assert values[0] >= value(torch.eye(6, dtype=torch.float64)) - 1e-12
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))


def test_a_graph_that_does_not_join_a_cluster_is_refused_before_any_work() -> None:
    counts = torch.tensor([[4, 4, 0, 0], [0, 4, 4, 4], [4, 0, 4, 0]])
    with pytest.raises(InputError, match=r"clusters \[\(0, 1\), \(1, 2\)\] lack the edges \[\(1, 2\)\].*complete"):
        Alg3().check(of_edges(3, [(0, 1), (0, 2)]), counts)


def test_assumption_4_is_named_where_it_does_not_hold() -> None:
    even = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6]])
    complete = of_edges(2, [(0, 1)])
    assert Alg3().check(complete, even) == []
    skewed = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6], [1, 9, 9, 1]])
    (gap,) = Alg3().check(of_edges(3, [(0, 1), (0, 2), (1, 2)]), skewed)
    assert gap.startswith("Assumption 4 does not hold")


def test_peers_are_those_who_share_a_label_or_a_cluster() -> None:
    plan = ClusterPlan(0, (1, 2, 3), [(0,), (1, 2), (2, 1), (0,)], 3)
    assert plan.clusters == [(0, 1), (2, 3)]
    assert plan.peers == (1, 3)
    assert (plan.before(0), plan.after(0)) == ((), (1,))


def scenario(**changes: object) -> Config:
    """The paper's second scenario on digits, as small as it gets."""
    table = {
        "rounds": 2,
        "d": 16,
        "partition": {"name": "labels", "labels": "5x4"},
        "graph": {"name": "complete", "nodes": 5},
        "encoders": [{"name": "mlp", "hidden": [16]}],
        "method": {"name": "alg3"},
        "engine": {"workers": 1},
    }
    return make_config({**table, **changes})


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_a_run_says_what_nodes_know_who_is_with_whom_and_how_long_a_round_is(tmp_path: Path) -> None:
    found = run(scenario(), tmp_path / "run")
    assert (found.metrics["clusters"], found.metrics["critical_path"]) == (2, 3)
    assert found.metrics["acc_own_closed"] >= found.metrics["acc_own"]
    assert {"acc_label_aware", "acc_foreign"} <= found.metrics.keys()
    network = json.loads((tmp_path / "run" / "network.json").read_text())
    assert [node["clusters"] for node in network["nodes"]] == [[0], [0, 1], [1], [1], [0]]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").page.read_text()
    assert "Algorithm 3" in page


def test_replicas_that_do_not_fit_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratemesh.experiment.site.available_memory", lambda: 1000)
    with (
        pytest.raises(InputError, match=r"5 nodes as 6 replicas need .* GB, 0.0 GB are free. Lower encoders.width"),
        pytest.warns(RatemeshWarning),
    ):
        Plan(scenario()).check()
