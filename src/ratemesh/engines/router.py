"""Message passing inside one machine: who waits for whom, and what is delivered when."""

from collections import deque

from ratemesh.engines.meter import Traffic
from ratemesh.errors import RatemeshError
from ratemesh.methods.protocol import Exchange, Inbox, Payload


def refuse_strangers(sender: int, exchange: Exchange, nodes: int) -> None:
    """Raise if a node addresses itself or one that is not there."""
    outside = [j for j in {*exchange.send, *exchange.recv} if not 0 <= j < nodes or j == sender]
    if outside:
        raise RatemeshError(f"node {sender} addressed {outside}; peers must be other nodes in 0..{nodes - 1}.")


class Router:
    """Mailboxes of one round. A node is ready when all that it waits for has arrived."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.traffic = Traffic()
        self._mail: dict[tuple[str, int, int], deque[Payload]] = {}
        self._waiting: dict[int, Exchange] = {}

    def post(self, sender: int, exchange: Exchange) -> None:
        """Take what a node sends and note what it waits for."""
        refuse_strangers(sender, exchange, self.nodes)
        self.traffic.record(sender, exchange)
        for receiver, payload in exchange.send.items():
            self._mail.setdefault((exchange.tag, sender, receiver), deque()).append(payload)
        self._waiting[sender] = exchange

    def ready(self) -> list[tuple[int, Inbox]]:
        """Take out the nodes that can go on, with their inboxes (senders ascending)."""
        able = [i for i, e in self._waiting.items() if all(self._mail.get((e.tag, j, i)) for j in e.recv)]
        return [(i, self._collect(i, self._waiting.pop(i))) for i in sorted(able)]

    def _collect(self, i: int, exchange: Exchange) -> Inbox:
        return {j: self._mail[exchange.tag, j, i].popleft() for j in sorted(exchange.recv)}

    def stuck(self) -> str:
        """Say who waits for whom."""
        lacks = {i: [j for j in sorted(e.recv) if not self._mail.get((e.tag, j, i))] for i, e in self._waiting.items()}
        return "; ".join(f"node {i} waits for {who}" for i, who in sorted(lacks.items()))
