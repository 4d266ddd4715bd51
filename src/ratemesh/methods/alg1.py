"""Algorithm 1: distributed representation learning for i.i.d. data, and its switches.

Centralised MCR² is this on one node, Independent MCR² is this on the empty graph. The line numbers in
`Alg1Program.round` count as in the typeset Algorithm 1. Rounds exchange first: the same iterates as
transmitting at the end, and one transmission fewer.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ratemesh.core.consensus import coupled_loss, dual_step, fold_neighbours
from ratemesh.core.lagrangian import Coupling, lagrangian
from ratemesh.core.rates import ConsensusTerms
from ratemesh.core.running import RunningStats
from ratemesh.core.stats import ClassStats
from ratemesh.graph import Topology
from ratemesh.graph.clusters import split_in_words
from ratemesh.messages.codecs import PACKED, CodecField
from ratemesh.messages.formats import Payload, refused
from ratemesh.messages.statistics import StatsMessage, Stream, message_bytes
from ratemesh.metrics.geometry import overlap, relative_distance, share_class
from ratemesh.training.averaging import WeightsMessage
from ratemesh.training.local import LocalSpec, LocalTrainer
from ratemesh.training.protocol import Exchange, Inbox, MethodSpec, Node, Round, RoundLog
from ratemesh.training.switches import (
    CouplingSpec,
    Gauge,
    GaugeSpec,
    RobustSpec,
    RunningSpec,
    Supervision,
    WarmStartSpec,
    warm_start,
    with_prior,
)


class Alg1(MethodSpec):
    """Algorithm 1 with gauge alignment, running statistics and late coupling; preset "paper" is as printed."""

    rho: float = Field(0.1, ge=0, description="ρ, step size of the duals (R1_2a)")
    gamma: float = Field(1.0, ge=0, description="γ, penalty parameter (lagran1_2)")
    objective_scale: Literal["paper", "local"] = Field("local", description="weight of ΔR: m_i/m, or 1")
    coupling: CouplingSpec = CouplingSpec()
    running: RunningSpec = RunningSpec()
    gauge: GaugeSpec = GaugeSpec()
    warm_start: WarmStartSpec = WarmStartSpec()
    cross_entropy: float = Field(0.0, ge=0, description="weight of a local cross-entropy beside −ΔR; 0 is off (paper)")
    robust: RobustSpec = RobustSpec()
    codec: CodecField = Field(PACKED, description="how statistics travel: packed, half, int8, lowrank or delta")

    def program(self, node: Node) -> "Alg1Program":
        """Return node i's part."""
        return Alg1Program(self, node)

    @property
    def epochs_before(self) -> int:
        """Local epochs of the warm start."""
        return self.warm_start.epochs

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse a warm start whose batches cannot be balanced; return what the theory does not cover."""
        self.warm_start.check(counts, local)
        labels = [row.nonzero().flatten().tolist() for row in counts]
        return [*super().check(topology, counts, local), *split_in_words(topology, labels)]

    def bytes_sent(self, node: Node) -> int:
        """Return |N_i| times the bytes of K classes, K counts and what the gauge adds.

        Packed, that is |N_i|·K·d(d+1)/2 floats (Remark 2, one triangle) and the rest; see `codecs` for the others. With
        a rank chosen by energy it is the most there can be, rank d.
        """
        K, d = node.num_classes, node.encoder.d
        return len(node.neighbours) * message_bytes(
            self.codec, K, K, d, means=self.gauge.uses_means, frame=self.gauge.enabled
        )

    @property
    def bytes_vary(self) -> bool:
        """Whether the codec chooses its rank by itself."""
        return not self.codec.fixed_size

    @property
    def graph_may_change(self) -> bool:
        """Yes, unless the codec sends differences to what every peer has heard so far."""
        return not self.needs_every_message

    @property
    def needs_every_message(self) -> bool:
        """Whether the codec sends differences."""
        return self.codec.remembers

    def label(self, topology: Topology) -> str:
        """Name the configuration and the switches that are on; without edges nothing can be coupled."""
        alone = [self.running.label(), self.warm_start.label(), "cross-entropy" if self.cross_entropy else ""]
        if not topology.edges:
            return " + ".join(["Centralised MCR²" if topology.nodes == 1 else "Independent MCR²", *filter(None, alone)])
        together = [self.gauge.label(), self.coupling.label(), self.robust.label()]
        return " + ".join(["Algorithm 1", *filter(None, [*together, *alone, self.codec.label()])])


class Alg1Program:
    """Node i's state and rounds."""

    def __init__(self, spec: Alg1, node: Node) -> None:
        self.spec = spec
        self.node = node
        self.encoder = node.encoder
        self.supervision = Supervision(spec.cross_entropy, node.encoder, node.num_classes)
        self.trainer = LocalTrainer(self.supervision.modules, node.local, node.seed, node.index, "alg1")
        self.gauge = Gauge(spec.gauge, root=node.index == 0)
        self.stats = self._shard_stats(0)  # V^(0), l. 3
        self.Y = torch.zeros_like(self.stats.V)  # Y^(0) = 0, l. 2
        self.stream = self._stream(means=spec.gauge.uses_means, frame=spec.gauge.enabled)

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far."""
        return self.trainer.sample_passes

    @property
    def _scale(self) -> float:
        """w, the weight of ΔR: m_i/m as in (opt1), or 1."""
        return self.node.share if self.spec.objective_scale == "paper" else 1.0

    def round(self, t: int) -> Round:
        """Play round t of Algorithm 1."""
        spec, node = self.spec, self.node
        strength = spec.coupling.at(t)
        if not self.sample_passes and spec.warm_start.epochs:  # in round 1, or when a node joins later
            self._warm_up()  # ours
        exchange, told = self._exchange(node.neighbours)
        inbox = yield exchange  # l. 3 / 15: transmit V_i^(t-1) to all neighbours
        peers = spec.robust.heard(list(inbox.values()))
        V_nbr = [peer.stats for peer in peers]
        # As told on both ends of an edge, so that Y_ij = −Y_ji and T_ij = T_ji whatever the codec loses.
        gamma, w = strength * spec.gamma, spec.coupling.weights(told, V_nbr, strength * spec.gamma, spec.eps2)  # w ours
        self.Y = dual_step(self.Y, told, V_nbr, strength * spec.rho, w)  # l. 7–8, (R1_2a)
        coupling = Coupling.of(self.Y, *fold_neighbours(told, V_nbr, w), gamma)  # (R1_T)
        start = with_prior(self.stats, fold_neighbours(self.stats, V_nbr), spec.running.prior)  # ours
        self._train(t, coupling, start)  # l. 9–12, (R1_2c)
        yield from self._share()  # ours, in alg1_weights; here nothing
        self.stats = self._shard_stats(t)  # l. 14–15
        self.stats = self.gauge.turn(self.encoder, self.stats, peers)  # ours
        return self._log(V_nbr, coupling, strength * w)

    def read(self, tag: str, sender: int, payload: Payload) -> StatsMessage | WeightsMessage:
        """Return a neighbour's statistics; refuse what must not enter the mathematics."""
        stream = self._streams().get(tag)
        if stream is None:
            raise refused(sender, f"'{tag}' is no message of this method")
        return stream.read(payload, sender)

    def _streams(self) -> dict[str, Stream]:
        """Return what reads messages, by tag."""
        return {"stats": self.stream}

    def _warm_up(self) -> None:
        """Train with cross-entropy before anything is sent."""
        self.trainer.sample_passes += warm_start(self.spec.warm_start, self.node)
        self.stats = self._shard_stats(0)

    def _shard_stats(self, t: int) -> ClassStats:
        node = self.node
        return self.trainer.stats(self.encoder, node.X, node.y, node.num_classes, t)

    def _stream(self, *, means: bool = False, frame: bool = False) -> Stream:
        return Stream(self.spec.codec, self.node.index, self.stats, means=means, frame=frame)

    def _exchange(self, peers: Sequence[int]) -> tuple[Exchange, ClassStats]:
        """Return what goes to all peers and comes from them, and the own statistics as the peers will read them."""
        payload, told = self.stream.pack(StatsMessage(self.stats, self.gauge.hops))
        return Exchange("stats", dict.fromkeys(peers, payload), frozenset(peers)), told

    def _train(self, t: int, coupling: Coupling, start: ClassStats) -> None:
        """Minimise the local augmented Lagrangian (lagran1_2) for T' steps; running statistics begin at `start`."""
        spec, node = self.spec, self.node
        running = RunningStats(self._weighed(start), spec.running.beta, spec.running.refresh)

        def objective(X: Tensor, y: Tensor) -> Tensor:
            Z = self.encoder(X)
            terms = coupled_loss(Z, y, coupling, eps2=spec.eps2, scale=self._scale, running=running)
            return terms.total + self.supervision.loss(Z, y)

        self.trainer.train(node.X, node.y, objective, t)

    def _share(self) -> Generator[Exchange, Inbox]:
        """Exchange what else peers may know after training: nothing."""
        yield from ()

    def _log(self, V_nbr: Sequence[ClassStats], coupling: Coupling, pull: Tensor) -> RoundLog:
        """Say what this node knows: the terms of (lagran1_2) on its whole shard; how far neighbours are, and pull."""
        terms = self._terms(coupling)
        distances = [relative_distance(self.stats, other) for other in V_nbr if share_class(self.stats, other)]
        return {
            "expand": float(terms.expand),
            "compress": float(terms.compress),
            "reduction": float(terms.reduction),
            "dual": float(terms.dual),
            "penalty": float(terms.penalty),
            "total": float(terms.total),
            "disagreement": sum(distances) / len(distances) if distances else float("nan"),
            "overlap": overlap(self.stats),
            "coupling": float(pull.mean()) if len(pull) else 0.0,
        }

    def _terms(self, coupling: Coupling) -> ConsensusTerms:
        """Return the terms of (lagran1_2) at the whole shard's statistics."""
        return lagrangian(self._weighed(self.stats), coupling, self.spec.eps2, self._scale)[0]

    def _weighed(self, stats: ClassStats) -> ClassStats:
        """Return statistics as the loss weighs their classes: by samples, or equally where batches are balanced.

        Only the loss: what is sent keeps the true counts, which say how much a node knows of a class.
        """
        return stats.balanced() if self.node.local.balance else stats

    def state(self) -> dict[str, Tensor]:
        """Return encoder, optimiser, duals, statistics, frame, and what the codec remembers."""
        own = {"Y": self.Y, "V": self.stats.V, "mu": self.stats.mu, "m": self.stats.m}
        return {**self.trainer.state(), **own, "hops": torch.tensor(self.gauge.hops), **self.stream.state("told.stats")}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.trainer.load_state(state)
        self.Y = state["Y"]
        self.stats = ClassStats(state["V"], state["mu"], state["m"])
        self.gauge.hops = int(state["hops"])
        self.stream.load_state(state, "told.stats")
