"""What a method and an engine know of each other.

One round of one node is a generator: it yields what it sends and from whom it must hear, is resumed
with what arrived, and returns its log. It never learns where the other nodes run, so the same program
runs inside one process, in many, or across a network.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.theory import Proportions
from ratemesh.encoders import Encoder
from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload, refused
from ratemesh.specs import NamedSpec
from ratemesh.training.local import LocalSpec, LocalTrainer, named, under

Inbox = Mapping[int, Any]
"""What arrived, as `Program.read` returned it, by sender, ascending."""

RoundLog = Mapping[str, float]
"""What a node says of its round."""


@dataclass(frozen=True)
class Exchange:
    """Send payloads to nodes and wait for one message of the same tag from each node in `recv`.

    The round is resumed with an inbox of messages as `Program.read` returned them. Between sites a message may be lost
    or refused: the inbox may then lack senders.
    """

    tag: str
    send: Mapping[int, Payload]
    recv: frozenset[int]


Round = Generator[Exchange, Inbox, RoundLog]


@dataclass(frozen=True)
class Node:
    """What a node is given: its place in the graph, its data, its encoder, and the run's settings.

    Attributes:
        index: i.
        neighbours: N_i, ascending.
        X, y: local training samples and labels (m_i,), on the CPU, maybe mapped from a file: batches move.
        num_classes: K.
        share: m_i / m, this node's part of all training samples.
        encoder: the node's own network, on the device that the node computes on.
        local: settings of local training.
        seed: root seed; draw with `seeds.generator(seed, index, ...)`.
        labels: which classes every node of the run holds, known to all as in Algorithm 2; may be empty.
        clusters: who takes turns with whom, by the method's `clusters`, the same at every node; may be empty.
        kinds: the architecture of every node of the run; empty where all are alike.
    """

    index: int
    neighbours: tuple[int, ...]
    X: Tensor
    y: Tensor
    num_classes: int
    share: float
    encoder: Encoder
    local: LocalSpec
    seed: int
    labels: tuple[tuple[int, ...], ...] = ()
    clusters: tuple[tuple[int, ...], ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the node computes: what a program keeps is there, see `experiment.plan.ExperimentSite`."""
        return self.encoder.device


class Program(Protocol):
    """One node's part in a run, with its state between rounds."""

    node: Node
    encoder: Encoder
    stats: ClassStats

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far."""

    @abstractmethod
    def round(self, t: int) -> Round:
        """Play round t, counted from 1."""

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return what a message says; engines call this once for every message that arrives, before `round` gets it.

        Raises:
            RatemeshError: if the message cannot be used. Nothing has changed then.
        """

    def state(self) -> dict[str, Tensor]:
        """Return all that the next round depends on."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that `state` returned."""


PROGRAM_PARTS = ("node", "encoder", "stats", "sample_passes", "round", "read", "state", "load_state")
"""What every program must have, see `Program`."""


