"""Message passing under one roof: who waits for whom, and what is delivered when."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from ratemesh.engines.meter import Outgoing, Parcel, Traffic
from ratemesh.engines.protocol import Played
from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import RoundLog

Message = TypeVar("Message", bound=Payload | Parcel)


def refuse_strangers(sender: int, outgoing: Outgoing[Any], nodes: int) -> None:
    """Raise if a node addresses itself or one that is not there."""
    outside = [j for j in {*outgoing.send, *outgoing.recv} if not 0 <= j < nodes or j == sender]
    if outside:
        raise RatemeshError(f"node {sender} addressed {outside}; peers must be other nodes in 0..{nodes - 1}.")


class RoundMail(Generic[Message]):
    """Mailboxes of one round. A node is ready when all that it waits for has arrived."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.traffic = Traffic()
        self._mail: dict[tuple[str, int, int], deque[Message]] = {}
        self._waiting: dict[int, Outgoing[Message]] = {}

    def post(self, sender: int, outgoing: Outgoing[Message]) -> None:
        """Take what a node sends and note what it waits for."""
        refuse_strangers(sender, outgoing, self.nodes)
        self.traffic.record(sender, outgoing)
        for receiver, message in outgoing.send.items():
            self._mail.setdefault((outgoing.tag, sender, receiver), deque()).append(message)
        self._waiting[sender] = outgoing

    def ready(self) -> list[tuple[int, Mapping[int, Message]]]:
        """Take out the nodes that can go on, with their inboxes (senders ascending)."""
        able = [i for i, e in self._waiting.items() if all(self._mail.get((e.tag, j, i)) for j in e.recv)]
        return [(i, self._collect(i, self._waiting.pop(i))) for i in sorted(able)]

    def _collect(self, i: int, outgoing: Outgoing[Message]) -> Mapping[int, Message]:
        return {j: self._mail[outgoing.tag, j, i].popleft() for j in sorted(outgoing.recv)}

    def stuck(self) -> str:
        """Say who waits for whom."""
        lacks = {i: [j for j in sorted(e.recv) if not self._mail.get((e.tag, j, i))] for i, e in self._waiting.items()}
        return "; ".join(f"node {i} waits for {who}" for i, who in sorted(lacks.items()))


class Crew(Protocol[Message]):
    """All nodes, wherever they are. Every command to a node gives one event."""

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""

    def resume(self, node: int, inbox: Mapping[int, Message]) -> None:
        """Go on with what arrived."""

    def next_event(self) -> tuple[int, Outgoing[Message] | RoundLog] | None:
        """Wait for what any node sends, or for its log; None when no command is left to carry out."""


def play_round(crew: Crew[Message], nodes: int, t: int) -> Played:
    """Play round t; every node's inbox is in sender order, so timing changes nothing."""
    mail: RoundMail[Message] = RoundMail(nodes)
    logs: dict[int, RoundLog] = {}
    for node in range(nodes):
        crew.begin(node, t)
    while len(logs) < nodes:
        happened = crew.next_event()
        if happened is None:
            raise RatemeshError(f"no node can go on: {mail.stuck()}. The method's sends and receives do not match.")
        node, event = happened
        if isinstance(event, Mapping):
            logs[node] = event
        else:
            mail.post(node, event)
        for ready, inbox in mail.ready():
            crew.resume(ready, inbox)
    return Played([logs[node] for node in range(nodes)], mail.traffic)
