"""Who is with whom in Algorithm 3, as one agent sees it."""

from collections.abc import Sequence

from ratemesh.graph.clusters import Cluster, memberships
from ratemesh.training.protocol import Node


class ClusterPlan:
    """An agent's clusters and peers; the clusters are the same at every agent.

    Attributes:
        clusters: all clusters, members in the order of their turns.
        mine: the clusters that agent i is in, ascending. Taking turns in this order, no two agents wait for each other.
        S: (N,) in how many clusters each agent is.
        peers: the neighbours that share a label or a cluster.
    """

    def __init__(
        self, index: int, neighbours: Sequence[int], labels: Sequence[Sequence[int]], clusters: Sequence[Cluster]
    ) -> None:
        self.index = index
        self.clusters = list(clusters)
        self.mine = [s for s, cluster in enumerate(clusters) if index in cluster]
        self.S = memberships(clusters, len(labels))
        near = {j for s in self.mine for j in clusters[s]}
        self.peers = tuple(j for j in neighbours if j in near or set(labels[j]) & set(labels[index]))

    @classmethod
    def of(cls, node: Node) -> "ClusterPlan":
        """Return the part of the node's clusters that the node needs."""
        return cls(node.index, node.neighbours, node.labels, node.clusters)

    def before(self, s: int) -> tuple[int, ...]:
        """Return the members of cluster s whose turn is earlier."""
        return self.clusters[s][: self.clusters[s].index(self.index)]

    def after(self, s: int) -> tuple[int, ...]:
        """Return the members of cluster s whose turn is later."""
        return self.clusters[s][self.clusters[s].index(self.index) + 1 :]
