"""Codecs for tests: every kind, by a few words, and streams of messages about three classes in six dimensions."""

from typing import Any

import torch

from ratemesh.core.stats import ClassStats
from ratemesh.messages.codecs import PACKED
from ratemesh.messages.formats import CodecSpec, Payload
from ratemesh.messages.statistics import StatsMessage, Stream
from ratemesh.methods.alg1 import Alg1

K, D = 3, 6
SETTINGS: dict[str, Any] = {
    "packed": "packed",
    "half": "half",
    "int8": "int8",
    "rank": {"name": "lowrank", "rank": 3},
    "rank half": {"name": "lowrank", "rank": 3, "inner": "half"},
    "rank int8": {"name": "lowrank", "rank": 3, "inner": "int8"},
    "energy": {"name": "lowrank", "energy": 0.9},
    "energy int8": {"name": "lowrank", "energy": 0.9, "inner": "int8"},
}
SETTINGS |= {f"delta {words}": {"name": "delta", "inner": codec} for words, codec in SETTINGS.items()}


def codec_of(words: str) -> CodecSpec:
    return Alg1(codec=SETTINGS[words]).codec


def like(classes: int, d: int, dtype: torch.dtype) -> ClassStats:
    """Return empty statistics of a receiver: they say how many classes and dimensions there are, and the type."""
    return ClassStats.without_means(torch.zeros(classes, d, d, dtype=dtype), torch.zeros(classes, dtype=dtype))


def stream_of(words: str, node: int = 0, dtype: torch.dtype = torch.float32) -> Stream:
    return Stream(codec_of(words), node, like(K, D, dtype), means=True, frame=True)


def pack(message: StatsMessage, *, means: bool, frame: bool, codec: CodecSpec = PACKED) -> Payload:
    """Return a first message, as any node would send it."""
    return Stream(codec, 0, message.stats, means=means, frame=frame).encode(message)


def read(
    payload: Payload,
    sender: int,
    classes: int,
    d: int,
    codec: CodecSpec = PACKED,
    dtype: torch.dtype = torch.float32,
) -> StatsMessage:
    """Read a first message, as a receiver would with this many classes and dimensions."""
    return Stream(codec, sender + 1, like(classes, d, dtype)).read(payload, sender)
