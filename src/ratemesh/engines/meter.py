"""What travels: messages and payload bytes, by tag and directed edge."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ratemesh.messages.formats import Payload


@dataclass(frozen=True)
class Parcel:
    """A payload that lies elsewhere: the bytes of its tensors, and what finds it again."""

    nbytes: int
    place: object


Message_co = TypeVar("Message_co", bound=Payload | Parcel, covariant=True)


class Outgoing(Protocol[Message_co]):
    """An `Exchange` whose messages are payloads at hand or parcels."""

    @property
    def tag(self) -> str:
        """What the messages are."""

    @property
    def send(self) -> Mapping[int, Message_co]:
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
