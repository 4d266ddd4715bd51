"""What ratemesh adds to the printed algorithm, each a switch; preset "paper" turns all of them off."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ratemesh.core.consensus import Folded, Robust, edge_weights, majority
from ratemesh.core.gauge import align
from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.messages.statistics import NO_FRAME, StatsMessage
from ratemesh.specs import Spec
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalSpec, LocalTrainer
from ratemesh.training.protocol import Node


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

    def weights(self, told: ClassStats, V_nbr: Sequence[ClassStats], gamma: float, eps2: float) -> Tensor:
        """Return how much each edge counts in this round, (J,) in [0, 1]."""
        if not (self.balance and gamma and V_nbr):
            return told.m.new_ones(len(V_nbr))
        return edge_weights(told, V_nbr, gamma=gamma, eps2=eps2, balance=self.balance)

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


def with_prior(stats: ClassStats, folded: Folded, weight: float) -> ClassStats:
    """Pull V_k towards the neighbours' mean, which is 2T̄_k − V_k; a class that no neighbour shares stays.

    For classes of which a node has few samples. It makes sense in a common frame only: with the gauge on.
    """
    pull = 2 * weight * (folded.n > 0).to(stats.V.dtype)
    return ClassStats(stats.V + pull[:, None, None] * (folded.T_bar - stats.V), stats.mu, stats.m)


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


class GaugeSpec(Spec):
    """Gauge alignment (see `core.gauge`)."""

    enabled: bool = Field(True, description="turn feature spaces towards the neighbours' after every round")
    means: float = Field(1.0, ge=0, description="weight of class means in the alignment; 0 leaves them out")
    iterations: int = Field(5, ge=1, description="most steps of one alignment")

    @property
    def uses_means(self) -> bool:
        """Whether class means travel."""
        return self.enabled and self.means > 0

    def label(self) -> str:
        """Name the switch if it is on."""
        return "" if not self.enabled else "gauge with class means" if self.means else "gauge"


class Gauge:
    """A node's gauge: the frame spreads from the root, one hop a round, then all keep in step.

    A node without a frame aligns to the neighbours nearest to the root and counts one hop more; so
    does a node that joins late. With a frame it aligns to all neighbours that have one, and to itself: all turn at the
    same time, and on a graph of two colours (a star, a tree, an even ring) they would swap frames for ever.
    """

    def __init__(self, spec: GaugeSpec, *, root: bool) -> None:
        self.spec = spec
        self.hops = 0 if root else NO_FRAME

    def turn(self, encoder: Encoder, stats: ClassStats, peers: Sequence[StatsMessage]) -> ClassStats:
        """Turn the encoder towards the peers; return the statistics as they are after the turn."""
        framed = [peer for peer in peers if peer.hops != NO_FRAME]
        if not (self.spec.enabled and framed):
            return stats
        nearest = min(peer.hops for peer in framed)
        new = self.hops == NO_FRAME
        if new:
            framed = [peer for peer in framed if peer.hops == nearest]
            self.hops = nearest + 1
        target = ClassStats.sum([*(peer.stats for peer in framed), *([] if new else [stats])])
        Q = align(stats, target, means=self.spec.means, iterations=self.spec.iterations, from_identity_only=not new)
        encoder.turn(Q)
        return stats.rotated(Q)


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

    def check(self, counts: Tensor, local: LocalSpec) -> None:
        """Refuse batches that cannot be balanced; counts (N, K) are samples per node and class."""
        if self.epochs:
            self.within(local).check_balance(counts, "method.warm_start.batch_size")


def warm_start(spec: WarmStartSpec, node: Node) -> int:
    """Train the encoder with cross-entropy on local data; return the samples passed."""
    if not spec.epochs:
        return 0
    classifier = Classifier(node.encoder, node.num_classes)
    trainer = LocalTrainer(classifier, spec.within(node.local), node.seed, node.index, "warm start")
    trainer.train(node.X, node.y, classifier.loss, 0)
    return trainer.sample_passes


class Supervision:
    """Cross-entropy beside −ΔR while the rounds go on, with a head that never leaves the node.

    ΔR is quadratic in features: its pull on a feature that does not yet point anywhere is weak, and networks on natural
    images find features by it slowly. Cross-entropy finds them; ΔR spreads them over subspaces at the same time.

    Attributes:
        modules: what is trained: the encoder, with the head on top where cross-entropy counts.
    """

    def __init__(self, weight: float, encoder: Encoder, num_classes: int) -> None:
        self.weight = weight
        self.modules: nn.Module = Classifier(encoder, num_classes) if weight else encoder

    def loss(self, Z: Tensor, y: Tensor) -> Tensor | float:
        """Return the weighted cross-entropy of features (n, d), to be added to the objective."""
        if not isinstance(self.modules, Classifier):
            return 0.0
        return self.weight * cross_entropy(self.modules.logits(Z), y)
