"""Algorithm 3: block coordinate descent in clusters of nodes with different labels, and its switches.

A cluster is a set of agents that together hold every label (Algorithm 2, `graph.clusters`). An agent in S_i clusters
takes part as S_i virtual nodes, its replicas, which are averaged at the end of a round; between rounds they are equal,
so an agent keeps one V_i and one Y_i and counts S_i times. The line numbers count as in the typeset Algorithm 3.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ratemesh.core.lagrangian import Coupling, lagrangian
from ratemesh.core.rates import ConsensusTerms
from ratemesh.core.stats import ClassStats
from ratemesh.core.theory import Proportions
from ratemesh.devices import precise
from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.graph.clusters import Cluster, lacking_edges, memberships
from ratemesh.graph.optimal_clusters import ClusterRule, clusters_by
from ratemesh.messages.statistics import StatsMessage, Stream, message_bytes
from ratemesh.training.coupled import CoupledSpec, Edges, Learner, weighed
from ratemesh.training.gauge import PartialGauge, PartialGaugeSpec
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Exchange, MessageContract, Node, NodeProgram, Round
from ratemesh.training.sketched import SketchPull


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


class Alg3(CoupledSpec):
    """Algorithm 3 for nodes with different labels: clusters, replicas, and a gauge for partial labels."""

    title: ClassVar[str] = "Algorithm 3"
    gauge: PartialGaugeSpec = PartialGaugeSpec()
    clustering: ClusterRule = Field(
        "printed", description="clusters of Algorithm 2 as printed, with the fewest-replicas, or of the nearest nodes"
    )

    def program(self, node: Node) -> "Alg3Program":
        """Return agent i's part."""
        return Alg3Program(self, node)

    @property
    def messages(self) -> MessageContract:
        """Who takes turns with whom is settled before the first round."""
        return MessageContract(needs_every=self.codec.remembers)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of |K_i| classes (Remark 4) and what goes with them, to all that get them."""
        held, d = len(node.labels[node.index]), node.encoder.d
        return self.bytes_within(ClusterPlan.of(node), held, node.num_classes, d)

    def bytes_within(self, plan: ClusterPlan, held: int, K: int, d: int) -> int:
        """Return what an agent that holds so many of K classes sends a round, in whatever clusters.

        Once to every peer, and once more, without means and hops, to every cluster member whose turn is later.
        """
        turn = message_bytes(self.codec, held, K, d, means=False, frame=False)
        return len(plan.peers) * self.stats_bytes(held, K, d) + sum(len(plan.after(s)) for s in plan.mine) * turn

    def edge_labels(self) -> list[str]:
        """Name also a rule of clusters that is not the printed one."""
        return ["" if self.clustering == "printed" else f"{self.clustering} clusters", *super().edge_labels()]

    def clusters(self, labels: Sequence[Sequence[int]], topology: Topology, num_classes: int) -> list[Cluster]:
        """Return the clusters of Algorithm 2, or of the rule that takes its place."""
        return clusters_by(self.clustering, labels, topology, num_classes)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse a graph on which clusters cannot talk; return what the theory does not cover."""
        apart = super().check(topology, counts, local)
        labels = [tuple(row.nonzero().flatten().tolist()) for row in counts]
        clusters = self.clusters(labels, topology, counts.shape[1])
        if lacking := lacking_edges(clusters, topology.edges):
            raise InputError(
                f"graph must join the members of every cluster for method 'alg3'; clusters {clusters} lack the edges "
                f"{lacking}. Use graph.name = 'complete', another graph with these edges, or "
                "method.clustering = 'nearest'."
            )
        found = Proportions.of(counts, clusters, balanced=local.balance)
        if found.holds:
            return apart
        return [
            *apart,
            f"Assumption 4 does not hold: class proportions differ between clusters by up to {found.gap:.3f}. Theorem "
            "3 does not cover this; `ratemesh clusters` shows where, local.balance = true weighs all classes equally.",
        ]


