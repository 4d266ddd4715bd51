"""Graphs: connected, simple, as named; and edge files that say what is wrong with them."""

import re

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError
from ratemesh.graph import TOPOLOGIES
from ratemesh.graph.topology import (
    Complete,
    EdgeFile,
    Empty,
    ErdosRenyi,
    Grid,
    Ring,
    Star,
    Topology,
    TopologySpec,
    components_in_words,
    of_edges,
)
from ratemesh.specs import resolve

CONNECTED = [Complete, ErdosRenyi, Grid, Ring, Star]


def as_networkx(topology):
    graph = nx.Graph()
    graph.add_nodes_from(range(topology.nodes))
    graph.add_edges_from(topology.edges)
    return graph


def graph_of(table):
    return resolve(table, TOPOLOGIES, TopologySpec, "graph")


@given(st.sampled_from(CONNECTED), st.integers(1, 14), st.integers(0, 10_000))
def test_graphs_are_connected_and_simple(spec, nodes, seed):
    topology = spec(nodes=nodes).build(seed)
    assert topology.nodes == nodes
    assert nx.is_connected(as_networkx(topology))
    assert topology.is_connected
    assert list(topology.edges) == sorted(set(topology.edges))
    assert all(0 <= i < j < nodes for i, j in topology.edges)


@given(st.sampled_from([*CONNECTED, Empty]), st.integers(1, 12), st.integers(0, 10_000))
def test_neighbours_are_those_of_the_edges(spec, nodes, seed):
    topology = spec(nodes=nodes).build(seed)
    graph = as_networkx(topology)
    for i in range(nodes):
        assert topology.neighbours(i) == tuple(sorted(graph.neighbors(i)))


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))
def test_components_are_networkxs(nodes, pairs):
    topology = of_edges(nodes, [(a % nodes, b % nodes) for a, b in pairs])
    expected = sorted(sorted(part) for part in nx.connected_components(as_networkx(topology)))
    assert topology.components() == expected
    assert topology.is_connected == (len(expected) == 1)


def test_direction_repeats_and_loops_do_not_count():
    assert of_edges(3, [(2, 0), (0, 2), (1, 1), (0, 2)]) == Topology(3, ((0, 2),))


@pytest.mark.parametrize(
    ("spec", "edges"),
    [
        (Ring(nodes=1), ()),
        (Ring(nodes=2), ((0, 1),)),
        (Ring(nodes=4), ((0, 1), (0, 3), (1, 2), (2, 3))),
        (Star(nodes=4), ((0, 1), (0, 2), (0, 3))),
        (Complete(nodes=3), ((0, 1), (0, 2), (1, 2))),
        (Grid(nodes=6), ((0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5))),
        (Grid(nodes=6, rows=3), ((0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5))),
        (Empty(nodes=3), ()),
    ],
)
def test_small_graphs_edge_by_edge(spec, edges):
    assert spec.build(0).edges == edges


def test_a_grid_of_a_prime_number_is_a_line():
    assert Grid(nodes=7).build(0).edges == tuple((i, i + 1) for i in range(6))


@pytest.mark.parametrize(("nodes", "rows"), [(7, 2), (6, 4), (3, 5)])
def test_grid_rows_must_divide(nodes, rows):
    with pytest.raises(InputError, match=rf"graph\.rows must divide graph\.nodes = {nodes}; got {rows}"):
        Grid(nodes=nodes, rows=rows).build(0)


def test_erdos_renyi_depends_on_the_seed_only():
    spec = ErdosRenyi(nodes=12)
    assert spec.build(3) == spec.build(3)
    assert len({spec.build(seed).edges for seed in range(5)}) == 5


def test_erdos_renyi_has_about_the_edges_it_should():
    """G(30, 0.3) has 435 pairs: 130.5 edges on average, standard deviation 9.6; here the mean of 20 draws."""
    mean = sum(len(ErdosRenyi(nodes=30, p=0.3).build(seed).edges) for seed in range(20)) / 20
    assert abs(mean - 130.5) < 5 * 9.6 / 20**0.5
    assert ErdosRenyi(nodes=5, p=1.0).build(0) == Complete(nodes=5).build(0)


def test_erdos_renyi_draws_again_until_connected():
    """At n = 10, p = 0.2 fewer than a third of all graphs are connected, so some of ten seeds need a second draw."""
    assert all(ErdosRenyi(nodes=10, p=0.2).build(seed).is_connected for seed in range(10))


