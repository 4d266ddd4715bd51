"""`ratemesh clusters`: the table, the verdict on Assumption 4, the figure."""

from pathlib import Path

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Wedge

from ratemesh.cli.clusters import assumption4, clusters, cost, summary
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.clusters import Clustering
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.storage import read_json
from ratemesh.graph.topology import Empty, Ring
from ratemesh.report.figures import style
from ratemesh.report.figures.graph import FILLS, HATCHES, draw_clusters
from ratemesh.report.wording import in_bytes

FIVE = ["partition.name=labels", "partition.labels=5x4", "graph.name=ring", "graph.nodes=5"]
FOUR = ["partition.name=labels", "partition.labels=4x5", "graph.name=ring", "graph.nodes=4"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "digits.toml"
    path.write_text('data = { name = "digits", validation = 0 }\n')  # counts are asserted
    return path


def test_the_papers_second_scenario(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clusters(config, tmp_path / "out", FIVE)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["0", "4", "0", "291", "1", "1,", "3,", "5,", "6"] in rows  # on a ring 0–1 and 0–4 are one hop, 1–4 two
    assert sum(row[-4:] == ["0,", "5,", "7,", "8"] and row[-5] == "2" for row in rows if len(row) > 5) == 2
    assert "2 clusters of 5 nodes, 1 replica (node 1 in 0, 1), hops inside clusters: 8." in out
    assert "Assumption 4 does not hold: class proportions of clusters are off by up to 0.05" in out
    assert "class 5 is" in out
    for suffix in ("png", "svg"):
        assert (tmp_path / "out" / f"clusters.{suffix}").stat().st_size > 1000


def test_the_optimum_says_what_parallel_clusters_cost(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clusters(config, None, FIVE, optimal=True)
    out = capsys.readouterr().out
    assert "1 cluster of 5 nodes, 0 replicas, hops inside clusters: 15." in out
    assert "Assumption 4 holds exactly" in out
    assert "--at-least 2" in out
    clusters(config, None, FIVE, optimal=True, at_least=2)
    assert "2 clusters of 5 nodes, 1 replica" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"--at-least must come with --optimal; got --at-least 2"):
        clusters(config, None, FIVE, at_least=2)


def test_the_folder_of_data_sets_can_be_named(config: Path, tmp_path: Path) -> None:
    config.write_text('data = "mnist"\n')
    with pytest.raises(InputError, match=r"data set 'mnist' must be in '.*elsewhere'"):
        clusters(config, data_dir=tmp_path / "elsewhere")


def plan(*overrides: str) -> Plan:
    return Plan(make_config({"data": "digits"}, overrides))


def test_assumption_4_holds_for_the_first_scenario_and_for_even_nodes() -> None:
    for overrides in (FOUR, ["graph.nodes=6"]):
        found = Clustering.of(plan(*overrides))
        assert "holds as nearly as whole samples allow" in assumption4(found)
    assert found.clusters == [(i,) for i in range(6)]
    assert summary(found) == "6 clusters of 6 nodes, 0 replicas, hops inside clusters: 0."


def test_balance_settles_assumption_4_in_what_is_optimised() -> None:
    found = Clustering.of(plan(*FIVE, "local.balance=true"))
    assert found.trained.exact
    assert not found.proportions.holds
    assert "Assumption 4 holds in what is optimised: local.balance weighs" in assumption4(found)
    assert "local.balance = true weighs all classes" in assumption4(Clustering.of(plan(*FIVE)))


def test_bytes_and_memory_are_estimated_as_a_run_then_finds_them(tmp_path: Path) -> None:
    """The estimate is of all rounds alike, so one round of a real run must have sent exactly that."""
    method = {"name": "alg3", "warm_start": {"epochs": 0}}
    table = {"data": "digits", "rounds": 1, "d": 16, "encoders": [{"name": "mlp", "hidden": [16]}], "method": method}
    settings = make_config(table, [*FIVE, "graph.name=complete", "engine.workers=1"])
    found = Clustering.of(Plan(settings))
    words = cost(found)
    with pytest.warns(RatemeshWarning, match="Assumption 4"):
        measured = run(settings, tmp_path / "run").metrics["bytes_total"]
    assert sum(found.bytes_sent) == measured
    assert f"sends {in_bytes(measured)} in all" in words
    weights = sum(p.numel() for p in settings.encoders[0].network((1, 8, 8), 16).parameters())
    assert found.memory.needed == 6 * 4 * 4 * weights  # of six networks: weights, gradients and two moments
    assert f"5 nodes with 6 networks need {96 * weights / 1e9:.3g} GB" in words
    assert "refuses" not in words


def along_a_line(rule: str, edges: Path) -> Config:
    """Two labels on the line 0–3–2–1: Algorithm 2 pairs 0 with 1, who are furthest apart."""
    edges.write_text("0 3\n3 2\n2 1\n")
    data = {"name": "subspaces", "classes": 2, "ambient": 8, "rank": 2, "per_class": 20}
    table = {"data": data, "rounds": 1, "d": 8, "encoders": [{"name": "mlp", "hidden": [8]}], "local": {"epochs": 1}}
    table["graph"] = {"name": "edge_file", "path": str(edges), "nodes": 4}
    table["partition"] = {"name": "labels", "labels": [[0], [1], [0], [1]]}
    table["method"] = {"name": "alg3", "clustering": rule, "warm_start": {"epochs": 0}}
    return make_config(table, ["engine.workers=1"])


def test_a_graph_that_the_printed_clusters_cannot_use_is_refused_with_the_rule_that_may(tmp_path: Path) -> None:
    plan = Plan(along_a_line("printed", tmp_path / "edges.txt"))
    with pytest.raises(InputError, match=r"lack the edges \[\(0, 1\)\].*method\.clustering = 'nearest'"):
        plan.check()


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
@pytest.mark.parametrize("rule", ["fewest-replicas", "nearest"])
def test_algorithm_3_runs_by_every_rule(rule: str, tmp_path: Path) -> None:
    settings = along_a_line(rule, tmp_path / "edges.txt")
    found = Clustering.of(Plan(settings))
    assert found.clusters == [(0, 3), (1, 2)]
    assert summary(found) == "2 clusters of 4 nodes, 0 replicas, hops inside clusters: 2."
    done = run(settings, tmp_path / "run")
    nodes = read_json(done.folder / "network.json")["nodes"]
    assert [node["clusters"] for node in nodes] == [[0], [1], [1], [0]]
    assert done.metrics["bytes_total"] == sum(found.bytes_sent)
    assert f"Algorithm 3 + {rule} clusters" in done.metrics["method"]


def test_replicas_beyond_memory_and_edges_that_lack_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratemesh.experiment.plan.available_memory", lambda: 5_000_000)
    words = cost(Clustering.of(plan(*FIVE)))
    assert "GB, 0.0 GB are free. Take narrower encoders, or a partition with fewer replicas" in words
    assert "Algorithm 3 refuses this graph: clusters lack the edges [(1, 3), (1, 4)]" in words


def test_members_without_a_path_are_said_to_have_none() -> None:
    found = Clustering.of(plan("partition.name=labels", "partition.labels=4x5", "graph.name=empty", "graph.nodes=4"))
    assert "hops inside clusters: no path" in summary(found)


def test_cluster_counts_are_those_of_the_paper_s_definition() -> None:
    found = Clustering.of(plan(*FIVE))
    m = found.counts.double()
    first = m[0] + m[1] / 2 + m[4]  # node 1 is in both clusters
    expected = first / first.sum() - m.sum(0) / m.sum()
    torch.testing.assert_close(found.proportions.gaps[0], expected)


def test_rings_have_a_piece_a_cluster_that_grey_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Figure] = []
    monkeypatch.setattr(style, "save", lambda figure, stem, formats: kept.append(figure) or (stem,))
    out = draw_clusters([(0, 1, 4), (1, 2, 3)], Ring(nodes=5).build(0), list("abcde"), Path("clusters"))
    axis = kept[0].axes[0]
    pieces = [patch for patch in axis.patches if isinstance(patch, Wedge)]
    assert len(pieces) == 6
    looks = {(to_hex(piece.get_facecolor()).upper(), piece.get_hatch() or "") for piece in pieces}
    assert looks == {(FILLS[0], HATCHES[0]), (FILLS[1], HATCHES[1])}
    assert {text.get_text() for text in axis.texts} == {*"01234", *"abcde"}
    assert [key.get_text() for key in axis.get_legend().get_texts()] == ["cluster 0: 0, 1, 4", "cluster 1: 1, 2, 3"]
    assert out.alt == "cluster 0: nodes 0, 1, 4; cluster 1: nodes 1, 2, 3."


@pytest.mark.parametrize("nodes", [1, 30, 60])
def test_few_and_many_nodes_are_drawn(nodes: int, tmp_path: Path) -> None:
    pairs = [tuple(range(i, min(i + 2, nodes))) for i in range(0, nodes, 2)]
    out = draw_clusters(pairs, Ring(nodes=nodes).build(0), [""] * nodes, tmp_path / "c", formats=("png",))
    assert out.files[0].stat().st_size > 1000


def test_too_many_nodes_are_a_note() -> None:
    out = draw_clusters([(0,)], Empty(nodes=401).build(0), [], Path("c"))
    assert out.files == ()
    assert "401 nodes are too many to draw" in out.notes[0]
