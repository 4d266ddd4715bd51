"""Undirected communication graphs, each a named setting with its own options; one changes between rounds, by a file.

For a graph that a program decides, derive from `TopologySpec`.
"""

import math
import tomllib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
from pydantic import Field

from ratemesh.errors import InputError
from ratemesh.seeds import child_seed
from ratemesh.specs import NamedSpec

ATTEMPTS = 1000
"""How many Erdős–Rényi graphs are drawn before we say that p is too small."""


@dataclass(frozen=True)
class Topology:
    """An undirected simple graph on nodes 0..nodes-1; edges (i, j) with i < j, sorted."""

    nodes: int
    edges: tuple[tuple[int, int], ...]

    def neighbours(self, i: int) -> tuple[int, ...]:
        """Return N_i, ascending."""
        return tuple(sorted({a + b - i for a, b in self.edges if i in (a, b)}))

    def components(self, among: Iterable[int] | None = None) -> list[list[int]]:
        """Return the connected components, of the graph or of some nodes of it, ordered by their lowest node."""
        graph = self._graph() if among is None else self._graph().subgraph(among)
        return sorted(sorted(part) for part in nx.connected_components(graph))

    def distances(self) -> list[list[float]]:
        """Return the edges on a shortest path from node i to node j; infinite where there is none."""
        reach = dict(nx.all_pairs_shortest_path_length(self._graph()))
        return [[reach[i].get(j, math.inf) for j in range(self.nodes)] for i in range(self.nodes)]

    def _graph(self) -> "nx.Graph[int]":
        graph: nx.Graph[int] = nx.Graph(self.edges)
        graph.add_nodes_from(range(self.nodes))
        return graph

    @property
    def is_connected(self) -> bool:
        """Whether every node reaches every other."""
        return len(self.components()) == 1


class TopologySpec(NamedSpec):
    """Settings of a topology."""

    kind: ClassVar[str] = "topology"
    varies: ClassVar[bool] = False
    nodes: int = Field(10, ge=1, le=100_000, description="number of nodes N")

    @abstractmethod
    def draw(self, seed: int) -> Topology:
        """Return the graph; anything random comes from `seed`."""

    def build(self, seed: int) -> Topology:
        """Return the graph, connected: information must be able to reach every node."""
        topology = self.draw(seed)
        if not topology.is_connected:
            raise InputError(
                f"graph must be connected; '{self.name}' falls into {components_in_words(topology.components())}. "
                "Add edges between them, or use graph.name = 'empty' for independent nodes."
            )
        return topology

    def at(self, t: int, seed: int) -> Topology:
        """Return the graph of round t; one that varies has only edges that `build` has."""
        return self.build(seed)


def braced(nodes: Sequence[int]) -> str:
    """Return nodes as a set, a long one cut."""
    return "{" + ", ".join(map(str, nodes[:12])) + (", …" if len(nodes) > 12 else "") + "}"


def components_in_words(components: list[list[int]]) -> str:
    """Return components in words, many of them cut."""
    more = f" and {len(components) - 8} more" if len(components) > 8 else ""
    return f"{len(components)} components: {', '.join(map(braced, components[:8]))}{more}"


class ErdosRenyi(TopologySpec):
    """Every pair is joined with probability p; drawn again until connected (the paper: p = 0.5)."""

    p: float = Field(0.5, gt=0, le=1, description="probability of an edge")

    def draw(self, seed: int) -> Topology:
        """Draw until connected, at most ATTEMPTS times."""
        for attempt in range(ATTEMPTS):
            graph = nx.gnp_random_graph(self.nodes, self.p, seed=child_seed(seed, "graph", attempt) % 2**32)
            topology = of_edges(self.nodes, graph.edges)
            if topology.is_connected:
                return topology
        raise InputError(
            f"graph.p must be large enough for a connected graph of {self.nodes} nodes; got {self.p}, and "
            f"{ATTEMPTS} draws were all disconnected. Take p above {math.log(self.nodes) / self.nodes:.2g}."
        )


class Ring(TopologySpec):
    """Node i is joined to i ± 1."""

    def draw(self, seed: int) -> Topology:
        """Return the cycle (one edge for two nodes, none for one)."""
        return of_edges(self.nodes, ((i, (i + 1) % self.nodes) for i in range(self.nodes)))


