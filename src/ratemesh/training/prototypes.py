"""Class prototypes on a graph: what FedProto and its successors exchange, check, fold and train on.

A prototype is the mean of a node's features of one class. In every round a node tells its neighbours the prototypes of
the classes it holds and its counts of all classes, h·d + K numbers; encoder and head never leave it, so networks may
differ. There is no server: what a server would make of all clients' prototypes, a node makes of its neighbours' and its
own. Exchanges come first in a round, as in Algorithm 1: training in round t uses the prototypes after round t − 1.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.graph import Topology
from ratemesh.graph.clusters import split_in_words
from ratemesh.messages.formats import FLOAT_BYTES, Payload, misshapen, refused
from ratemesh.messages.statistics import miscounted, too_long
from ratemesh.metrics.geometry import overlap
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalSpec, LocalTrainer, Objective
from ratemesh.training.protocol import Exchange, MessageContract, MethodSpec, Node, NodeProgram, Round


@dataclass(frozen=True)
class Prototypes:
    """Class means and how many samples they are means of.

    Attributes:
        mu: (K, d) means of unit vectors, so no longer than 1, and shorter the more a class is spread; zero where m = 0.
        m: (K,) counts as floats.
    """

    mu: Tensor
    m: Tensor

    @classmethod
    def of(cls, stats: ClassStats) -> "Prototypes":
        """Return the prototypes of a node's statistics."""
        return cls(stats.mu, stats.m)

    @property
    def held(self) -> Tensor:
        """(K,) booleans: which classes have a prototype."""
        return self.m > 0

    def payload(self) -> Payload:
        """Return the message: mu (h, d) of the h classes held, and m (K,), which says which they are."""
        return {"mu": self.mu[self.held], "m": self.m}


def read_prototypes(payload: Payload, sender: int, like: Prototypes) -> Prototypes:
    """Read what `Prototypes.payload` made; refuse other names, shapes and types, and means that no unit vectors have.

    Args:
        like: prototypes with the K, d and type that the sender's must have.
    """
    if payload.keys() != {"mu", "m"}:
        raise refused(sender, f"it must hold mu and m; got {', '.join(sorted(payload)) or 'nothing'}")
    m, dtype = payload["m"], like.mu.dtype
    # m first: it says how many rows mu has.
    if fault := misshapen(payload, {"m": (tuple(like.m.shape), dtype)}) or miscounted(m):
        raise refused(sender, fault)
    shape = (int((m > 0).sum()), like.mu.shape[1])
    if fault := misshapen(payload, {"mu": (shape, dtype)}) or too_long(payload["mu"]):
        raise refused(sender, fault)
    mu = torch.zeros_like(like.mu)
    mu[m > 0] = payload["mu"]
    return Prototypes(mu, m)


def fold(parts: Sequence[Prototypes]) -> Prototypes:
    """Return the prototypes of all samples together: means over nodes weighted by counts, class by class."""
    m = torch.stack([part.m for part in parts])
    total = m.sum(0)
    weights = m / torch.where(total > 0, total, torch.ones_like(total))
    return Prototypes(torch.einsum("jk,jkd->kd", weights, torch.stack([part.mu for part in parts])), total)


class PrototypeSpec(MethodSpec):
    """What the methods that exchange prototypes have in common."""

    title: ClassVar[str]
    """What tables call the method."""
    local_title: ClassVar[str]
    """What is left of it without neighbours."""

    @property
    def messages(self) -> MessageContract:
        """Neighbours may change between rounds, and be silent in some: nothing is remembered of them."""
        return MessageContract(fixed_graph=False)

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:  # noqa: ARG002
        """Say which labels' holders no edges join; the paper's assumptions are about another objective."""
        return split_in_words(topology, [row.nonzero().flatten().tolist() for row in counts])

    def bytes_sent(self, node: Node) -> int:
        """Return |N_i|·(h·d + K) numbers, h the classes that the node holds."""
        numbers = len(node.y.unique()) * node.encoder.d + node.num_classes
        return len(node.neighbours) * FLOAT_BYTES * numbers

    def label(self, topology: Topology) -> str:
        """Name the method, or what is left of it without edges."""
        if topology.edges:
            return self.title
        return f"{'Centralised' if topology.nodes == 1 else 'Independent'} {self.local_title}"


class PrototypeProgram(NodeProgram):
    """Node i's state and rounds; methods say what they minimise."""

    def __init__(self, spec: PrototypeSpec, node: Node) -> None:
        self.spec = spec
        self.classifier = Classifier(node.encoder, node.num_classes)
        self.trainer = LocalTrainer(self.classifier, node.local, node.seed, node.index, spec.title)
        super().__init__(node, {"": self.trainer})
        self.readers["prototypes"] = partial(read_prototypes, like=Prototypes.of(self.stats))

    def round(self, t: int) -> Round:
        """Play round t: exchange prototypes, train with what was heard, compute the new ones."""
        node, own = self.node, Prototypes.of(self.stats)
        inbox = yield Exchange("prototypes", dict.fromkeys(node.neighbours, own.payload()), frozenset(node.neighbours))
        loss = self.trainer.train(node.X, node.y, self.objective(own, list(inbox.values())), t)
        self.stats = self.shard_stats(t)
        return {**rate_reduction(self.stats, self.spec.eps2).numbers(), "overlap": overlap(self.stats), "total": loss}

    @abstractmethod
    def objective(self, own: Prototypes, heard: Sequence[Prototypes]) -> Objective:
        """Return what is minimised in a round, from the node's own prototypes and those that arrived."""
