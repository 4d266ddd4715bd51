"""Algorithm 1: distributed representation learning for i.i.d. data, and its switches.

Centralised MCR² is this on one node, Independent MCR² is this on the empty graph. The line numbers in `Alg1Program`
count as in the typeset Algorithm 1. Rounds exchange first: the same iterates as transmitting at the end, and one
transmission fewer.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ratemesh.core.consensus import Robust, majority
from ratemesh.core.lagrangian import Coupling, lagrangian
from ratemesh.graph import Topology
from ratemesh.messages.statistics import StatsMessage
from ratemesh.specs import Spec
from ratemesh.training.coupled import CoupledSpec, Edges, Learner, weighed
from ratemesh.training.gauge import Gauge
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Exchange, Inbox, MethodSpec, Node, NodeProgram, Round, RoundLog


class RobustSpec(Spec):
    """Against neighbours that send well-formed lies (see `core.consensus.majority`)."""

    fold: Robust = Field("off", description="median or trimmed: what most neighbours say, instead of what each says")
    drop: int = Field(1, ge=1, description="trimmed: neighbours left out of a class, never half of them or more")

    def heard(self, peers: Sequence[StatsMessage]) -> list[StatsMessage]:
        """Return the messages as they enter the mathematics."""
        told = majority([peer.stats for peer in peers], self.fold, self.drop)
        return [replace(peer, stats=stats) for peer, stats in zip(peers, told, strict=True)]

    def label(self) -> str:
        """Name the switch if it is on."""
        return "" if self.fold == "off" else f"{self.fold} over neighbours"


class Alg1(CoupledSpec):
    """Algorithm 1 with gauge alignment, running statistics and late coupling; preset "paper" is as printed."""

    title: ClassVar[str] = "Algorithm 1"
    robust: RobustSpec = RobustSpec()

    def program(self, node: Node) -> "Alg1Program":
        """Return node i's part."""
        return Alg1Program(self, node)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse what cannot be trained; return what the theory does not cover."""
        return [*MethodSpec.check(self, topology, counts, local), *super().check(topology, counts, local)]

    def bytes_sent(self, node: Node) -> int:
        """Return |N_i| times the bytes of K classes: |N_i|·K·d(d+1)/2 floats if packed (Remark 2), and the rest."""
        K = node.num_classes
        return len(node.neighbours) * self.stats_bytes(K, K, node.encoder.d)

    def edge_labels(self) -> list[str]:
        """Name the switches that matter on edges only."""
        return [*super().edge_labels(), self.robust.label()]


class Alg1Program(NodeProgram):
    """Node i's state and rounds."""

    def __init__(self, spec: Alg1, node: Node) -> None:
        self.spec = spec
        self.learner = Learner(spec, node.encoder, node, "alg1")
        super().__init__(node, {"": self.learner.trainer}, spec.sketched(node))  # V^(0), l. 3
        self.gauge = Gauge(spec.gauge, root=node.index == 0)
        self.edges = self.kept["edges."] = Edges(spec, self.gauge, node.index, self.stats)  # Y^(0) = 0, l. 2
        self.readers["stats"] = self.edges.stream.read

    @property
    def _scale(self) -> float:
        """w, the weight of ΔR: m_i/m as in (opt1), or 1."""
        return self.node.share if self.spec.objective_scale == "paper" else 1.0

    def round(self, t: int) -> Round:
        """Play round t of Algorithm 1."""
        peers, coupling = yield from self.learn(t)
        return self.conclude(t, peers, coupling)

    def learn(self, t: int) -> Generator[Exchange, Inbox, tuple[list[StatsMessage], Coupling]]:
        """Exchange statistics, step the duals and train; return what was heard, and what tied the node to it."""
        spec, node = self.spec, self.node
        if not self.sample_passes and spec.warm_start.epochs:  # ours: in round 1, or when a node joins later
            self.learner.warm_up()
            self.stats = self.shard_stats(0)
        inbox = yield self.edges.exchange(self.stats, node.neighbours)  # l. 3 / 15: transmit V_i^(t-1)
        peers = spec.robust.heard(list(inbox.values()))  # ours
        V_nbr = [peer.stats for peer in peers]
        coupling = self.edges.step(t, V_nbr)  # l. 7–8, (R1_2a) and (R1_T)
        start = self.edges.prior(self.stats, V_nbr)  # ours
        pull = self.learner.pull(t, V_nbr, self.H)  # ours
        self.learner.descend(t, coupling, weighed(start, node.local), self._scale, pull)  # l. 9–12, (R1_2c)
        return peers, coupling

    def conclude(self, t: int, peers: Sequence[StatsMessage], coupling: Coupling) -> RoundLog:
        """Compute the statistics that the next round begins with, and log the terms of (lagran1_2) at them."""
        self.stats = self.shard_stats(t)  # l. 14–15
        self.stats = self.gauge.turn(self.encoder, self.stats, peers)  # ours
        terms, _ = lagrangian(weighed(self.stats, self.node.local), coupling, self.spec.eps2, self._scale)
        return self.edges.log(self.stats, terms, [peer.stats for peer in peers])