class Stateful(Protocol):
    """What a state is made of: trainers, networks, edges, streams of messages."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the next round depends on."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any:
        """Go on from a state that `state_dict` returned."""


class NodeProgram(Program):
    """What the programs in here have in common: trainers, the statistics of the whole shard, and their state.

    Attributes:
        trainers: what is trained, by the prefix that its tensors have in a state.
        kept: these and all else that has a state, in the same way; methods add what they have.
        readers: by tag, what reads a payload of a sender; methods add those of the messages that they know.
        H: (m_i, p) sketch of the node's samples, where its statistics are to have sketch moments.
    """

    def __init__(self, node: Node, trainers: Mapping[str, LocalTrainer], H: Tensor | None = None) -> None:
        self.node = node
        self.H = H
        self.encoder = node.encoder
        self.trainers = trainers
        self.kept: dict[str, Stateful] = dict(trainers)
        self.readers: dict[str, Callable[[Payload, int], Any]] = {}
        self.stats = self.shard_stats(0)

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far, of all trainers together."""
        return sum(trainer.sample_passes for trainer in self.trainers.values())

    def shard_stats(self, t: int) -> ClassStats:
        """Return the statistics of all samples of the node after round t."""
        node, trainer = self.node, next(iter(self.trainers.values()))
        return trainer.stats(self.encoder, node.X, node.y, node.num_classes, t, self.H)

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return what a message says; refuse one that the method does not know."""
        if tag not in self.readers:
            raise refused(sender, f"'{tag}' is no message of this method")
        return self.readers[tag](payload, sender)

    def state(self) -> dict[str, Tensor]:
        """Return the statistics, and the state of all that has one."""
        found = dict(self.stats.tensors())
        for prefix, part in self.kept.items():
            found |= named(prefix, part.state_dict())
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        for prefix, part in self.kept.items():
            part.load_state_dict(under(prefix, state))
        self.stats = ClassStats.from_tensors(state)


@dataclass(frozen=True)
class MessageContract:
    """What a method's messages ask of a run.

    Attributes:
        fixed_graph: who exchanges with whom is settled before the first round; else neighbours may change between
            rounds, told by `program.node`.
        needs_every: a lost message makes later ones unreadable; refused between sites, where messages may be lost.
        one_model: all nodes send weights of one model: they need one architecture, and begin with equal weights.
        server: the node that all others need in every round, if there is one.
    """

    fixed_graph: bool = True
    needs_every: bool = False
    one_model: bool = False
    server: int | None = None


class MethodSpec(NamedSpec):
    """Settings of a method; `program` makes one node's part of it."""

    kind: ClassVar[str] = "method"
    eps2: float = Field(0.5, gt=0, description="ε², squared distortion of the coding rate")

    @abstractmethod
    def program(self, node: Node) -> Program:
        """Return the node's program, initialised without communication."""

    @property
    def messages(self) -> MessageContract:
        """What the method's messages ask of a run."""
        return MessageContract()

    @property
    def epochs_before(self) -> int:
        """Local epochs before the first exchange, which count in a comparison of budgets."""
        return 0

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:  # noqa: ARG002 - methods look
        """Refuse what the method cannot work on; return where the theory's assumptions do not hold, in words.

        Args:
            counts: (N, K) samples per node and class.
            local: how nodes train: balanced batches settle unequal proportions of the classes that all nodes hold.
        """
        found = Proportions.of(counts, balanced=local.balance)
        if found.holds:
            return []
        remedy = (
            "Use partition = 'stratified', or local.balance = true"
            if bool((counts > 0).all())
            else "Nodes hold different labels: use method.name = 'alg3', or partition = 'stratified'"
        )
        return [
            f"Assumption 1 does not hold: class proportions differ between nodes by up to {found.gap:.3f}. {remedy}."
        ]

    def clusters(
        self,
        labels: Sequence[Sequence[int]],  # noqa: ARG002 - methods of clusters look
        topology: Topology,  # noqa: ARG002
        num_classes: int,  # noqa: ARG002
    ) -> list[tuple[int, ...]]:
        """Return the clusters that nodes with these labels form; empty for methods that know none."""
        return []

    @abstractmethod
    def bytes_sent(self, node: Node) -> int:
        """Return the payload bytes that a node sends a round, by formula; the meter must agree.

        Where the size of messages varies from round to round, this is the most that a node may send.
        """

    @abstractmethod
    def label(self, topology: Topology) -> str:
        """Return the method's name on this graph as tables show it, with the switches that are on."""


def start_program(method: MethodSpec, node: Node) -> Program:
    """Make a node's program; refuse one that lacks a part that every engine relies on."""
    program = method.program(node)
    if lacking := [part for part in PROGRAM_PARTS if not hasattr(program, part)]:
        raise InputError(
            f"method '{method.name}' must make programs with {', '.join(PROGRAM_PARTS)}; its {type(program).__name__} "
            f"lacks {', '.join(lacking)}. Derive it from ratemesh.training.protocol.NodeProgram, or add them."
        )
    return program
