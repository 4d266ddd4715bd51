"""Class statistics as a message: one triangle of V, the counts, and what the gauge needs."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError
from ratemesh.methods.protocol import Payload

NO_FRAME = -1
"""Hops of a node whose gauge is not yet tied to the root's."""

TRACE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class StatsMessage:
    """A peer's statistics, and how many hops its frame is from the root's (see `Gauge`)."""

    stats: ClassStats
    hops: int = NO_FRAME


@lru_cache(maxsize=8)
def _triangle(d: int) -> Tensor:
    """Return flat positions of the upper triangle of a d×d matrix."""
    rows, cols = torch.triu_indices(d, d).unbind()
    return rows * d + cols


def pack(message: StatsMessage, *, means: bool, frame: bool) -> Payload:
    """Return the payload: V's upper triangles (lossless), counts, and means and hops if asked for."""
    stats = message.stats
    payload = {"V": stats.V.flatten(1).index_select(1, _triangle(stats.d)), "m": stats.m}
    if means:
        payload["mu"] = stats.mu
    if frame:
        payload["hops"] = torch.tensor(message.hops, dtype=torch.int32)
    return payload


def unpack(payload: Payload, sender: int, num_classes: int, d: int) -> StatsMessage:
    """Read and check a payload; a bad one is refused with the sender named."""
    shapes = {"V": (num_classes, d * (d + 1) // 2), "m": (num_classes,), "mu": (num_classes, d), "hops": ()}
    for name in ("V", "m"):
        if name not in payload:
            raise RatemeshError(f"the message of node {sender} lacks '{name}'; it was refused.")
    for name, tensor in payload.items():
        if tensor.shape != shapes.get(name):
            raise RatemeshError(
                f"'{name}' in the message of node {sender} must have shape {shapes.get(name)}; "
                f"got {tuple(tensor.shape)}. It was refused."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise RatemeshError(f"'{name}' in the message of node {sender} is not finite; it was refused.")
    V = _symmetric(payload["V"], d)
    stats = ClassStats(V, payload.get("mu", V.new_zeros(num_classes, d)), payload["m"])
    trace = V.diagonal(dim1=1, dim2=2).sum(1)
    if bool(((trace - stats.held.to(V.dtype)).abs() > TRACE_TOLERANCE).any()) or bool((stats.m < 0).any()):
        raise RatemeshError(
            f"the message of node {sender} must have trace 1 for every class with samples and 0 for the others; "
            f"got {trace.tolist()}. It was refused."
        )
    return StatsMessage(stats, int(payload.get("hops", torch.tensor(NO_FRAME))))


def _symmetric(packed: Tensor, d: int) -> Tensor:
    """Return symmetric matrices (K, d, d) from packed upper triangles (K, d(d+1)/2)."""
    upper = packed.new_zeros(packed.shape[0], d * d).index_copy(1, _triangle(d), packed).view(-1, d, d)
    return upper + upper.triu(1).mT