def test_erdos_renyi_with_too_small_p_says_what_to_take():
    # log(12)/12 = 0.207
    message = r"graph\.p must be large enough for a connected graph of 12 nodes; got 0\.001.*1000 draws.*p above 0\.21"
    with pytest.raises(InputError, match=message):
        ErdosRenyi(nodes=12, p=0.001).build(0)


def test_the_empty_graph_may_be_disconnected():
    topology = Empty(nodes=3).build(0)
    assert topology.components() == [[0], [1], [2]]
    assert not topology.is_connected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "rign",
            r"graph\.name must be a known topology; got 'rign'\. Did you mean 'ring'\? Known: complete, edge_file",
        ),
        ({"nodes": 3}, r"graph\.name must name a topology; got None"),
        ({"name": "ring", "nodes": 0}, r"graph\.nodes: .*greater than or equal to 1; got 0"),
        ({"name": "ring", "node": 3}, r"graph\.node is not a setting\. Did you mean 'nodes'\?"),
        ({"name": "erdos_renyi", "p": 0}, r"graph\.p: .*greater than 0; got 0"),
        ({"name": "erdos_renyi", "p": 1.5}, r"graph\.p: .*less than or equal to 1; got 1\.5"),
        ({"name": "edge_file"}, r"graph\.path: Field required"),
        ("nowhere:Thing", r"importable as 'module:Class'; got 'nowhere:Thing'.*PYTHONPATH"),
        ("pathlib:Path", r"must be a subclass of TopologySpec; got 'pathlib:Path'\. Derive from it"),
        (7, r"graph must be a table or a name; got 7"),
    ],
)
def test_bad_settings_name_key_value_and_remedy(table, message):
    with pytest.raises(InputError, match=message):
        graph_of(table)


@pytest.mark.parametrize("name", sorted(set(TOPOLOGIES) - {"edge_file", "edges", "schedule"}))
def test_every_name_resolves(name):
    assert type(graph_of({"name": name, "nodes": 4})) is TOPOLOGIES[name]


@pytest.fixture
def edge_file(tmp_path):
    """Return a function that writes a file and makes its graph."""

    def write(text, nodes=4):
        path = tmp_path / "edges.txt"
        path.write_text(text, encoding="utf-8")
        return graph_of({"name": "edge_file", "path": str(path), "nodes": nodes})

    return write


def test_edge_file_with_comments_repeats_and_blank_lines(edge_file):
    text = "# a square\n0 1\n\n1\t2  # tab\n  3 2\n0 3\n3 0\n   # nothing\n"
    assert edge_file(text).build(0).edges == ((0, 1), (0, 3), (1, 2), (2, 3))


@pytest.mark.parametrize("line", ["0", "0 1 2", "0 x", "0 -1", "0 4", "1.0 2", "0,1"])
def test_edge_file_names_file_line_and_text(edge_file, line):
    message = rf"edges\.txt:3 must hold two node numbers in 0\.\.3; got '{re.escape(line)}'\. .*raise graph\.nodes"
    with pytest.raises(InputError, match=message):
        edge_file(f"0 1\n1 2\n  {line}\n2 3\n").build(0)


def test_disconnected_edge_file_names_the_components(edge_file):
    message = r"graph must be connected; 'edge_file' falls into 3 components: \{0, 2\}, \{1, 4\}, \{3\}\. Add edges"
    with pytest.raises(InputError, match=message):
        edge_file("0 2\n4 1\n", nodes=5).build(0)


def test_an_edge_file_without_edges_is_disconnected(edge_file):
    with pytest.raises(InputError, match=r"2 components: \{0\}, \{1\}\. .*graph\.name = 'empty'"):
        edge_file("# nothing\n", nodes=2).build(0)


def test_missing_or_binary_edge_file(tmp_path):
    with pytest.raises(InputError, match=r"graph\.path must be a readable text file; got '.*absent\.txt'"):
        EdgeFile(path=tmp_path / "absent.txt", nodes=3).build(0)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"graph\.path must be a readable text file; got '.*binary'"):
        EdgeFile(path=tmp_path / "binary", nodes=3).build(0)


def test_long_lists_of_components_are_cut():
    assert components_in_words([[i] for i in range(11)]).endswith("{7} and 3 more")
    assert "{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …}" in components_in_words([list(range(20))])
