"""Message passing inside one run: how a round goes on, who waits for whom, what is delivered when, and its bytes."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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


@dataclass(frozen=True)
class Posted:
    """An `Exchange` whose payloads lie elsewhere."""

    tag: str
    send: Mapping[int, Parcel]
    recv: frozenset[int]


Edge = tuple[str, int, int]
"""Tag, sender and receiver."""


@dataclass
class Traffic:
    """Counts of one round. `wire`, headers included, is empty where nothing leaves the machine."""

    messages: Counter[Edge] = field(default_factory=Counter)
    bytes: Counter[Edge] = field(default_factory=Counter)
    wire: Counter[Edge] = field(default_factory=Counter)

    def record(self, edge: Edge, message: Payload | Parcel) -> None:
        """Count a message."""
        self.messages[edge] += 1
        self.bytes[edge] += message.nbytes if isinstance(message, Parcel) else nbytes(message)


@dataclass(frozen=True)
class Played:
    """A round as the engine saw it: every node's log, in node order, and what travelled."""

    logs: list[RoundLog]
    traffic: Traffic


def nbytes(payload: Payload) -> int:
    """Return the bytes of a payload's tensors, without any header."""
    return sum(tensor.nbytes for tensor in payload.values())


def refuse_strangers(sender: int, outgoing: Exchange | Posted, nodes: int) -> None:
    """Raise if a node addresses itself or one that is not there."""
    outside = [j for j in {*outgoing.send, *outgoing.recv} if not 0 <= j < nodes or j == sender]
    if outside:
        raise RatemeshError(f"node {sender} addressed {outside}; peers must be other nodes in 0..{nodes - 1}.")


class RoundMail:
    """Mailboxes of one round. A node is ready when all that it waits for has arrived."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.traffic = Traffic()
        self._mail: defaultdict[Edge, deque[Any]] = defaultdict(deque)
        self._waiting: dict[int, Exchange | Posted] = {}

    def post(self, sender: int, outgoing: Exchange | Posted) -> None:
        """Take what a node sends and note what it waits for."""
        refuse_strangers(sender, outgoing, self.nodes)
        for receiver, message in outgoing.send.items():
            edge = (outgoing.tag, sender, receiver)
            self.traffic.record(edge, message)
            self._mail[edge].append(message)
        self._waiting[sender] = outgoing

    def ready(self) -> list[tuple[int, str, dict[int, Any]]]:
        """Take out the nodes that can go on, with the tag that they wait for and their inboxes (senders ascending)."""
        found = []
        for i in sorted(i for i in self._waiting if not self._lacking(i)):
            waiting = self._waiting.pop(i)
            inbox = {j: self._mail[waiting.tag, j, i].popleft() for j in sorted(waiting.recv)}
            found.append((i, waiting.tag, inbox))
        return found

    def _lacking(self, i: int) -> list[int]:
        """Return whose message node i still waits for."""
        waiting = self._waiting[i]
        return [j for j in sorted(waiting.recv) if not self._mail[waiting.tag, j, i]]

    def stuck(self) -> str:
        """Say who waits for whom."""
        return "; ".join(f"node {i} waits for {self._lacking(i)}" for i in sorted(self._waiting))


class Nodes(Protocol):
    """All nodes, wherever they are. Every command to a node gives one event; messages are payloads or parcels."""

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""

    def resume(self, node: int, tag: str, messages: Mapping[int, Any]) -> None:
        """Go on with the messages of this tag that arrived."""

    def next_event(self) -> tuple[int, Exchange | Posted | RoundLog] | None:
        """Wait for what any node sends, or for its log; None when no command is left to carry out."""


def play_round(nodes: Nodes, count: int, t: int) -> Played:
    """Play round t; every node's inbox is in sender order, so timing changes nothing."""
    mail = RoundMail(count)
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
        for ready, tag, inbox in mail.ready():
            nodes.resume(ready, tag, inbox)
    return Played([logs[node] for node in range(count)], mail.traffic)
