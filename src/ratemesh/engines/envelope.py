"""Messages between sites, a fixed header and named tensors in safetensors format; and what is asked of a network.

Whoever can reach a port can send bytes, so everything is checked before anything is allocated, nothing is executed,
and whatever is wrong becomes one `BadMessageError`.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload

MAGIC = b"RMSH"
VERSION = 1
RUN_BYTES = 16
TAG_BYTES = 48
HEADER = struct.Struct(f"<4sHH{RUN_BYTES}sIIqII{TAG_BYTES}sQ")
"""magic, version, kind, run, sender, receiver, incarnation, round, sequence, tag, length of the body.

The incarnation is signed: whatever a peer claims, a tensor can hold it, as in the answer `Kind.TAKEN`.
"""

EVERYONE = 2**32 - 1
"""Receiver of what goes to all."""

DTYPES = frozenset(
    (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    )
)
"""Types of tensors that may travel."""


class BadMessageError(RatemeshError):
    """A message that cannot be used; `reason` is one of few words, to count by."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Kind(IntEnum):
    """What a message is for."""

    DATA = 0  # a payload of the method
    HERE = 1  # I am in this round; nothing more will come of rounds before it
    AGAIN = 2  # send me once more what you sent me in this round
    TAKEN = 3  # another process has your name; its incarnation is alive


@dataclass(frozen=True)
class Limits:
    """The most that a message may have."""

    body: int = 1 << 28
    header: int = 1 << 18
    tensors: int = 4096
    name: int = 200
    rank: int = 8


class Message(NamedTuple):
    """One message as its header says, in its order, with its tensors.

    Attributes:
        run: fingerprint of what all peers of a run agree on.
        incarnation: which start of the sender this is; another number after every restart.
        round: the round it belongs to; of `HERE` the one that the sender is in.
        sequence: its number among the messages of this tag, sender and receiver in the round.
        tag: what it is, in the method's words.
    """

    kind: Kind
    run: bytes
    sender: int
    receiver: int
    incarnation: int
    round: int
    sequence: int = 0
    tag: str = ""
    payload: Payload = MappingProxyType({})


def seal(message: Message) -> bytes:
    """Return a message as bytes."""
    *fields, tag, payload = message
    if len(tag.encode()) > TAG_BYTES:
        raise RatemeshError(f"tag must have at most {TAG_BYTES} bytes; got '{tag}'. Shorten it in the method.")
    body = save({name: tensor.detach().contiguous() for name, tensor in payload.items()})
    return HEADER.pack(MAGIC, VERSION, *fields, tag.encode(), len(body)) + body


def open_envelope(data: bytes, limits: Limits = Limits()) -> Message:
    """Read and check bytes from the network; raises `BadMessageError` and nothing else."""
    if not HEADER.size <= len(data) <= HEADER.size + limits.body:
        raise BadMessageError("size", f"{len(data)} bytes, not {HEADER.size} to {HEADER.size + limits.body}")
    magic, version, kind, *fields, tag, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BadMessageError("no message", "it does not begin as messages do")
    if version != VERSION:
        raise BadMessageError("version", f"protocol {version}, not {VERSION}; all sites must run the same release")
    if kind not in set(Kind):
        raise BadMessageError("header", f"kind {kind}")
    if length != len(data) - HEADER.size:
        raise BadMessageError("size", f"the body has {len(data) - HEADER.size} bytes, the header says {length}")
    payload = _tensors(data[HEADER.size :], limits)
    return Message._make([Kind(kind), *fields, _text(tag), payload])


def _text(tag: bytes) -> str:
    """Return the tag without its padding."""
    try:
        text = tag.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise BadMessageError("header", "the tag is not text") from None
    if not text.isprintable():
        raise BadMessageError("header", "the tag is not printable")
    return text


def _tensors(body: bytes, limits: Limits) -> dict[str, Tensor]:
    """Read the body. Its own header is bounded first; safetensors then refuses gaps, overlaps and wrong sizes."""
    length = int.from_bytes(body[:8], "little")
    if length > limits.header or b"__metadata__" in body[8 : 8 + length]:
        raise BadMessageError("body", f"its table has {length} bytes, at most {limits.header}, and tensors only")
    try:
        found = load(body)
    except Exception as error:  # SafetensorError, and whatever torch makes of impossible shapes
        raise BadMessageError("body", str(error)) from None
    if len(found) > limits.tensors:
        raise BadMessageError("body", f"it has {len(found)} tensors, at most {limits.tensors} may be")
    for name, tensor in found.items():
        if len(name) > limits.name or not name.isprintable():
            raise BadMessageError("body", "a tensor's name is too long or not printable")
        if tensor.dtype not in DTYPES or tensor.dim() > limits.rank:
            raise BadMessageError("body", f"'{name}' has {tensor.dim()} axes of {tensor.dtype}")
    return found


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
