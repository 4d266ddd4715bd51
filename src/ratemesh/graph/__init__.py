"""Who talks to whom."""

from ratemesh.graph.topology import (
    Complete,
    EdgeFile,
    Empty,
    ErdosRenyi,
    Grid,
    Ring,
    Schedule,
    Star,
    Topology,
    TopologySpec,
)

TOPOLOGIES: dict[str, type[TopologySpec]] = {
    "complete": Complete,
    "edge_file": EdgeFile,
    "empty": Empty,
    "erdos_renyi": ErdosRenyi,
    "grid": Grid,
    "ring": Ring,
    "schedule": Schedule,
    "star": Star,
}

__all__ = ["TOPOLOGIES", "Topology", "TopologySpec"]
