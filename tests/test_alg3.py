"""Algorithm 3: against a plain transcription of the paper, against Algorithm 1, and over clusters with replicas."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ratemesh.core.gauge import align
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.graph.clusters import label_cover_clusters
from ratemesh.graph.topology import of_edges
from ratemesh.methods.alg1 import Alg1
from ratemesh.methods.alg3 import Alg3, ClusterPlan
from ratemesh.report.page import write_report
from ratemesh.training.gauge import PartialGauge
from ratemesh.training.local import LocalSpec
from toy_alg3 import COLD, LABELS, PRINTED, Paper, make_nodes, play
from toy_stats import keep


@pytest.mark.parametrize(
    ("labels", "clusters", "balanced"),
    [
        (LABELS, [(0, 1), (1, 2)], False),
        (((0, 1), (2, 3), (0,)), [(0, 1), (0, 1, 2)], False),
        (LABELS, [(0, 1), (1, 2)], True),
    ],
    ids=["one agent in two clusters", "two agents in the same two clusters", "balanced classes"],
)
def test_every_round_is_that_of_a_plain_transcription_in_float64(
    labels: tuple[tuple[int, ...], ...], clusters: list[tuple[int, ...]], balanced: bool
) -> None:
    """Balanced, every cluster optimises π_k = 1/K: a node's classes have equally many samples, clusters' have not."""
    nodes = make_nodes(labels, balance=balanced)
    paper = Paper(nodes, clusters, rho=0.1, gamma=1.0, balanced=balanced)
    programs = [Alg3(**PRINTED).program(node) for node in nodes]
    assert programs[1].plan.clusters == clusters
    for t in range(1, 5):
        play(programs, t)
        paper.round()
        for s, i in paper.virtual:
            expected = paper.V[s, i]
            for k in labels[i]:
                torch.testing.assert_close(programs[i].stats.V[k], expected[k], rtol=1e-9, atol=1e-11)
            assert programs[i].stats.held.nonzero().flatten().tolist() == list(labels[i])


def test_with_all_labels_everywhere_it_is_algorithm_1() -> None:
    everything = ((0, 1, 2, 3),) * 3
    one, three = ([spec(**PRINTED).program(n) for n in make_nodes(everything)] for spec in (Alg1, Alg3))
    for t in (1, 2, 3):
        play(one, t)
        play(three, t)
    for a, b in zip(one, three, strict=True):
        torch.testing.assert_close(a.stats.V, b.stats.V, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(a.edges.Y, b.edges.Y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("settings", [PRINTED, {"gauge": {"sketch": 0}}], ids=["as printed", "with gauge"])
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
    moments = [replica.trainer.state_dict()["optimizer.0.exp_avg"] for replica in programs[1].replicas.values()]
    assert not torch.equal(*moments)
    assert programs[1].sample_passes == 2 * len(programs[1].node.y)


def test_a_turn_of_the_gauge_never_raises_the_cluster_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all frames are settled; what the node minimises is −ΔR of its clusters and its coupling."""
    seen: list[tuple[float, float]] = []
    original = PartialGauge.turn_towards

    def watched(self, encoders, stats, peers, index, objective):
        settled = all(peer.hops >= 0 for peer in peers.values()) and self.hops >= 0
        turned = original(self, encoders, stats, peers, index, objective)
        if settled:
            seen.append((objective(stats), objective(turned)))
        return turned

    monkeypatch.setattr(PartialGauge, "turn_towards", watched)
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
    stats, peer = keep(ClassStats.of(Z, y, 4), [0, 1, 2]), keep(ClassStats.of(Z.roll(3, 1), y, 4), [1, 2, 3])
    away = peer.V[3]

    def value(Q: Tensor) -> float:
        turned, shared = stats.rotated(Q), keep(peer, [1, 2])
        return float((turned.V * (shared.V - away)).sum() + (turned.mu * shared.mu).sum())

    values = [value(align(stats, peer, iterations=n, tol=0, away=away, from_identity_only=True)) for n in range(1, 12)]
    assert values[0] >= value(torch.eye(6, dtype=torch.float64)) - 1e-12
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))