class Alg3Program(NodeProgram):
    """Agent i's state and rounds.

    Attributes:
        replicas: by cluster, the agent as a member of it: an encoder and its optimiser.
        turns: by cluster, the messages that are handed over inside it; `turn_tag` names them.
    """

    def __init__(self, spec: Alg3, node: Node) -> None:
        self.spec = spec
        self.plan = ClusterPlan.of(node)
        self.replicas: dict[int, Learner] = {}
        for s in self.plan.mine:
            encoder = copy.deepcopy(node.encoder) if self.replicas else node.encoder
            self.replicas[s] = Learner(spec, encoder, node, f"alg3 cluster {s}")
        trainers = {f"cluster.{s}.": replica.trainer for s, replica in self.replicas.items()}
        super().__init__(node, trainers, spec.sketched(node))  # V^(0)
        self.gauge = PartialGauge(spec.gauge, root=node.index == 0)
        self.edges = self.kept["edges."] = Edges(spec, self.gauge, node.index, self.stats)  # Y^(0) = 0
        self.turns = {s: Stream(spec.codec, node.index, self.stats) for s in self.plan.mine}
        self.kept |= {f"turn {s}.": stream for s, stream in self.turns.items()}
        self.readers["stats"] = self.edges.stream.read
        self.readers |= {turn_tag(s): stream.read for s, stream in self.turns.items()}

    def round(self, t: int) -> Round:
        """Play round t of Algorithm 3."""
        spec, plan = self.spec, self.plan
        if not self.sample_passes and spec.warm_start.epochs:  # ours: in round 1, or when a node joins later
            self._warm_up()
        # V_{i,k}^(t-1), k in K_i, to all who share a label or a cluster
        peers = yield self.edges.exchange(self.stats, plan.peers)
        known = {j: peer.stats for j, peer in peers.items()}
        V_nbr = self._virtual(known, self.edges.told)
        coupling = self.edges.step(t, V_nbr)  # (R2_1a)
        start = self.edges.prior(self.stats, V_nbr)  # ours
        for s in plan.mine:  # clusters in parallel, turns inside a cluster
            if plan.before(s):
                fresh = yield Exchange(turn_tag(s), {}, frozenset(plan.before(s)))
                known |= {j: message.stats for j, message in fresh.items()}
            pull = self.replicas[s].pull(t, [peer.stats for peer in peers.values()], self.H)  # ours
            stats = self._turn(t, s, self._mix(s, known, start), coupling, pull)
            if plan.after(s):
                payload, _ = self.turns[s].pack(StatsMessage(stats))
                yield Exchange(turn_tag(s), dict.fromkeys(plan.after(s), payload), frozenset())
        self._average_replicas()
        self.stats = self.shard_stats(t)  # recomputed after the averaging
        self.stats = self.gauge.turn_towards(  # ours
            [replica.encoder for replica in self.replicas.values()],
            self.stats,
            peers,
            self.node.index,
            lambda own: sum(float(self._terms(s, own, known, coupling).total) for s in plan.mine),
        )
        terms = self._terms(plan.mine[0], self.stats, known, coupling)
        return self.edges.log(self.stats, terms, [peer.stats for peer in peers.values()])

    def _warm_up(self) -> None:
        """Train with cross-entropy before anything is sent; the replicas start from the result."""
        first, *others = self.replicas.values()
        first.warm_up()
        for replica in others:
            replica.encoder.load_state_dict(first.encoder.state_dict())
        self.stats = self.shard_stats(0)

    def _virtual(self, stats: Mapping[int, ClassStats], told: ClassStats) -> list[ClassStats]:
        """Return the statistics of all other virtual nodes: S_j of every peer, S_i − 1 of this agent."""
        S = self.plan.S
        return [stats[j] for j in stats for _ in range(S[j])] + [told] * (S[self.node.index] - 1)

    def _mix(self, s: int, known: Mapping[int, ClassStats], mine: ClassStats) -> ClassStats:
        """Return cluster s as agent i optimises it: counts m^s, own classes as in `mine`, the others the members'."""
        members = [known[j].scaled(1 / self.plan.S[j]) for j in self._present(s, known)]
        total = ClassStats.sum([mine.scaled(1 / self.plan.S[self.node.index]), *members])  # m^s
        V = torch.where(mine.held[:, None, None], mine.V, total.V)  # common classes are replaced by the local one
        mixed = ClassStats.without_means(V, total.m)
        return weighed(mixed, self.node.local)  # balanced: 1/K in every cluster, Assumption 4

    def _present(self, s: int, known: Mapping[int, ClassStats]) -> list[int]:
        """Return the other members of cluster s that were heard, and for one that was not who else has its labels.

        Where no message is lost these are all members. A stand-in is the first known node outside the cluster that
        holds a class which those that are here lack.
        """
        cluster, labels = self.plan.clusters[s], self.node.labels
        here = [j for j in cluster if j != self.node.index and j in known]
        if len(here) == len(cluster) - 1:
            return here
        covered = set(labels[self.node.index]).union(*(labels[j] for j in here))
        for j in sorted(known.keys() - set(cluster)):
            if set(labels[j]) - covered:
                here.append(j)
                covered |= set(labels[j])
        return here

    def _scale(self, mixed: ClassStats) -> float:
        """w, the weight of a cluster's ΔR: m^s/m as in (opt2), or 1."""
        m = len(self.node.y) / self.node.share
        return float(mixed.m.sum()) / m if self.spec.objective_scale == "paper" else 1.0

    def _turn(self, t: int, s: int, mixed: ClassStats, coupling: Coupling, pull: SketchPull | None) -> ClassStats:
        """Train the replica in cluster s on (R2_4) for T' steps; return its statistics."""
        node, replica = self.node, self.replicas[s]
        replica.descend(t, coupling, mixed, self._scale(mixed), pull, fixed=True)
        return replica.trainer.stats(replica.encoder, node.X, node.y, node.num_classes, t)

    @torch.no_grad()
    def _average_replicas(self) -> None:
        """Set every replica to the mean of all; they share one gauge, so the mean is taken in one frame."""
        if len(self.replicas) > 1:
            trained = [replica.modules for replica in self.replicas.values()]
            states = [modules.state_dict() for modules in trained]
            mean = {name: _mean([state[name] for state in states]) for name in states[0]}
            for modules in trained:
                modules.load_state_dict(mean)

    def _terms(self, s: int, own: ClassStats, known: Mapping[int, ClassStats], coupling: Coupling) -> ConsensusTerms:
        """Return the terms of (R2_4) in cluster s if the agent's statistics were `own`, with what it last heard."""
        mixed = self._mix(s, known, own)
        return lagrangian(mixed, coupling, self.spec.eps2, self._scale(mixed))[0]


def turn_tag(s: int) -> str:
    """Return the tag of what is handed over inside cluster s."""
    return f"turn in cluster {s}"


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors of one shape; counters of batch normalisation stay whole numbers."""
    mean: Tensor = torch.stack([precise(v) for v in values]).mean(0).to(values[0].dtype)
    return mean
