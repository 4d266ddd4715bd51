"""Algorithm 1 where nodes of one architecture may also share weights: one space for all, one network for each kind.

Second-order statistics say nothing of what a peer's images look like, so by them an encoder learns no more than its own
images teach. Where sites with equal networks may exchange weights too, as all do in D-SGD, they gain that, and keep
what D-SGD cannot give: one space with the nodes whose networks differ. All that is trained travels: the encoder, and
the head of `cross_entropy` where it is on.
"""

from functools import partial

from pydantic import Field
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.methods.alg1 import Alg1, Alg1Program
from ratemesh.training.averaging import Scope, alike, averaged, read_weights, weights_bytes
from ratemesh.training.classifier import supervised
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node, Round


class Alg1Weights(Alg1):
    """Algorithm 1, with weights averaged after every round among nodes of one architecture."""

    scope: Scope = Field("edges", description="average over edges of the graph, or over all nodes of one architecture")

    def program(self, node: Node) -> "Alg1WeightsProgram":
        """Return node i's part."""
        return Alg1WeightsProgram(self, node)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse a defence that would leave the weights open; return what the theory does not cover."""
        if self.robust.fold != "off":
            raise InputError(
                f"method.robust.fold must be 'off' for method 'alg1_weights'; got '{self.robust.fold}'. It guards "
                "statistics, and weights are averaged as peers send them: use method 'alg1' where peers may lie."
            )
        return super().check(topology, counts, local)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of Algorithm 1, and of all weights to every peer of the same architecture."""
        trained = supervised(node.encoder, node.num_classes, self.cross_entropy)
        return super().bytes_sent(node) + weights_bytes(trained) * len(alike(node, self.scope))

    def label(self, topology: Topology) -> str:
        """Name the configuration, and who shares weights; without edges there is no neighbour to share with."""
        if self.scope == "edges" and not topology.edges:
            return super().label(topology)
        who = "over edges" if self.scope == "edges" else "by architecture"
        return f"{super().label(topology)} + weights averaged {who}"


class Alg1WeightsProgram(Alg1Program):
    """Node i's state and rounds."""

    spec: Alg1Weights

    def __init__(self, spec: Alg1Weights, node: Node) -> None:
        super().__init__(spec, node)
        self.readers["weights"] = partial(read_weights, module=self.learner.modules)

    def round(self, t: int) -> Round:
        """Play round t of Algorithm 1, and average what was trained before its statistics are computed."""
        heard, coupling = yield from self.learn(t)  # l. 3–12
        yield from averaged(self.learner.modules, alike(self.node, self.spec.scope))  # ours; the gauge is turned next
        return self.conclude(t, heard, coupling)  # l. 14–15
