"""Algorithm 1 where nodes of one architecture may also share weights: one space for all, one network for each kind.

Second-order statistics say nothing of what a peer's images look like, so by them an encoder learns no more than its own
images teach. Where sites with equal networks may exchange weights too, as D-SGD asks of all, they gain that, and keep
what D-SGD cannot give: one space with the nodes whose networks differ. All that is trained travels: the encoder, and
the head of `cross_entropy` where it is on.
"""

from collections.abc import Generator

from pydantic import Field
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload
from ratemesh.messages.statistics import StatsMessage
from ratemesh.methods.alg1 import Alg1, Alg1Program
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
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Exchange, Inbox, Node
from ratemesh.training.switches import Supervision


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
        trained = Supervision(self.cross_entropy, node.encoder, node.num_classes).modules
        return super().bytes_sent(node) + weights_bytes(trained) * len(alike(node, self.scope))

    def label(self, topology: Topology) -> str:
        """Name the configuration, and who shares weights; without edges nobody has a neighbour to share with."""
        if self.scope == "edges" and not topology.edges:
            return super().label(topology)
        who = "over edges" if self.scope == "edges" else "by architecture"
        return f"{super().label(topology)} + weights averaged {who}"


class Alg1WeightsProgram(Alg1Program):
    """Node i's state and rounds."""

    spec: Alg1Weights

    def _share(self) -> Generator[Exchange, Inbox]:
        """Average what was trained. The gauge stays the node's own: it is turned to the neighbours' next."""
        peers = alike(self.node, self.spec.scope)
        inbox = yield weights_exchange(self.supervision.modules, peers)
        combine(self.supervision.modules, len(peers), inbox)

    def read(self, tag: str, sender: int, payload: Payload) -> StatsMessage | WeightsMessage:
        """Return a neighbour's statistics, or a peer's weights and degree."""
        if tag == "weights":
            return read_weights(payload, self.supervision.modules, sender, DEGREE)
        return super().read(tag, sender, payload)