def test_a_graph_that_does_not_join_a_cluster_is_refused_before_any_work() -> None:
    counts = torch.tensor([[4, 4, 0, 0], [0, 4, 4, 4], [4, 0, 4, 0]])
    with pytest.raises(InputError, match=r"clusters \[\(0, 1\), \(1, 2\)\] lack the edges \[\(1, 2\)\].*complete"):
        Alg3().check(of_edges(3, [(0, 1), (0, 2)]), counts, LocalSpec())


def test_assumption_4_is_named_where_it_does_not_hold() -> None:
    even = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6]])
    complete = of_edges(2, [(0, 1)])
    assert Alg3().check(complete, even, LocalSpec()) == []
    skewed = torch.tensor([[6, 6, 0, 0], [0, 0, 6, 6], [1, 9, 9, 1]])
    triangle = of_edges(3, [(0, 1), (0, 2), (1, 2)])
    (gap,) = Alg3().check(triangle, skewed, LocalSpec())
    assert gap.startswith("Assumption 4 does not hold")
    assert "local.balance = true" in gap
    assert Alg3().check(triangle, skewed, LocalSpec(balance=True)) == []


def test_holders_of_a_label_that_cannot_meet_are_named() -> None:
    """Node 1 lies between 0 and 3, which hold label 0, and does not pass on what it does not hold."""
    counts = torch.tensor([[4, 4, 0], [0, 4, 4], [4, 0, 4], [4, 4, 4]])
    (words,) = [w for w in Alg1().check(of_edges(4, [(0, 1), (1, 2), (1, 3)]), counts, LocalSpec()) if "meet" in w]
    assert "label 0 of nodes {0} and {2} and {3}. Add edges, e.g. 0–2, 0–3, or use graph.name = 'complete'" in words
    ring = of_edges(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert not [w for w in Alg1().check(ring, counts, LocalSpec()) if "meet" in w]  # 0, 3, 2 pass label 0 on
    alone = of_edges(4, [])
    assert not [w for w in Alg1().check(alone, counts, LocalSpec()) if "meet" in w]  # independent nodes mean it


def test_algorithm_3_warns_of_holders_in_different_clusters_that_cannot_meet() -> None:
    counts = torch.tensor([[4, 4, 0, 0], [0, 0, 4, 4], [4, 4, 0, 0], [0, 0, 4, 4]])
    crossed = of_edges(4, [(0, 1), (2, 3), (0, 3)])
    (words,) = Alg3().check(crossed, counts, LocalSpec())
    assert "label 0 of nodes {0} and {2}; label 1 of nodes {0} and {2}; label 2 of nodes {1} and {3}" in words
    assert "e.g. 0–2, 1–3" in words


def test_peers_are_those_who_share_a_label_or_a_cluster() -> None:
    labels = [(0,), (1, 2), (2, 1), (0,)]
    clusters = label_cover_clusters(labels, 3)
    assert clusters == [(0, 1), (2, 3)]
    plan = ClusterPlan(0, (1, 2, 3), labels, clusters)
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
    assert (found.metrics["clusters"], found.metrics["critical_path"]) == (2, 5)
    assert found.metrics["acc_held_closed"] >= found.metrics["acc_held"]
    assert {"acc_label_aware", "acc_foreign"} <= found.metrics.keys()
    network = json.loads((tmp_path / "run" / "network.json").read_text())
    assert [node["clusters"] for node in network["nodes"]] == [[0], [0, 1], [1], [1], [0]]
    assert network["nodes"][1]["labels"] == [0, 5, 7, 8]
    page = write_report([tmp_path / "run"], tmp_path / "report.html").page.read_text()
    assert "Algorithm 3" in page


def test_replicas_that_do_not_fit_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratemesh.experiment.plan.available_memory", lambda: 5_000_000)  # for one
    with (
        pytest.raises(
            InputError, match=r"5 nodes with 6 networks need .* GB, 0.0 GB are free\. Take narrower encoders"
        ),
        pytest.warns(RatemeshWarning),
    ):
        Plan(scenario(encoders=[{"name": "mlp", "hidden": [256, 256]}])).check()


def test_a_majority_is_no_setting_of_algorithm_3() -> None:
    """A class that one cluster member holds alone enters the objective as that member tells it."""
    with pytest.raises(InputError, match=r"method\.robust is not a setting"):
        scenario(method={"name": "alg3", "robust": {"fold": "median"}})
