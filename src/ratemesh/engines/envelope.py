"""Messages between sites: a fixed header, then named tensors in safetensors format.

Whoever can reach a port can send bytes, so everything is checked before anything is allocated, nothing is executed,
and whatever is wrong becomes one `BadMessageError`.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload

MAGIC = b"RMSH"
VERSION = 1
RUN_BYTES = 16
TAG_BYTES = 48
HEADER = struct.Struct(f"<4sHH{RUN_BYTES}sIIQII{TAG_BYTES}sQ")
"""magic, version, kind, run, sender, receiver, incarnation, round, sequence, tag, length of the body."""

EVERYONE = 2**32 - 1
"""Receiver of what goes to all."""

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}


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


@dataclass(frozen=True)
class Message:
    """One message as its header says, with its tensors.

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
    payload: Payload = field(default_factory=dict)


def seal(message: Message) -> bytes:
    """Return a message as bytes."""
    tag = message.tag.encode()
    if len(tag) > TAG_BYTES:
        raise RatemeshError(f"tag must have at most {TAG_BYTES} bytes; got '{message.tag}'. Shorten it in the method.")
    body = save({name: tensor.detach().contiguous() for name, tensor in message.payload.items()})
    head = HEADER.pack(
        MAGIC,
        VERSION,
        message.kind,
        message.run,
        message.sender,
        message.receiver,
        message.incarnation,
        message.round,
        message.sequence,
        tag,
        len(body),
    )
    return head + body


def open_envelope(data: bytes, limits: Limits = Limits()) -> Message:
    """Read and check bytes from the network; raises `BadMessageError` and nothing else."""
    if not HEADER.size <= len(data) <= HEADER.size + limits.body:
        raise BadMessageError("size", f"{len(data)} bytes, not {HEADER.size} to {HEADER.size + limits.body}")
    magic, version, kind, run, sender, receiver, incarnation, t, sequence, tag, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BadMessageError("no message", "it does not begin as messages do")
    if version != VERSION:
        raise BadMessageError("version", f"protocol {version}, not {VERSION}; all sites must run the same release")
    if kind not in set(Kind):
        raise BadMessageError("header", f"kind {kind}")
    if length != len(data) - HEADER.size:
        raise BadMessageError("size", f"the body has {len(data) - HEADER.size} bytes, the header says {length}")
    payload = _tensors(data, limits)
    return Message(Kind(kind), run, sender, receiver, incarnation, t, sequence, _text(tag), payload)


def _text(tag: bytes) -> str:
    """Return the tag without its padding."""
    try:
        text = tag.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise BadMessageError("header", "the tag is not text") from None
    if not text.isprintable():
        raise BadMessageError("header", "the tag is not printable")
    return text


def _tensors(data: bytes, limits: Limits) -> dict[str, Tensor]:
    """Read the body's table, then its tensors; they must fill the body without gap or overlap."""
    start = HEADER.size + 8
    if len(data) < start:
        raise BadMessageError("body", "it is shorter than its own header")
    length = int.from_bytes(data[HEADER.size : start], "little")
    if length > min(limits.header, len(data) - start):
        raise BadMessageError("body", f"its table has {length} bytes")
    table = _table(data[start : start + length], limits)
    content = memoryview(data)[start + length :]
    found, end = {}, 0
    for name, entry in sorted(table.items(), key=lambda item: item[1].begin):
        if entry.begin != end:
            raise BadMessageError("body", f"'{name}' begins at {entry.begin}, not at {end}")
        end = entry.begin + entry.size
        if end > len(content):
            raise BadMessageError("body", f"'{name}' ends at {end}, the body at {len(content)}")
        found[name] = entry.read(content)
    if end != len(content):
        raise BadMessageError("body", f"{len(content) - end} bytes belong to no tensor")
    return {name: found[name] for name in table}


@dataclass(frozen=True)
class _Entry:
    """Where a tensor is, and its shape and type."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, content: memoryview) -> Tensor:
        """Return a copy of the tensor."""
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)
        part = bytearray(content[self.begin : self.begin + self.size])
        return torch.frombuffer(part, dtype=self.dtype).reshape(self.shape)


def _table(text: bytes, limits: Limits) -> dict[str, _Entry]:
    """Read the table of tensors; a number of anything beyond the limits ends it before memory is asked for."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadMessageError("body", f"its table is not JSON ({type(error).__name__})") from None
    if not isinstance(found, dict) or len(found) > limits.tensors:
        raise BadMessageError("body", f"its table must have at most {limits.tensors} entries")
    return {name: _entry(name, entry, limits) for name, entry in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that comes twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadMessageError("body", "a name comes twice")
    return found


def _entry(name: str, entry: Any, limits: Limits) -> _Entry:
    if len(name) > limits.name or not name.isprintable():
        raise BadMessageError("body", "a tensor's name is too long or not printable")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadMessageError("body", f"'{name}' must have dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise BadMessageError("body", f"'{name}' must have one of the types {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape, limits.body) or len(shape) > limits.rank:
        raise BadMessageError("body", f"'{name}' has an impossible shape")
    if not _counts(offsets, limits.body) or len(offsets) != 2:
        raise BadMessageError("body", f"'{name}' has impossible offsets")
    found = _Entry(dtype, tuple(shape), offsets[0])
    if found.size != offsets[1] - offsets[0]:
        raise BadMessageError("body", f"'{name}' needs {found.size} bytes and has {offsets[1] - offsets[0]}")
    return found


def _counts(values: Any, most: int) -> bool:
    """Whether this is a list of whole numbers in 0..most."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= most for v in values)
