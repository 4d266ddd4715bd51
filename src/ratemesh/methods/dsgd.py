"""D-SGD: decentralised supervised training with cross-entropy and averaged parameters, a baseline.

Adapt, then combine (Lian et al. 2017 with local epochs): every node trains encoder and linear classifier on its own
data, then θ_i ← Σ_j W_ij θ_j with Metropolis weights. Parameters can only be averaged where architectures are equal:
nodes of different architecture do not talk. The representation is the encoder's unit vector, as for Algorithm 1.
"""

from functools import partial

from pydantic import Field

from ratemesh.core.rates import rate_reduction
from ratemesh.graph import Topology
from ratemesh.metrics.geometry import overlap
from ratemesh.training.averaging import Scope, alike, averaged, read_weights, weights_bytes
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalTrainer
from ratemesh.training.protocol import MessageContract, MethodSpec, Node, NodeProgram, Round


class DSgd(MethodSpec):
    """D-SGD with Metropolis weights, by architecture where networks differ."""

    scope: Scope = Field("edges", description="average over edges of the graph, or over all nodes of one architecture")

    def program(self, node: Node) -> "DSgdProgram":
        """Return node i's part."""
        return DSgdProgram(self, node)

    @property
    def messages(self) -> MessageContract:
        """Neighbours may change between rounds: degrees travel with the weights."""
        return MessageContract(fixed_graph=False)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of all weights and float buffers, to every peer of the same architecture."""
        return weights_bytes(Classifier(node.encoder, node.num_classes)) * len(alike(node, self.scope))

    def label(self, topology: Topology) -> str:
        """Name the configuration, and whether it leaves the graph."""
        if not topology.edges and self.scope == "edges":
            return "Centralised cross-entropy" if topology.nodes == 1 else "Independent cross-entropy"
        return "D-SGD" if self.scope == "edges" else "D-SGD, averaged by architecture"


class DSgdProgram(NodeProgram):
    """Node i's state and rounds."""

    def __init__(self, spec: DSgd, node: Node) -> None:
        self.spec = spec
        self.classifier = Classifier(node.encoder, node.num_classes)
        self.trainer = LocalTrainer(self.classifier, node.local, node.seed, node.index, "dsgd")
        super().__init__(node, {"": self.trainer})
        self.readers["weights"] = partial(read_weights, module=self.classifier)

    def round(self, t: int) -> Round:
        """Play round t: adapt, then combine."""
        node = self.node
        self.trainer.train(node.X, node.y, self.classifier.loss, t)
        yield from averaged(self.classifier, alike(node, self.spec.scope))
        self.stats = self.shard_stats(t)
        loss, correct = self.classifier.fit(node.X, node.y)
        rates = rate_reduction(self.stats, self.spec.eps2).numbers()
        return {**rates, "total": loss, "train_accuracy": correct, "overlap": overlap(self.stats)}
