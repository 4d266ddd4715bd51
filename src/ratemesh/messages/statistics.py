"""Class statistics as a message: of every class held V as the codec sends it, the counts, and what the gauge needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ratemesh.core.rates import half_logdet
from ratemesh.core.sketch import SketchMoments, sketch_fault
from ratemesh.core.stats import ClassStats
from ratemesh.messages.formats import (
    FLOAT_BYTES,
    ByteNumbers,
    CodecSpec,
    Layout,
    NibbleNumbers,
    Numbers,
    Payload,
    largest,
    misshapen,
    refused,
)

NO_FRAME = -1
"""Hops of a node whose gauge is not yet tied to the root's."""

MOST_HOPS, MOST_SAMPLES = 10**6, 10**12
"""Beyond any mesh and any data set; larger numbers would leave the range of what is computed with them."""

TOLERANCE = 1e-3
"""How far traces, eigenvalues and lengths may be off by rounding; what the codec loses comes on top (`Bound`)."""


SKETCH: dict[str, Numbers] = {"C": NibbleNumbers(), "h": ByteNumbers(), "v": Numbers()}
"""How sketch moments and the sketch's means travel, whatever the codec: for the same bytes, 48 numbers of a sketch in
four bits align better than 24 in eight (experiments/RESULTS.md)."""


@dataclass(frozen=True)
class StatsMessage:
    """A peer's statistics, and how many hops its frame is from the root's (see `Gauge`)."""

    stats: ClassStats
    hops: int = NO_FRAME


class View(NamedTuple):
    """What receivers have of a sender, for codecs that send differences to it.

    Attributes:
        V, mu: (h, d, d) and (h, d) of the classes held, sums of all differences so far.
        held: (K,) which classes these are.
        step: number of the last message, 0 for a whole one.
    """

    V: Tensor
    mu: Tensor
    held: Tensor
    step: int


def _beside(codec: CodecSpec, h: int, d: int, *, means: bool, frame: bool, p: int) -> Layout:
    """Return the parts beside V and the counts: class means, sketch moments (p > 0), hops."""
    found: Layout = codec.numbers.layout("mu", (h, d)) if means else {}
    if p:
        for (name, numbers), shape in zip(SKETCH.items(), ((h, d, p), (h, p), (h,)), strict=True):
            found |= numbers.layout(name, shape)
    return {**found, "hops": ((), torch.int32)} if frame else found


def message_bytes(codec: CodecSpec, h: int, num_classes: int, d: int, *, means: bool, frame: bool, p: int = 0) -> int:
    """Return the bytes of a message about h of K classes (the most, where the size varies): V, K counts, extras."""
    beside = _beside(codec, h, d, means=means, frame=frame, p=p)
    layout = {**codec.layout(h, d), "m": ((num_classes,), None), **beside}
    return sum(math.prod(shape) * (dtype.itemsize if dtype else FLOAT_BYTES) for shape, dtype in layout.values())


def _impossible(payload: Payload, seen: View, codec: CodecSpec) -> str:
    """Say why these numbers cannot be what the codec makes of statistics of unit vectors; empty when they can."""
    V, dtype = seen.V, seen.V.dtype
    if not bool(torch.isfinite(V).all()):
        return "V is not finite"
    bound = codec.bound(payload, V.shape[-1], dtype)
    trace = V.diagonal(dim1=1, dim2=2).sum(1)
    low, high = 1 - bound.below - TOLERANCE, 1 + bound.above + TOLERANCE
    if bool(((trace < low) | (trace > high) | (trace <= 0)).any()):
        return f"V must have trace 1 for every class with samples; got {trace.tolist()}"
    # V + tolerance·I has a Cholesky factor exactly when no eigenvalue lies below −tolerance.
    if not bool(torch.isfinite(half_logdet(V, 1 / (TOLERANCE + bound.norm[:, None, None]))[0]).all()):
        return "V must be positive semi-definite"
    off = codec.numbers.error("mu", payload, dtype).norm(dim=1) if "mu" in payload else torch.zeros_like(trace)
    if (fault := too_long(seen.mu, off)) or "C" not in payload:
        return fault
    # Var(z_a) ≤ V_aa − μ_a², each as large as what is lost in transit allows.
    spread = V.diagonal(dim1=1, dim2=2) + bound.norm[:, None] - (seen.mu.abs() - off[:, None]).clamp(min=0).square()
    sketch = SketchMoments(**{name: numbers.decode(name, payload, dtype) for name, numbers in SKETCH.items()})
    return sketch_fault(sketch, spread, *(SKETCH[name].error(name, payload, dtype) for name in ("C", "h")))


