"""Algorithm 3: block coordinate descent in clusters of nodes with different labels, and its switches.

A cluster is a set of agents that together hold every label (Algorithm 2, `graph.clusters`). An agent in S_i clusters
takes part as S_i virtual nodes, its replicas, which are averaged at the end of a round; between rounds they are equal,
so an agent keeps one V_i and one Y_i and counts S_i times. The line numbers count as in the typeset Algorithm 3.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ratemesh.core.consensus import coupled_loss, dual_step, fold_neighbours
from ratemesh.core.lagrangian import Coupling, lagrangian
from ratemesh.core.rates import ConsensusTerms
from ratemesh.core.running import RunningStats
from ratemesh.core.stats import ClassStats
from ratemesh.core.theory import Proportions
from ratemesh.encoders import Encoder
from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.graph.clusters import Cluster, label_cover_clusters, lacking_edges, split_in_words
from ratemesh.messages.statistics import StatsMessage, Stream, message_bytes
from ratemesh.methods.alg1 import Alg1, Alg1Program
from ratemesh.training.cluster_plan import ClusterPlan
from ratemesh.training.local import LocalSpec, LocalTrainer
from ratemesh.training.partial_gauge import PartialGauge, PartialGaugeSpec
from ratemesh.training.protocol import Exchange, Node, Round
from ratemesh.training.switches import Supervision, warm_start, with_prior


class Alg3(Alg1):
    """Algorithm 3 for nodes with different labels: clusters, replicas, and a gauge for partial labels."""

    gauge: PartialGaugeSpec = PartialGaugeSpec()

    def program(self, node: Node) -> "Alg3Program":
        """Return agent i's part."""
        return Alg3Program(self, node)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of |K_i| classes (Remark 4) and what goes with them, to all that get them.

        Once to every peer, and once more, without means and hops, to every cluster member whose turn is later. Packed,
        a class has d(d+1)/2 floats; with a rank chosen by energy the bytes are the most there can be, rank d.
        """
        held, d = len(node.labels[node.index]), node.encoder.d
        return self.bytes_within(ClusterPlan.of(node), held, node.num_classes, d)

    def bytes_within(self, plan: ClusterPlan, held: int, K: int, d: int) -> int:
        """Return what an agent that holds so many of K classes sends a round, in whatever clusters."""
        told = message_bytes(self.codec, held, K, d, means=self.gauge.uses_means, frame=self.gauge.enabled)
        turn = message_bytes(self.codec, held, K, d, means=False, frame=False)
        return len(plan.peers) * told + sum(len(plan.after(s)) for s in plan.mine) * turn

    def label(self, topology: Topology) -> str:
        """Name the configuration and the switches that are on."""
        return super().label(topology).replace("Algorithm 1", "Algorithm 3")

    @property
    def graph_may_change(self) -> bool:
        """No: who takes turns with whom is settled before the first round."""
        return False

    def clusters(self, labels: Sequence[Sequence[int]], num_classes: int) -> list[Cluster]:
        """Return the clusters of Algorithm 2."""
        return label_cover_clusters(labels, num_classes)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse a graph on which clusters cannot talk; return what the theory does not cover."""
        self.warm_start.check(counts, local)
        if self.robust.fold != "off":
            raise InputError(
                f"method.robust.fold must be 'off' for method 'alg3'; got '{self.robust.fold}'. A class that one "
                "cluster member holds alone enters the objective as that member tells it: there is no majority to ask."
            )
        labels = [tuple(row.nonzero().flatten().tolist()) for row in counts]
        clusters = self.clusters(labels, counts.shape[1])
        if lacking := lacking_edges(clusters, topology.edges):
            raise InputError(
                f"graph must join the members of every cluster for method 'alg3'; clusters {clusters} lack the edges "
                f"{lacking}. Use graph.name = 'complete', or another graph with these edges."
            )
        apart = split_in_words(topology, labels)
        found = Proportions.of(counts, clusters, balanced=local.balance)
        if found.holds:
            return apart
        return [
            *apart,
            f"Assumption 4 does not hold: class proportions differ between clusters by up to {found.gap:.3f}. Theorem "
            "3 does not cover this; `ratemesh clusters` shows where, local.balance = true weighs all classes equally.",
        ]


def turn_tag(s: int) -> str:
    """Return the tag of what is handed over inside cluster s."""
    return f"turn in cluster {s}"


