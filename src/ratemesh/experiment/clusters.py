"""How the nodes of an experiment cluster, by the rule of its method or the optimum, and what that means."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ratemesh.core.theory import Proportions
from ratemesh.experiment.memory import Memory
from ratemesh.experiment.plan import Plan
from ratemesh.graph.clusters import (
    Cluster,
    hops_inside,
    lacking_edges,
    memberships,
    replicas,
)
from ratemesh.graph.optimal_clusters import optimal_label_cover
from ratemesh.graph.topology import Topology
from ratemesh.methods.alg3 import Alg3, ClusterPlan


@dataclass(frozen=True)
class Clustering:
    """Clusters of an experiment's nodes.

    Attributes:
        clusters: 𝒱^1, …, 𝒱^S.
        labels: K_i of every node.
        counts: (N, K) samples per node and class.
        balanced: whether training weighs all classes of a cluster equally (`local.balance`).
        bytes_sent: payload bytes of every node a round, by Algorithm 3's formula (Remark 4).
        memory: what the nodes' networks and their replicas take.
        classes: names of the K classes.
    """

    clusters: list[Cluster]
    labels: list[tuple[int, ...]]
    counts: Tensor
    topology: Topology
    balanced: bool
    bytes_sent: list[int]
    memory: Memory
    classes: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, *, optimal: bool = False, at_least: int = 1) -> "Clustering":
        """Cluster the nodes of a plan by the labels that they have samples of."""
        labels, K = plan.labels(), plan.data.num_classes
        if optimal:
            clusters = optimal_label_cover(labels, plan.topology, K, at_least=at_least)
        else:
            clusters = _alg3(plan).clusters(labels, plan.topology, K)
        return cls(
            clusters,
            labels,
            plan.counts(),
            plan.topology,
            plan.config.local.balance,
            _bytes_sent(plan, clusters, labels),
            plan.memory(clusters),
            plan.data.classes,
        )

    @property
    def memberships(self) -> list[int]:
        """S_i of every node."""
        return memberships(self.clusters, len(self.labels))

    @property
    def replicas(self) -> int:
        """Virtual nodes beyond one a node."""
        return replicas(self.clusters, len(self.labels))

    @property
    def lacking(self) -> list[tuple[int, int]]:
        """Edges between members that the graph lacks and Algorithm 3 needs."""
        return lacking_edges(self.clusters, self.topology.edges)

    @property
    def hops(self) -> list[float]:
        """Hops inside every cluster; infinite where members cannot reach each other."""
        distances = self.topology.distances()
        return [hops_inside(cluster, distances) for cluster in self.clusters]

    @property
    def proportions(self) -> Proportions:
        """Class proportions of the samples that clusters hold."""
        return Proportions.of(self.counts, self.clusters)

    @property
    def trained(self) -> Proportions:
        """Class proportions as training weighs them: what Assumption 4 asks of."""
        return Proportions.of(self.counts, self.clusters, balanced=self.balanced)


def _alg3(plan: Plan) -> Alg3:
    """Return Algorithm 3 as configured, or as it is by default."""
    method = plan.config.method
    return method if isinstance(method, Alg3) else Alg3()


def _bytes_sent(plan: Plan, clusters: Sequence[Cluster], labels: Sequence[Sequence[int]]) -> list[int]:
    """Return what every node sends a round by Algorithm 3."""
    agents = [ClusterPlan(i, plan.topology.neighbours(i), labels, clusters) for i in range(len(labels))]
    alg3, K, d = _alg3(plan), plan.data.num_classes, plan.config.d
    return [alg3.bytes_within(agent, len(labels[agent.index]), K, d) for agent in agents]
