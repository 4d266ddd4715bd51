"""What travels: messages and payload bytes, by tag and directed edge."""

from collections import Counter
from dataclasses import dataclass, field

from ratemesh.methods.protocol import Exchange, Payload


@dataclass
class Traffic:
    """Counts of one round; keys are (tag, sender, receiver). `wire` is empty where nothing leaves the machine."""

    messages: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    wire: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def record(self, sender: int, exchange: Exchange) -> None:
        """Count what a node sends."""
        for receiver, payload in exchange.send.items():
            key = (exchange.tag, sender, receiver)
            self.messages[key] += 1
            self.bytes[key] += nbytes(payload)

    @property
    def total_bytes(self) -> int:
        """Payload bytes of all messages."""
        return self.bytes.total()

    @property
    def total_wire_bytes(self) -> int:
        """Bytes of all messages as they were sent, headers included; 0 if they were not."""
        return self.wire.total()

    def add(self, other: "Traffic") -> None:
        """Count what another one counted as well."""
        self.messages.update(other.messages)
        self.bytes.update(other.bytes)
        self.wire.update(other.wire)

    @property
    def edges(self) -> set[tuple[int, int]]:
        """Directed edges that carried a message."""
        return {(i, j) for _, i, j in self.messages}


def nbytes(payload: Payload) -> int:
    """Return the bytes of a payload's tensors, without any header."""
    return sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