class Grid(TopologySpec):
    """A rectangle as square as the number of nodes allows, each node joined to those beside it."""

    rows: int | None = Field(None, ge=1, description="number of rows; must divide nodes")

    def draw(self, seed: int) -> Topology:
        """Return the grid, nodes numbered row by row."""
        rows = self.rows or max(r for r in range(1, math.isqrt(self.nodes) + 1) if self.nodes % r == 0)
        if self.nodes % rows:
            raise InputError(f"graph.rows must divide graph.nodes = {self.nodes}; got {rows}.")
        grid = nx.grid_2d_graph(rows, self.nodes // rows)
        return of_edges(self.nodes, nx.convert_node_labels_to_integers(grid, ordering="sorted").edges)


class Star(TopologySpec):
    """Node 0 is joined to all others."""

    def draw(self, seed: int) -> Topology:
        """Return the star."""
        return of_edges(self.nodes, ((0, i) for i in range(1, self.nodes)))


class Complete(TopologySpec):
    """Every pair is joined."""

    def draw(self, seed: int) -> Topology:
        """Return the complete graph."""
        return of_edges(self.nodes, combinations(range(self.nodes), 2))


class Empty(TopologySpec):
    """No edges: every node for itself (Independent MCR²; with nodes = 1, Centralised MCR²)."""

    def draw(self, seed: int) -> Topology:
        """Return the graph without edges."""
        return of_edges(self.nodes, ())

    def build(self, seed: int) -> Topology:
        """Return the graph; being disconnected is the point of it."""
        return self.draw(seed)


class EdgeFile(TopologySpec):
    """Edges from a text file: two node numbers a line, '#' starts a comment."""

    path: Path = Field(description="file with one edge 'i j' a line")

    def draw(self, seed: int) -> Topology:
        """Read the file."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"graph.path must be a readable text file; got '{self.path}' ({error}).") from None
        edges = []
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if len(words) not in (0, 2) or not all(w.isdecimal() and int(w) < self.nodes for w in words):
                raise InputError(
                    f"{self.path}:{number} must hold two node numbers in 0..{self.nodes - 1}; got '{line.strip()}'. "
                    "Correct the line or raise graph.nodes."
                )
            if words:
                edges.append((int(words[0]), int(words[1])))
        return of_edges(self.nodes, edges)


class Schedule(TopologySpec):
    """Edges that change: a TOML file with [[change]] tables, each `round` and the `edges` from that round on."""

    varies: ClassVar[bool] = True
    path: Path = Field(description="TOML file: [[change]] with round = 1 and edges = [[0, 1], …], rounds ascending")

    def draw(self, seed: int) -> Topology:
        """Return all edges that there ever are."""
        return of_edges(self.nodes, (edge for topology in self._changes.values() for edge in topology.edges))

    def at(self, t: int, seed: int) -> Topology:
        """Return the edges of round t; a round may well have a graph in parts."""
        return self._changes[max(start for start in self._changes if start <= max(t, 1))]

    @cached_property
    def _changes(self) -> dict[int, Topology]:
        """Read the file: from which round on there is which graph."""
        try:
            tables = tomllib.loads(self.path.read_text(encoding="utf-8")).get("change")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"graph.path must be a readable TOML file; got '{self.path}' ({error}).") from None
        if not isinstance(tables, list) or not tables:
            raise InputError(f"graph.path must hold [[change]] tables; '{self.path}' has none.")
        changes = dict(self._change(number, table) for number, table in enumerate(tables, 1))
        starts = list(changes)
        if starts != sorted(starts) or starts[0] != 1 or len(starts) < len(tables):
            rounds = [table.get("round") for table in tables]
            raise InputError(f"{self.path} must begin with round 1, rounds ascending; got {rounds}.")
        return changes

    def _change(self, number: int, table: Any) -> tuple[int, Topology]:
        """Check one table."""
        start, edges = (table.get("round"), table.get("edges")) if isinstance(table, dict) else (None, None)
        if not isinstance(start, int) or isinstance(start, bool) or not isinstance(edges, list):
            raise InputError(
                f"{self.path}, change {number} must have `round`, a whole number, and `edges`; got {table}."
            )
        for edge in edges:
            if not (
                isinstance(edge, list) and len(edge) == 2 and all(type(i) is int and 0 <= i < self.nodes for i in edge)
            ):
                raise InputError(
                    f"{self.path}, change {number}: an edge must be two node numbers in 0..{self.nodes - 1}; "
                    f"got {edge}. Correct it or raise graph.nodes."
                )
        return start, of_edges(self.nodes, (tuple(edge) for edge in edges))


class EdgeList(TopologySpec):
    """Edges as they are listed."""

    edges: tuple[tuple[int, int], ...] = Field(description="pairs of node numbers, e.g. [[0, 1], [1, 2]]")

    def draw(self, seed: int) -> Topology:
        """Return the listed edges."""
        outside = [list(edge) for edge in self.edges if not 0 <= min(edge) <= max(edge) < self.nodes]
        if outside:
            raise InputError(f"graph.edges must join nodes in 0..{self.nodes - 1}; got {outside[0]}.")
        return of_edges(self.nodes, self.edges)


def of_edges(nodes: int, edges: Iterable[tuple[int, int]]) -> Topology:
    """Return the topology with these edges; direction, repeats and loops do not count."""
    return Topology(nodes, tuple(sorted({(min(e), max(e)) for e in edges if e[0] != e[1]})))


TOPOLOGIES: dict[str, type[TopologySpec]] = {
    "complete": Complete,
    "edge_file": EdgeFile,
    "edges": EdgeList,
    "empty": Empty,
    "erdos_renyi": ErdosRenyi,
    "grid": Grid,
    "ring": Ring,
    "schedule": Schedule,
    "star": Star,
}
