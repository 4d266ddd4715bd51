"""Who talks to whom."""

from ratemesh.graph.topology import TOPOLOGIES, Topology, TopologySpec

__all__ = ["TOPOLOGIES", "Topology", "TopologySpec"]
