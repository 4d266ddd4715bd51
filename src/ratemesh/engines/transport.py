"""What a site asks of a network."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Arrived:
    """Bytes, and who sent them as far as the transport can vouch for it."""

    sender: int
    data: bytes


@dataclass(frozen=True)
class Presence:
    """A peer came or went."""

    peer: int
    incarnation: int
    here: bool


class Transport(Protocol):
    """Moves bytes between sites; may lose them, and never blocks for long."""

    def send(self, receiver: int, data: bytes) -> None:
        """Send to one node, or to `EVERYONE`."""

    def receive(self, timeout: float) -> Arrived | Presence | None:
        """Return the next thing that happened, or None after `timeout` seconds."""

    def close(self) -> None:
        """End the connections."""
