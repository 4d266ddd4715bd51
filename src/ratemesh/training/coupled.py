"""What Algorithms 1 and 3 share: settings, what ties a node to its neighbours, and what trains an encoder.

The small tables of settings are what ratemesh adds to the printed algorithms, each a switch; preset "paper" turns all
of them off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from ratemesh.core.consensus import coupled_loss, dual_step, edge_weights, fold_neighbours
from ratemesh.core.lagrangian import Coupling, RunningStats
from ratemesh.core.rates import ConsensusTerms
from ratemesh.core.stats import ClassStats
from ratemesh.data.sketches import AUTO, Sketch, SketchField
from ratemesh.encoders import Encoder
from ratemesh.graph import Topology
from ratemesh.graph.clusters import split_in_words
from ratemesh.messages.codecs import PACKED, CodecField
from ratemesh.messages.statistics import StatsMessage, Stream, message_bytes
from ratemesh.metrics.geometry import overlap, relative_distance, share_class
from ratemesh.specs import Spec
from ratemesh.training.classifier import Classifier, supervised
from ratemesh.training.gauge import Gauge, GaugeSpec
from ratemesh.training.local import LocalSpec, LocalTrainer, named, under
from ratemesh.training.protocol import Exchange, MessageContract, MethodSpec, Node, RoundLog
from ratemesh.training.sketched import SketchPull


class CouplingSpec(Spec):
    """How strongly neighbours pull, over the rounds: a factor on γ and ρ.

    "constant": 1 from the first round (paper). "late": 0 before round `start`, then 1. "ramp": 0 before
    `start`, then rising in equal steps to 1 over `ramp` rounds. A penalty at full strength from the first
    round can hold features collapsed before the expansion term gets going; hence "late".

    `balance` bounds the pull of an edge by what its ends have gained (see `core.consensus.edge_weights`): with many
    classes, or encoders that expand slowly, the same γ would outweigh ΔR.
    """

    schedule: Literal["constant", "late", "ramp"] = Field("late", description="constant (paper), late or ramp")
    start: int = Field(5, ge=1, description="first coupled round of late and ramp")
    ramp: int = Field(8, ge=1, description="rounds until full strength (ramp only)")
    balance: float = Field(0.01, ge=0, description="most of ΔR that an edge's penalty may be; 0: no bound (paper)")

    def at(self, t: int) -> float:
        """Return the factor of round t, counted from 1."""
        if self.schedule == "constant":
            return 1.0
        if t < self.start:
            return 0.0
        return 1.0 if self.schedule == "late" else min(1.0, (t - self.start + 1) / self.ramp)

    def label(self) -> str:
        """Name the schedule unless it is the paper's."""
        return "" if self.schedule == "constant" else f"{self.schedule} coupling"


class RunningSpec(Spec):
    """Running class statistics (see `core.lagrangian.RunningStats`)."""

    beta: float = Field(0.1, ge=0, le=1, description="β, weight of a new batch; 1 is the paper's in-batch loss")
    refresh: int = Field(1, ge=1, description="batches between updates of the loss's curvature")
    prior: float = Field(0.0, ge=0, le=1, description="part of the neighbours' statistics in a round's first estimate")

    def label(self) -> str:
        """Name the switch if it is on."""
        return "" if self.beta == 1 else "running statistics"


class WarmStartSpec(Spec):
    """Cross-entropy at the start of the first round, with a head that never leaves the node and is discarded."""

    epochs: int = Field(2, ge=0, description="epochs of cross-entropy; 0 is off")
    batch_size: int = Field(100, ge=2, description="rows of a mini-batch")

    def label(self) -> str:
        """Name the switch if it is on."""
        return "cross-entropy warm start" if self.epochs else ""

    def within(self, local: LocalSpec) -> LocalSpec:
        """Return the settings of local training with this many epochs and rows."""
        return local.model_copy(update={"epochs": self.epochs, "batch_size": self.batch_size})


