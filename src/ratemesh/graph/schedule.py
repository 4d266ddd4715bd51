"""A graph that changes between rounds, from a file; for one that a program decides, derive from `TopologySpec`."""

import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ratemesh.errors import InputError
from ratemesh.graph.topology import Topology, TopologySpec, of_edges


class Schedule(TopologySpec):
    """Edges that change: a TOML file with [[change]] tables, each `round` and the `edges` from that round on."""

    varies: ClassVar[bool] = True
    path: Path = Field(description="TOML file: [[change]] with round = 1 and edges = [[0, 1], …], rounds ascending")

    def draw(self, seed: int) -> Topology:  # noqa: ARG002 - nothing is random here
        """Return all edges that there ever are."""
        return of_edges(self.nodes, (edge for topology in self._changes.values() for edge in topology.edges))

    def at(self, t: int, seed: int) -> Topology:  # noqa: ARG002 - nothing is random here
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
            if not (isinstance(edge, list) and len(edge) == 2 and all(i in range(self.nodes) for i in edge)):
                raise InputError(
                    f"{self.path}, change {number}: an edge must be two node numbers in 0..{self.nodes - 1}; "
                    f"got {edge}. Correct it or raise graph.nodes."
                )
        return start, of_edges(self.nodes, (tuple(edge) for edge in edges))