class Replica:
    """Agent i as a member of one cluster: an encoder, perhaps with a head, and its optimiser."""

    def __init__(self, encoder: Encoder, node: Node, cross_entropy: float, s: int) -> None:
        self.encoder = encoder
        self.supervision = Supervision(cross_entropy, encoder, node.num_classes)
        self.trainer = LocalTrainer(self.supervision.modules, node.local, node.seed, node.index, f"alg3 cluster {s}")


class Alg3Program(Alg1Program):
    """Agent i's state and rounds."""

    gauge: PartialGauge

    def __init__(self, spec: Alg3, node: Node) -> None:
        self.plan = ClusterPlan.of(node)
        self.known: Mapping[int, ClassStats] = {}
        super().__init__(spec, node)  # V^(0), Y^(0) = 0
        self.gauge = PartialGauge(spec.gauge, root=node.index == 0)
        self.turns = {s: self._stream() for s in self.plan.mine}
        copies = [node.encoder, *(copy.deepcopy(node.encoder) for _ in self.plan.mine[1:])]
        self.replicas = {
            s: Replica(encoder, node, spec.cross_entropy, s) for s, encoder in zip(self.plan.mine, copies, strict=True)
        }

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far, all replicas together."""
        return sum(replica.trainer.sample_passes for replica in self.replicas.values())

    def round(self, t: int) -> Round:
        """Play round t of Algorithm 3."""
        spec, plan = self.spec, self.plan
        strength = spec.coupling.at(t)
        if not self.sample_passes and spec.warm_start.epochs:  # in round 1, or when a node joins later
            self._warm_up()  # ours
        exchange, told = self._exchange(plan.peers)
        peers = yield exchange  # V_{i,k}^(t-1), k in K_i, to all who share a label or a cluster
        V_nbr = self._virtual({j: peer.stats for j, peer in peers.items()}, told)
        # As told on both ends of an edge, so that Y_ij = −Y_ji and T_ij = T_ji whatever the codec loses.
        gamma, w = strength * spec.gamma, spec.coupling.weights(told, V_nbr, strength * spec.gamma, spec.eps2)  # w ours
        self.Y = dual_step(self.Y, told, V_nbr, strength * spec.rho, w)  # (R2_1a)
        coupling = Coupling.of(self.Y, *fold_neighbours(told, V_nbr, w), gamma)
        start = with_prior(self.stats, fold_neighbours(self.stats, V_nbr), spec.running.prior)
        known = {j: peer.stats for j, peer in peers.items()}
        for s in plan.mine:  # clusters in parallel, turns inside a cluster
            if plan.before(s):
                fresh = yield Exchange(turn_tag(s), {}, frozenset(plan.before(s)))
                known |= {j: message.stats for j, message in fresh.items()}
            stats = self._turn(t, s, self._mix(s, known, start), coupling)
            if plan.after(s):
                payload, _ = self.turns[s].pack(StatsMessage(stats))
                yield Exchange(turn_tag(s), dict.fromkeys(plan.after(s), payload), frozenset())
        self._average_replicas()
        self.stats = self._shard_stats(t)  # recomputed after the averaging
        self._turn_gauge(peers, known, coupling)  # ours
        self.known = known
        return self._log([peer.stats for peer in peers.values()], coupling, strength * w)

    def _warm_up(self) -> None:
        """Train with cross-entropy before anything is sent; the replicas start from the result."""
        first, *others = self.replicas.values()
        first.trainer.sample_passes += warm_start(self.spec.warm_start, self.node)
        for replica in others:
            replica.encoder.load_state_dict(first.encoder.state_dict())
        self.stats = self._shard_stats(0)

    def _streams(self) -> dict[str, Stream]:
        """Return what reads messages, by tag."""
        return {"stats": self.stream, **{turn_tag(s): stream for s, stream in self.turns.items()}}

    def _virtual(self, stats: Mapping[int, ClassStats], told: ClassStats) -> list[ClassStats]:
        """Return the statistics of all other virtual nodes: S_j of every peer, S_i − 1 of this agent."""
        S = self.plan.S
        return [stats[j] for j in stats for _ in range(S[j])] + [told] * (S[self.node.index] - 1)

    def _mix(self, s: int, known: Mapping[int, ClassStats], own: ClassStats | None = None) -> ClassStats:
        """Return cluster s as agent i optimises it: counts m^s, own classes its own, the others the members'."""
        mine = self.stats if own is None else own
        members = [known[j].scaled(1 / self.plan.S[j]) for j in self._present(s, known)]
        total = ClassStats.sum([mine.scaled(1 / self.plan.S[self.node.index]), *members])  # m^s
        V = torch.where(mine.held[:, None, None], mine.V, total.V)  # common classes are replaced by the local one
        return self._weighed(ClassStats.without_means(V, total.m))  # balanced: 1/K in every cluster, Assumption 4

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

    def _weight(self, mixed: ClassStats) -> float:
        """w, the weight of a cluster's ΔR: m^s/m as in (opt2), or 1."""
        m = len(self.node.y) / self.node.share
        return float(mixed.m.sum()) / m if self.spec.objective_scale == "paper" else 1.0

    def _turn(self, t: int, s: int, mixed: ClassStats, coupling: Coupling) -> ClassStats:
        """Train the replica in cluster s on (R2_4) for T' steps; return its statistics."""
        spec, node, replica = self.spec, self.node, self.replicas[s]
        running = RunningStats(mixed, spec.running.beta, spec.running.refresh, fixed=True)
        scale = self._weight(mixed)

        def objective(X: Tensor, y: Tensor) -> Tensor:
            Z = replica.encoder(X)
            terms = coupled_loss(Z, y, coupling, eps2=spec.eps2, scale=scale, running=running)
            return terms.total + replica.supervision.loss(Z, y)

        replica.trainer.train(node.X, node.y, objective, t)
        return replica.trainer.stats(replica.encoder, node.X, node.y, node.num_classes, t)

    @torch.no_grad()
    def _average_replicas(self) -> None:
        """Set every replica to the mean of all; they share one gauge, so the mean is taken in one frame."""
        if len(self.replicas) > 1:
            trained = [replica.supervision.modules for replica in self.replicas.values()]
            states = [modules.state_dict() for modules in trained]
            mean = {name: _mean([state[name] for state in states]) for name in states[0]}
            for modules in trained:
                modules.load_state_dict(mean)

    def _turn_gauge(
        self, peers: Mapping[int, StatsMessage], known: Mapping[int, ClassStats], coupling: Coupling
    ) -> None:
        """Turn towards the peers, unless that would lower the objective of the agent's clusters."""
        encoders = [replica.encoder for replica in self.replicas.values()]
        self.stats = self.gauge.turn_towards(
            encoders, self.stats, peers, self.node.index, lambda own: self._objective(own, known, coupling)
        )

    def _objective(self, own: ClassStats, known: Mapping[int, ClassStats], coupling: Coupling) -> float:
        """Return what the agent minimises, over all its clusters, if its own statistics were `own`."""
        mixed = [self._mix(s, known, own) for s in self.plan.mine]
        return sum(float(lagrangian(m, coupling, self.spec.eps2, self._weight(m))[0].total) for m in mixed)

    def _terms(self, coupling: Coupling) -> ConsensusTerms:
        """Return the terms of (R2_4) in the agent's first cluster, with what it last heard of the members."""
        mixed = self._mix(self.plan.mine[0], self.known)
        return lagrangian(mixed, coupling, self.spec.eps2, self._weight(mixed))[0]

    def state(self) -> dict[str, Tensor]:
        """Return replicas, duals, statistics, frame, and what the codec remembers."""
        own = {"Y": self.Y, "V": self.stats.V, "mu": self.stats.mu, "m": self.stats.m}
        replicas = {
            f"cluster.{s}.{name}": value
            for s, replica in self.replicas.items()
            for name, value in replica.trainer.state().items()
        }
        told = self.stream.state("told.stats")
        for s, stream in self.turns.items():
            told |= stream.state(f"told.turn {s}")
        return {**replicas, **own, "hops": torch.tensor(self.gauge.hops), **told}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        for s, replica in self.replicas.items():
            prefix = f"cluster.{s}."
            replica.trainer.load_state(
                {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            )
        self.Y = state["Y"]
        self.stats = ClassStats(state["V"], state["mu"], state["m"])
        self.gauge.hops = int(state["hops"])
        self.stream.load_state(state, "told.stats")
        for s, stream in self.turns.items():
            stream.load_state(state, f"told.turn {s}")


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors of one shape; counters of batch normalisation stay whole numbers."""
    mean: Tensor = torch.stack([v.double() for v in values]).mean(0).to(values[0].dtype)
    return mean
