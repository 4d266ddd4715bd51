"""Graphs and labels on them by other ways of counting; one node, no edges, numbers that are none."""

import math
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratemesh.errors import InputError
from ratemesh.graph import TOPOLOGIES, Topology, TopologySpec
from ratemesh.graph.clusters import (
    cover_cost,
    critical_path,
    hops_inside,
    label_cover_clusters,
    lacking_edges,
    memberships,
    replicas,
    split_in_words,
)
from ratemesh.graph.optimal_clusters import clusters_by, optimal_label_cover
from ratemesh.graph.topology import EdgeFile, Grid, Schedule, braced, of_edges
from ratemesh.specs import resolve


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> Topology:
    nodes = draw(st.integers(1, most))
    pairs = list(combinations(range(nodes), 2))
    return of_edges(nodes, draw(st.lists(st.sampled_from(pairs))) if pairs else [])


def floyd_warshall(graph: Topology) -> list[list[float]]:
    away = [[0.0 if i == j else math.inf for j in range(graph.nodes)] for i in range(graph.nodes)]
    for i, j in graph.edges:
        away[i][j] = away[j][i] = 1.0
    for k in range(graph.nodes):
        for i in range(graph.nodes):
            for j in range(graph.nodes):
                away[i][j] = min(away[i][j], away[i][k] + away[k][j])
    return away


@given(graphs())
def test_distances_are_those_of_relaxing_every_detour(graph):
    away = floyd_warshall(graph)
    assert graph.distances() == away
    assert graph.is_connected == all(math.isfinite(d) for row in away for d in row)
    for part in graph.components():
        assert all((away[part[0]][j] < math.inf) == (j in part) for j in range(graph.nodes))


@given(graphs(), st.data())
def test_components_among_some_nodes_use_edges_between_these_only(graph, data):
    some = sorted(data.draw(st.sets(st.integers(0, graph.nodes - 1))))
    inner = {i: n for n, i in enumerate(some)}
    alone = of_edges(len(some), [(inner[i], inner[j]) for i, j in graph.edges if i in inner and j in inner])
    assert graph.components(some) == [[some[n] for n in part] for part in alone.components()]


@pytest.mark.parametrize("name", ["complete", "empty", "erdos_renyi", "grid", "ring", "star"])
def test_one_node_is_a_graph_of_its_own(name):
    spec = resolve({"name": name, "nodes": 1}, TOPOLOGIES, TopologySpec, "graph")
    graph = spec.build(0)
    assert graph == Topology(1, ())
    assert graph.is_connected
    assert graph.neighbours(0) == ()
    assert graph.distances() == [[0]]
    assert spec.at(3, 0) == graph


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_grid_joins_what_is_beside_each_other(rows, columns):
    expected = {(n, n + 1) for n in range(rows * columns) if (n + 1) % columns}
    expected |= {(n, n + columns) for n in range((rows - 1) * columns)}
    assert set(Grid(name="grid", nodes=rows * columns, rows=rows).build(0).edges) == expected


@pytest.mark.parametrize(
    ("edges", "got"),
    [
        ("[[0.0, 1]]", r"\[0\.0, 1\]"),
        ("[[true, 2]]", r"\[True, 2\]"),
        ("[[-1, 2]]", r"\[-1, 2\]"),
        ('[["0", 1]]', r"\['0', 1\]"),
        ("[[0, 1, 2]]", r"\[0, 1, 2\]"),
        ("[3]", "3"),
    ],
)
def test_an_edge_that_changes_must_be_of_two_whole_numbers(tmp_path: Path, edges: str, got: str) -> None:
    path = tmp_path / "edges.toml"
    path.write_text(f"[[change]]\nround = 1\nedges = {edges}\n")
    message = rf"change 1: an edge must be two node numbers in 0\.\.2; got {got}\. Correct it or raise graph\.nodes"
    with pytest.raises(InputError, match=message):
        Schedule(name="schedule", nodes=3, path=path).build(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("change = [1]", r"change 1 must have `round`, a whole number, and `edges`; got 1\."),
        ("[[change]]\nround = true\nedges = []", "change 1 must have `round`, a whole number"),
        ("[[change]]\nround = 1\nedges = 3", "change 1 must have `round`, a whole number, and `edges`"),
        (
            "[[change]]\nround = 1\nedges = []\n[[change]]\nround = 3\nedges = []\n[[change]]\nround = 2\nedges = []",
            r"must begin with round 1, rounds ascending; got \[1, 3, 2\]",
        ),
        (
            "[[change]]\nround = 1\nedges = []\n[[change]]\nround = 1\nedges = []",
            r"rounds ascending; got \[1, 1\]",
        ),
    ],
)
def test_changes_out_of_order_or_without_parts_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "changes.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Schedule(name="schedule", nodes=3, path=path).draw(0)


def test_a_schedule_before_its_first_round_is_that_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "changes.toml"
    path.write_text("[[change]]\nround = 1\nedges = [[1, 0], [0, 1], [2, 2]]\n[[change]]\nround = 4\nedges = []\n")
    graph = Schedule(name="schedule", nodes=3, path=path)
    assert graph.at(0, 0) == graph.at(1, 0) == graph.at(3, 0) == Topology(3, ((0, 1),))
    assert graph.at(4, 0) == Topology(3, ())
    with pytest.raises(InputError, match="must be a readable TOML file"):
        Schedule(name="schedule", nodes=3, path=tmp_path / "absent.toml").at(1, 0)


