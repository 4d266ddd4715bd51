"""Message passing inside one run: how a round goes on, who waits for whom, what is delivered when, and its bytes."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, Inbox, Round, RoundLog


def advance(program: Round, inbox: Inbox | None = None) -> Exchange | RoundLog:
    """Begin a round, or go on with what arrived; return what it sends next, or its log when it is over."""
    try:
        return next(program) if inbox is None else program.send(inbox)
    except StopIteration as end:
        log: RoundLog = end.value
        return log


@dataclass(frozen=True)
class Parcel:
    """A payload that lies elsewhere: the bytes of its tensors, and what finds it again."""

    nbytes: int
    place: object


Sent = TypeVar("Sent", bound=Payload | Parcel)
Sent_co = TypeVar("Sent_co", bound=Payload | Parcel, covariant=True)


class Outgoing(Protocol[Sent_co]):
    """An `Exchange` whose messages are payloads at hand or parcels."""

    @property
    def tag(self) -> str:
        """What the messages are."""

    @property
    def send(self) -> Mapping[int, Sent_co]:
        """Messages by receiver."""

    @property
    def recv(self) -> frozenset[int]:
        """Nodes to hear from before going on."""


@dataclass
class Traffic:
    """Counts of one round; keys are (tag, sender, receiver). `wire` is empty where nothing leaves the machine."""

    messages: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    wire: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def record(self, sender: int, outgoing: Outgoing[Payload | Parcel]) -> None:
        """Count what a node sends."""
        for receiver, message in outgoing.send.items():
            key = (outgoing.tag, sender, receiver)
            self.messages[key] += 1
            self.bytes[key] += message.nbytes if isinstance(message, Parcel) else nbytes(message)

    @property
    def total_bytes(self) -> int:
        """Payload bytes of all messages."""
        return self.bytes.total()

    @property
    def total_wire_bytes(self) -> int:
        """Bytes of all messages as they were sent, headers included; 0 if they were not."""
        return self.wire.total()


@dataclass(frozen=True)
class Played:
    """A round as the engine saw it: every node's log, in node order, and what travelled."""

    logs: list[RoundLog]
    traffic: Traffic


def nbytes(payload: Payload) -> int:
    """Return the bytes of a payload's tensors, without any header."""
    return sum(tensor.numel() * tensor.element_size() for tensor in payload.values())


def refuse_strangers(sender: int, outgoing: Outgoing[Any], nodes: int) -> None:
    """Raise if a node addresses itself or one that is not there."""
    outside = [j for j in {*outgoing.send, *outgoing.recv} if not 0 <= j < nodes or j == sender]
    if outside:
        raise RatemeshError(f"node {sender} addressed {outside}; peers must be other nodes in 0..{nodes - 1}.")


class RoundMail(Generic[Sent]):
    """Mailboxes of one round. A node is ready when all that it waits for has arrived."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.traffic = Traffic()
        self._mail: dict[tuple[str, int, int], deque[Sent]] = {}
        self._waiting: dict[int, Outgoing[Sent]] = {}

    def post(self, sender: int, outgoing: Outgoing[Sent]) -> None:
        """Take what a node sends and note what it waits for."""
        refuse_strangers(sender, outgoing, self.nodes)
        self.traffic.record(sender, outgoing)
        for receiver, message in outgoing.send.items():
            self._mail.setdefault((outgoing.tag, sender, receiver), deque()).append(message)
        self._waiting[sender] = outgoing

    def ready(self) -> list[tuple[int, Mapping[int, Sent]]]:
        """Take out the nodes that can go on, with their inboxes (senders ascending)."""
        able = [i for i, e in self._waiting.items() if all(self._mail.get((e.tag, j, i)) for j in e.recv)]
        return [(i, self._collect(i, self._waiting.pop(i))) for i in sorted(able)]

    def _collect(self, i: int, outgoing: Outgoing[Sent]) -> Mapping[int, Sent]:
        return {j: self._mail[outgoing.tag, j, i].popleft() for j in sorted(outgoing.recv)}

    def stuck(self) -> str:
        """Say who waits for whom."""
        lacks = {i: [j for j in sorted(e.recv) if not self._mail.get((e.tag, j, i))] for i, e in self._waiting.items()}
        return "; ".join(f"node {i} waits for {who}" for i, who in sorted(lacks.items()))


class Nodes(Protocol[Sent]):
    """All nodes, wherever they are. Every command to a node gives one event."""

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""

    def resume(self, node: int, messages: Mapping[int, Sent]) -> None:
        """Go on with what arrived."""

    def next_event(self) -> tuple[int, Outgoing[Sent] | RoundLog] | None:
        """Wait for what any node sends, or for its log; None when no command is left to carry out."""


def play_round(nodes: Nodes[Sent], count: int, t: int) -> Played:
    """Play round t; every node's inbox is in sender order, so timing changes nothing."""
    mail: RoundMail[Sent] = RoundMail(count)
    logs: dict[int, RoundLog] = {}
    for node in range(count):
        nodes.begin(node, t)
    while len(logs) < count:
        happened = nodes.next_event()
        if happened is None:
            raise RatemeshError(f"no node can go on: {mail.stuck()}. The method's sends and receives do not match.")
        node, event = happened
        if isinstance(event, Mapping):
            logs[node] = event
        else:
            mail.post(node, event)
        for ready, inbox in mail.ready():
            nodes.resume(ready, inbox)
    return Played([logs[node] for node in range(count)], mail.traffic)