def miscounted(m: Tensor) -> str:
    """Say which counts (K,) nobody can have; empty when all can be."""
    if bool(((m < 0) | (m > MOST_SAMPLES)).any()):
        return f"counts must not be negative, and at most {MOST_SAMPLES:.0e}; got {m.tolist()}"
    return ""


def too_long(mu: Tensor, off: Tensor | float = 0.0) -> str:
    """Say whether means (h, d), off by `off` (h,) at most, are none of unit vectors; empty when they can be."""
    if bool((mu.square().sum(1) > (1 + torch.as_tensor(off)).square() + TOLERANCE).any()):
        return "class means must not be longer than the samples they are means of"
    return ""


class Stream:
    """Messages of one kind between a node and its peers, both ways, with what codec delta must remember.

    A node reads its own messages as everybody else does. On every edge both ends then use the same V̂_i and V̂_j, which
    is what keeps Y_ij = −Y_ji and T_ij = T_ji where messages are lossy.
    """

    def __init__(
        self, codec: CodecSpec, node: int, own: ClassStats, *, means: bool = False, frame: bool = False, p: int = 0
    ) -> None:
        self.codec = codec
        self.node = node
        self.num_classes, self.d, self.dtype = own.num_classes, own.d, own.V.dtype
        self.means = means
        self.frame = frame
        self.p = p
        self._views: dict[int, View] = {}

    def pack(self, message: StatsMessage) -> tuple[Payload, ClassStats]:
        """Return the payload, and the statistics as its receivers will read them: those sent, if nothing is lost."""
        payload = self.encode(message)
        return payload, message.stats if self.codec.lossless else self.read(payload, self.node).stats

    def encode(self, message: StatsMessage) -> Payload:
        """Return the payload of a message: V as the codec sends it, counts, and means and hops if they travel.

        V and the means travel for classes with samples only, |K_i|·d(d+1)/2 numbers (Remark 4) if packed; the counts of
        all K classes say which.
        """
        stats, codec, view = message.stats, self.codec, self._views.get(self.node)
        V, mu = stats.V[stats.held], stats.mu[stats.held]
        step = 0
        if view is not None and torch.equal(view.held, stats.held):
            V, mu, step = V - view.V, mu - view.mu, view.step + 1
        payload = {**codec.encode(V), "m": stats.m}
        if codec.remembers:
            payload["step"] = torch.tensor(step, dtype=torch.int32)
        if self.means:
            payload |= codec.numbers.encode("mu", mu)
        if stats.sketch and self.p:
            for name, numbers in SKETCH.items():
                payload |= numbers.encode(name, getattr(stats.sketch, name)[stats.held])
        if self.frame:
            payload["hops"] = torch.tensor(message.hops, dtype=torch.int32)
        return payload

    def read(self, payload: Payload, sender: int) -> StatsMessage:
        """Read and check what a sender packed, once and in order: a codec may remember it."""
        if fault := self._malformed(payload):
            raise refused(sender, fault)
        codec, d, m = self.codec, self.d, payload["m"]
        V_held = codec.decode(payload, d, m.dtype)
        mu_held = codec.numbers.decode("mu", payload, m.dtype) if "mu" in payload else V_held.new_zeros(len(V_held), d)
        step = int(payload["step"]) if codec.remembers else 0
        if step:  # a difference
            view = self._view_before(step, m > 0, sender)
            V_held, mu_held = view.V + V_held, view.mu + mu_held
        seen = View(V_held, mu_held, m > 0, step)
        if fault := _impossible(payload, seen, codec):
            raise refused(sender, fault)
        if codec.remembers:
            self._views[sender] = seen
        V, mu = m.new_zeros(len(m), d, d), m.new_zeros(len(m), d)
        V[seen.held], mu[seen.held] = codec.settle(seen.V), seen.mu
        stats = ClassStats(V, mu, m, self._sketch(payload, seen.held))
        return StatsMessage(stats, int(payload["hops"]) if "hops" in payload else NO_FRAME)

    def _sketch(self, payload: Payload, held: Tensor) -> SketchMoments | None:
        """Return the sketch moments of a message that has them, zeros for classes not held."""
        if "C" not in payload:
            return None
        found = {}
        for name, numbers in SKETCH.items():
            part = numbers.decode(name, payload, payload["m"].dtype)
            found[name] = part.new_zeros(len(held), *part.shape[1:])
            found[name][held] = part
        return SketchMoments(**found)

    def _view_before(self, step: int, held: Tensor, sender: int) -> View:
        """Return what difference number `step` is added to; refuse one that does not follow."""
        view = self._views.get(sender)
        if view is None or view.step != step - 1:
            had = "none" if view is None else f"message {view.step}"
            raise refused(
                sender,
                f"it is a difference to message {step - 1}, the receiver has {had}; a whole message must come first",
            )
        if not torch.equal(view.held, held):
            raise refused(sender, "a difference must be about the classes held before")
        return view

    def _malformed(self, payload: Payload) -> str:
        """Say what is wrong with names, types, shapes or values of the tensors; empty when nothing is."""
        codec, d = self.codec, self.d
        # A part that may be left out comes whole: numbers with their scales, C with h.
        optional = [codec.numbers.layout("mu", (0, d)), _beside(codec, 0, d, means=False, frame=False, p=self.p)]
        must = {*codec.layout(0, d), "m"}.union(*(part for part in optional if payload.keys() & part.keys()))
        may = {"hops"}.union(*optional)
        if names := sorted(must - payload.keys()) or sorted(payload.keys() - must - may):
            held = f"{', '.join(codec.layout(0, d))} and m, perhaps {', '.join(sorted(may))}"
            return f"it must hold {held}; lacking or unknown: {', '.join(names)}"
        # m first: it says which classes are held.
        if fault := misshapen(payload, {"m": ((self.num_classes,), self.dtype)}):
            return fault
        h = int((payload["m"] > 0).sum())
        layout = {**codec.layout(h, d, payload), **_beside(codec, h, d, means=True, frame=True, p=self.p)}
        if fault := misshapen(payload, layout):
            return fault
        if fault := miscounted(payload["m"]):
            return fault
        if "hops" in payload and not NO_FRAME <= int(payload["hops"]) <= MOST_HOPS:
            return f"'hops' must be {NO_FRAME} or more, and at most {MOST_HOPS}; got {int(payload['hops'])}"
        faults = [codec.fault(payload, d)]
        if "mu" in payload:
            faults.append(codec.numbers.fault("mu", payload, largest(difference=codec.remembers)))
        if "C" in payload:
            faults += [numbers.fault(name, payload, 1.0) for name, numbers in SKETCH.items()]
        return next(filter(None, faults), "")

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is remembered, (senders + 1)·h·(d² + d) numbers; nothing unless the codec remembers."""
        return {
            f"{sender}.{name}": torch.as_tensor(value)
            for sender, view in self._views.items()
            for name, value in view._asdict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self._views = {}
        for j in sorted({int(key.partition(".")[0]) for key in state}):
            V, mu, held, step = (state[f"{j}.{name}"] for name in View._fields)
            self._views[j] = View(V, mu, held, int(step))