@pytest.mark.parametrize("line", ["0 1 2", "0", "0 x", "0 -1", "0 9", "0 1.0"])
def test_an_edge_file_counts_lines_from_one(tmp_path: Path, line: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(f"# edges\n0 1 # first\n\n{line}\n")
    message = rf"edges\.txt:4 must hold two node numbers in 0\.\.8; got '{line}'\. Correct the line or raise"
    with pytest.raises(InputError, match=message):
        EdgeFile(name="edge_file", nodes=9, path=path).draw(0)


def test_long_sets_of_nodes_are_cut():
    assert braced(range(12)) == "{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}"
    assert braced(range(13)) == "{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …}"
    assert braced([]) == "{}"


@st.composite
def covers(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Clusters of some agents, every agent in at least one."""
    agents = draw(st.integers(1, 6))
    clusters = draw(st.lists(st.sets(st.integers(0, agents - 1), min_size=1), min_size=1, max_size=4))
    left = set(range(agents)) - set().union(*clusters)
    return [sorted(c) for c in clusters] + ([sorted(left)] if left else []), agents


@given(covers())
def test_costs_of_a_cover_are_counted_twice(cover):
    clusters, agents = cover
    line = of_edges(agents, [(i, i + 1) for i in range(agents - 1)])
    away = line.distances()
    flat = [i for cluster in clusters for i in cluster]
    assert memberships(clusters, agents) == [flat.count(i) for i in range(agents)]
    assert replicas(clusters, agents) == sum(len(c) for c in clusters) - agents
    hops = sum(abs(i - j) for c in clusters for i, j in combinations(c, 2))
    assert sum(hops_inside(c, away) for c in clusters) == hops
    extra, s = replicas(clusters, agents), len(clusters)
    assert cover_cost(clusters, away) == (0, extra, hops, -s)
    assert cover_cost(clusters, away, s + 2, "nearest") == (2, hops, extra, -s)
    near = {(i, j) for c in clusters for i, j in combinations(c, 2) if abs(i - j) > 1}
    assert lacking_edges(clusters, line.edges) == sorted(near)


@given(covers())
def test_the_longest_chain_is_that_of_a_clock(cover):
    """Play the turns: a member's turn begins when it is free and the member before it is done."""
    clusters, _ = cover
    ends: dict[tuple[int, int], int] = {}
    for s, cluster in enumerate(clusters):
        for n, i in enumerate(cluster):
            before = ends[s, cluster[n - 1]] if n else 0
            busy = max((end for (other, agent), end in ends.items() if agent == i and other < s), default=0)
            ends[s, i] = max(before, busy) + 1
    assert critical_path(clusters) == max(ends.values())
    longest, total = max(map(len, clusters)), sum(map(len, clusters))
    assert longest <= critical_path(clusters) <= total
    assert critical_path([]) == 0


@given(graphs(), st.data())
def test_holders_that_cannot_meet_are_named_and_the_edges_mend_it(graph, data):
    """Adding the edges that the message proposes leaves nothing to say."""
    label_sets = st.sets(st.integers(0, 2), min_size=1)
    labels = data.draw(st.lists(label_sets, min_size=graph.nodes, max_size=graph.nodes))
    split = [k for k in range(3) if len(graph.components([i for i, held in enumerate(labels) if k in held])) > 1]
    said = split_in_words(graph, labels)
    if not graph.edges or not split:
        assert said == []
        return
    (words,) = said
    assert all(f"label {k} of nodes {{" in words for k in split)
    proposed = words.split("e.g. ")[1].split(", or use")[0]
    if "more" not in proposed:
        extra = [tuple(map(int, edge.split("–"))) for edge in proposed.split(", ")]
        assert split_in_words(of_edges(graph.nodes, [*graph.edges, *extra]), labels) == []


def test_many_labels_in_parts_are_counted_and_not_all_named():
    (words,) = split_in_words(of_edges(4, [(0, 1), (2, 3)]), [range(6), [], range(6), []])
    assert "label 3 of nodes {0} and {2}; and 2 more. Add edges, e.g. 0–2, or use graph.name = 'complete'." in words


@settings(max_examples=15)
@given(st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=5), st.sampled_from(["ring", "star"]))
def test_agents_that_all_hold_all_need_no_other(rows, name):
    """Where one agent has every label, the printed rule and the optima leave it alone."""
    labels = [{0, 1, 2} for _ in rows]
    graph = resolve({"name": name, "nodes": len(labels)}, TOPOLOGIES, TopologySpec, "graph").build(0)
    alone = [(i,) for i in range(len(labels))]
    assert label_cover_clusters(labels) == optimal_label_cover(labels, graph) == alone
    assert clusters_by("nearest", labels, graph) == clusters_by("fewest-replicas", labels, graph, 3) == alone


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([], None, "labels must have a row an agent; got none"),
        ([[0], []], None, "agent 1 holds none. Give it data"),
        ([[0], [-1]], None, r"labels must be in 0\.\.0; agent 1 has -1"),
        ([[0], [3]], 2, r"labels must be in 0\.\.1; agent 1 has 3"),
        ([[0], [3]], None, r"nobody holds 1, 2 of 0\.\.3"),
    ],
)
def test_labels_that_make_no_cover_are_refused_by_every_rule(labels, classes, message):
    graph = of_edges(2, [(0, 1)])
    for rule in ("printed", "fewest-replicas", "nearest"):
        with pytest.raises(InputError, match=message):
            clusters_by(rule, labels, graph, classes)
