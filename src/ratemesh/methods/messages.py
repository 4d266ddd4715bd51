"""Class statistics as a message: of every class held one triangle of V, the counts, and what the gauge needs."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ratemesh.core.rates import half_logdet
from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError
from ratemesh.methods.protocol import Payload

NO_FRAME = -1
"""Hops of a node whose gauge is not yet tied to the root's."""

TOLERANCE = 1e-3
"""How far traces, eigenvalues and lengths may be off; a lossless message is off by rounding only."""


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
    """Return the payload: V's upper triangles (lossless), counts, and means and hops if asked for.

    V and the means travel for classes with samples only, |K_i|·d(d+1)/2 numbers (Remark 4); the counts of all K
    classes say which.
    """
    stats = message.stats
    V = stats.V[stats.held].flatten(1)
    payload = {"V": V.index_select(1, _triangle(stats.d).to(V.device)), "m": stats.m}
    if means:
        payload["mu"] = stats.mu[stats.held]
    if frame:
        payload["hops"] = torch.tensor(message.hops, dtype=torch.int32)
    return payload


def unpack(payload: Payload, sender: int, num_classes: int, d: int) -> StatsMessage:
    """Read and check a payload; a bad one is refused with the sender named."""
    fault = _fault(payload, num_classes, d)
    if not fault:
        stats = _stats(payload, num_classes, d)
        fault = _impossible(stats)
    if fault:
        raise RatemeshError(f"the message of node {sender} was refused: {fault}.")
    return StatsMessage(stats, int(payload.get("hops", torch.tensor(NO_FRAME))))


def _fault(payload: Payload, num_classes: int, d: int) -> str:
    """Say what is wrong with names, types, shapes or values of the tensors; empty when nothing is."""
    if names := sorted({"V", "m"} - payload.keys()) or sorted(payload.keys() - {"V", "m", "mu", "hops"}):
        return f"it must hold V and m, perhaps mu and hops; lacking or unknown: {', '.join(names)}"
    held = int((payload["m"] > 0).sum())
    shapes = {"m": (num_classes,), "V": (held, d * (d + 1) // 2), "mu": (held, d), "hops": ()}
    for name, tensor in sorted(payload.items(), key=lambda item: list(shapes).index(item[0])):  # m first: it says who
        if tensor.shape != shapes[name] or tensor.is_floating_point() == (name == "hops"):
            return f"'{name}' must have shape {shapes[name]}; got {tuple(tensor.shape)} of {tensor.dtype}"
        if not bool(torch.isfinite(tensor).all()):
            return f"'{name}' is not finite"
    if bool((payload["m"] < 0).any()):
        return f"counts must not be negative; got {payload['m'].tolist()}"
    if "hops" in payload and int(payload["hops"]) < NO_FRAME:
        return f"'hops' must be {NO_FRAME} or more; got {int(payload['hops'])}"
    return ""


def _impossible(stats: ClassStats) -> str:
    """Say why these numbers cannot be statistics of unit vectors; empty when they can."""
    trace = stats.V.diagonal(dim1=1, dim2=2).sum(1)
    if bool(((trace - stats.held.to(trace.dtype)).abs() > TOLERANCE).any()):
        return f"V must have trace 1 for every class with samples and 0 for the others; got {trace.tolist()}"
    # V + tolerance·I has a Cholesky factor exactly when no eigenvalue lies below −tolerance.
    if not bool(torch.isfinite(half_logdet(stats.V, 1 / TOLERANCE)[0]).all()):
        return "V must be positive semi-definite"
    if bool((stats.mu.square().sum(1) > trace + TOLERANCE).any()):
        return "class means must not be longer than the samples they are means of"
    return ""


def _stats(payload: Payload, num_classes: int, d: int) -> ClassStats:
    """Put what came of the classes held where it belongs among all K classes."""
    m = payload["m"]
    V = m.new_zeros(num_classes, d, d)
    mu = m.new_zeros(num_classes, d)
    V[m > 0] = _symmetric(payload["V"], d)
    if "mu" in payload:
        mu[m > 0] = payload["mu"]
    return ClassStats(V, mu, m)


def _symmetric(packed: Tensor, d: int) -> Tensor:
    """Return symmetric matrices (K, d, d) from packed upper triangles (K, d(d+1)/2)."""
    upper = (
        packed.new_zeros(packed.shape[0], d * d).index_copy(1, _triangle(d).to(packed.device), packed).view(-1, d, d)
    )
    return upper + upper.triu(1).mT
