"""D-SGD: decentralised supervised training with cross-entropy and averaged parameters, a baseline.

Adapt, then combine (Lian et al. 2017 with local epochs): every node trains encoder and linear classifier on its own
data, then θ_i ← Σ_j W_ij θ_j with Metropolis weights. Parameters can only be averaged where architectures are equal:
nodes of different architecture do not talk. The representation is the encoder's unit vector, as for Algorithm 1.
"""

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload, refused
from ratemesh.metrics.geometry import overlap
from ratemesh.training.averaging import (
    DEGREE,
    Scope,
    WeightsMessage,
    alike,
    combine,
    read_weights,
    weights_bytes,
    weights_exchange,
)
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalTrainer
from ratemesh.training.protocol import MethodSpec, Node, Round


class DSgd(MethodSpec):
    """D-SGD with Metropolis weights, by architecture where networks differ."""

    scope: Scope = Field("edges", description="average over edges of the graph, or over all nodes of one architecture")

    def program(self, node: Node) -> "DSgdProgram":
        """Return node i's part."""
        return DSgdProgram(self, node)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of all weights and float buffers, to every peer of the same architecture."""
        return weights_bytes(Classifier(node.encoder, node.num_classes)) * len(alike(node, self.scope))

    @property
    def graph_may_change(self) -> bool:
        """Yes: degrees travel with the weights."""
        return True

    def label(self, topology: Topology) -> str:
        """Name the configuration, and whether it leaves the graph."""
        if not topology.edges and self.scope == "edges":
            return "Centralised cross-entropy" if topology.nodes == 1 else "Independent cross-entropy"
        return "D-SGD" if self.scope == "edges" else "D-SGD, averaged by architecture"


class DSgdProgram:
    """Node i's state and rounds."""

    def __init__(self, spec: DSgd, node: Node) -> None:
        self.spec = spec
        self.node = node
        self.encoder = node.encoder
        self.classifier = Classifier(node.encoder, node.num_classes)
        self.trainer = LocalTrainer(self.classifier, node.local, node.seed, node.index, "dsgd")
        self.stats = self._shard_stats(0)

    @property
    def peers(self) -> tuple[int, ...]:
        """Whose weights are averaged with this node's."""
        return alike(self.node, self.spec.scope)

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far."""
        return self.trainer.sample_passes

    def round(self, t: int) -> Round:
        """Play round t: adapt, then combine."""
        node = self.node
        self.trainer.train(node.X, node.y, self.classifier.loss, t)
        inbox = yield weights_exchange(self.classifier, self.peers)
        combine(self.classifier, len(self.peers), inbox)
        self.stats = self._shard_stats(t)
        loss, correct = self.classifier.fit(node.X, node.y)
        rates = rate_reduction(self.stats, self.spec.eps2)
        return {
            "expand": float(rates.expand),
            "compress": float(rates.compress),
            "reduction": float(rates.reduction),
            "total": loss,
            "train_accuracy": correct,
            "overlap": overlap(self.stats),
        }

    def read(self, tag: str, sender: int, payload: Payload) -> WeightsMessage:
        """Return a peer's weights and degree; refuse weights that cannot be averaged with this node's."""
        if tag != "weights":
            raise refused(sender, f"'{tag}' is no message of this method")
        return read_weights(payload, self.classifier, sender, DEGREE)

    def _shard_stats(self, t: int) -> ClassStats:
        node = self.node
        return self.trainer.stats(self.encoder, node.X, node.y, node.num_classes, t)

    def state(self) -> dict[str, Tensor]:
        """Return weights and optimiser, and the statistics."""
        return {**self.trainer.state(), "V": self.stats.V, "mu": self.stats.mu, "m": self.stats.m}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.trainer.load_state(state)
        self.stats = ClassStats(state["V"], state["mu"], state["m"])