class CoupledSpec(MethodSpec):
    """Settings of Algorithms 1 and 3: those of the augmented Lagrangian, and the switches."""

    title: ClassVar[str]
    """What tables call the method."""
    rho: float = Field(0.1, ge=0, description="ρ, step size of the duals (R1_2a)")
    gamma: float = Field(1.0, ge=0, description="γ, penalty parameter (lagran1_2)")
    objective_scale: Literal["paper", "local"] = Field("local", description="weight of ΔR: m_i/m, or 1")
    coupling: CouplingSpec = CouplingSpec()
    running: RunningSpec = RunningSpec()
    gauge: GaugeSpec = GaugeSpec()
    sketch: SketchField = Field(AUTO, description="what of a sample's content sketch moments go by")
    sketch_pull: float = Field(
        0.0, ge=0, description="weight of a consensus term on sketch moments, beside the coupling; 0 is off"
    )
    warm_start: WarmStartSpec = WarmStartSpec()
    cross_entropy: float = Field(0.0, ge=0, description="weight of a local cross-entropy beside −ΔR; 0 is off (paper)")
    codec: CodecField = Field(PACKED, description="how statistics travel: packed, half, int8, lowrank or delta")

    def sketched(self, node: Node) -> Tensor | None:
        """Return the sketch (m_i, p) of a node's samples, if the gauge goes by it; all nodes draw the same one."""
        return self.sketch_of(node)(node.X) if self.gauge.uses_sketch else None

    def sketch_of(self, node: Node) -> Sketch:
        """Draw the sketch of samples like the node's."""
        return self.sketch.build(tuple(node.X.shape[1:]), node.seed)

    @property
    def epochs_before(self) -> int:
        """Local epochs of the warm start."""
        return self.warm_start.epochs

    @property
    def messages(self) -> MessageContract:
        """Codecs that send differences need every message, and the same receivers in every round."""
        return MessageContract(fixed_graph=self.codec.remembers, needs_every=self.codec.remembers)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse a warm start whose batches cannot be balanced; say which labels' holders no edges join."""
        if self.warm_start.epochs:
            self.warm_start.within(local).check_balance(counts, "method.warm_start.batch_size")
        return split_in_words(topology, [row.nonzero().flatten().tolist() for row in counts])

    def stats_bytes(self, held: int, num_classes: int, d: int) -> int:
        """Return the bytes of a message about `held` of K classes: V, K counts, and what the gauge adds.

        Packed, V of a class has d(d+1)/2 floats (one triangle); see `codecs` for the others. With a rank chosen by
        energy it is the most there can be, rank d.
        """
        return message_bytes(self.codec, held, num_classes, d, **self.beside())

    def beside(self) -> dict[str, Any]:
        """Return what travels beside V and the counts, for the gauge."""
        gauge = self.gauge
        return {"means": gauge.uses_means, "frame": gauge.enabled, "p": self.sketch.p if gauge.uses_sketch else 0}

    def label(self, topology: Topology) -> str:
        """Name the configuration and the switches that are on; without edges nothing can be coupled."""
        alone = [self.running.label(), self.warm_start.label(), "cross-entropy" if self.cross_entropy else ""]
        if not topology.edges:
            return " + ".join(["Centralised MCR²" if topology.nodes == 1 else "Independent MCR²", *filter(None, alone)])
        return " + ".join([self.title, *filter(None, [*self.edge_labels(), *alone, self.codec.label()])])

    def edge_labels(self) -> list[str]:
        """Name the switches that matter on edges only."""
        return [self.gauge.label(), self.coupling.label(), "sketch pull" if self.sketch_pull else ""]


class Edges:
    """What ties node i to its neighbours: duals, the messages of statistics, and how strongly each edge pulls.

    Attributes:
        Y: (K, d, d) summed duals.
        told: the node's statistics as its peers have read them. Both ends of an edge take the dual step and the
            midpoints with these, so that Y_ij = −Y_ji and T_ij = T_ji whatever the codec loses.
        pull: (J,) how much each edge counts in this round, in [0, 1].
    """

    def __init__(self, spec: CoupledSpec, gauge: Gauge, node: int, stats: ClassStats) -> None:
        self.spec = spec
        self.gauge = gauge
        self.Y = torch.zeros_like(stats.V)  # Y^(0) = 0
        self.told = stats
        self.pull = stats.m.new_zeros(0)
        self.stream = Stream(spec.codec, node, stats, **spec.beside())

    def exchange(self, stats: ClassStats, peers: Sequence[int]) -> Exchange:
        """Return what goes to all peers and comes from them."""
        payload, self.told = self.stream.pack(StatsMessage(stats, self.gauge.hops))
        return Exchange("stats", dict.fromkeys(peers, payload), frozenset(peers))

    def step(self, t: int, V_nbr: Sequence[ClassStats]) -> Coupling:
        """Take the dual step (R1_2a); return duals, midpoints (R1_T) and penalty for round t."""
        spec, told = self.spec, self.told
        strength = spec.coupling.at(t)
        gamma, w = strength * spec.gamma, told.m.new_ones(len(V_nbr))
        if spec.coupling.balance and gamma and V_nbr:
            w = edge_weights(told, V_nbr, gamma=gamma, eps2=spec.eps2, balance=spec.coupling.balance)
        self.pull = strength * w
        self.Y = dual_step(self.Y, told, V_nbr, strength * spec.rho, w)
        return Coupling.of(self.Y, *fold_neighbours(told, V_nbr, w), gamma)

    def prior(self, stats: ClassStats, V_nbr: Sequence[ClassStats]) -> ClassStats:
        """Pull V_k towards the neighbours' mean, which is 2T̄_k − V_k; a class that no neighbour shares stays.

        For classes of which a node has few samples. It makes sense in a common frame only: with the gauge on.
        """
        T_bar, n = fold_neighbours(stats, V_nbr)
        pull = 2 * self.spec.running.prior * (n > 0).to(stats.V.dtype)
        return replace(stats, V=stats.V + pull[:, None, None] * (T_bar - stats.V))

    def log(self, stats: ClassStats, terms: ConsensusTerms, V_nbr: Sequence[ClassStats]) -> RoundLog:
        """Say what the node knows: the terms of its objective, how far neighbours are, and how strongly they pull."""
        distances = [relative_distance(stats, other) for other in V_nbr if share_class(stats, other)]
        return {
            **terms.numbers(),
            "disagreement": sum(distances) / len(distances) if distances else float("nan"),
            "overlap": overlap(stats),
            "coupling": float(self.pull.mean()) if len(self.pull) else 0.0,
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the duals, the frame, and what the codec remembers."""
        return {"Y": self.Y, "hops": torch.tensor(self.gauge.hops), **named("told.", self.stream.state_dict())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.Y = state["Y"]
        self.gauge.hops = int(state["hops"])
        self.stream.load_state_dict(under("told.", state))


class Learner:
    """An encoder, with a head where cross-entropy counts, and its optimiser.

    ΔR is quadratic in features: its pull on a feature that does not yet point anywhere is weak, and networks on natural
    images find features by it slowly. Cross-entropy finds them; ΔR spreads them over subspaces at the same time. The
    head never leaves the node.

    Attributes:
        modules: what is trained: the encoder, with the head on top where cross-entropy counts.
    """

    def __init__(self, spec: CoupledSpec, encoder: Encoder, node: Node, purpose: str) -> None:
        self.spec, self.encoder, self.node = spec, encoder, node
        self.modules = supervised(encoder, node.num_classes, spec.cross_entropy)
        self.trainer = LocalTrainer(self.modules, node.local, node.seed, node.index, purpose)

    def warm_up(self) -> None:
        """Train with cross-entropy on local data, with a head that is discarded."""
        classifier = Classifier(self.encoder, self.node.num_classes)
        local, node = self.spec.warm_start.within(self.node.local), self.node
        trainer = LocalTrainer(classifier, local, node.seed, node.index, "warm start")
        trainer.train(node.X, node.y, classifier.loss, 0)
        self.trainer.sample_passes += trainer.sample_passes

    def pull(self, t: int, peers: Sequence[ClassStats], H: Tensor | None) -> SketchPull | None:
        """Return what draws features to the peers' sketch moments in round t, as strong as the coupling then is."""
        told, weight = [stats for stats in peers if stats.sketch], self.spec.coupling.at(t) * self.spec.sketch_pull
        if not (weight and told) or H is None:
            return None
        target = ClassStats.sum(told).sketch
        return SketchPull(self.spec.sketch_of(self.node), target, H, self.node.y, weight) if target else None

    def descend(
        self,
        t: int,
        coupling: Coupling,
        start: ClassStats,
        scale: float,
        pull: SketchPull | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        """Minimise the local augmented Lagrangian (lagran1_2) for T' steps, with what is added to it (ours).

        Args:
            start: statistics that running statistics begin at, classes weighed as the loss does.
            scale: w, the weight of ΔR.
            fixed: whether V of classes that the node does not hold, and all counts, stay as in `start`.
        """
        spec, node = self.spec, self.node
        running = RunningStats(start, spec.running.beta, spec.running.refresh, fixed=fixed)

        def objective(X: Tensor, y: Tensor) -> Tensor:
            Z = self.encoder(X)
            terms = coupled_loss(Z, y, coupling, eps2=spec.eps2, scale=scale, running=running)
            return terms.total + self.supervision(Z, y) + (pull(Z, X, y) if pull else 0.0)

        self.trainer.train(node.X, node.y, objective, t)

    def supervision(self, Z: Tensor, y: Tensor) -> Tensor | float:
        """Return the weighted cross-entropy of features (n, d), to be added to the objective."""
        if not isinstance(self.modules, Classifier):
            return 0.0
        return self.spec.cross_entropy * cross_entropy(self.modules.logits(Z), y)


def weighed(stats: ClassStats, local: LocalSpec) -> ClassStats:
    """Return statistics as the loss weighs their classes: by samples, or equally where batches are balanced.

    Only the loss: what is sent keeps the true counts, which say how much a node knows of a class.
    """
    return stats.balanced() if local.balance else stats
