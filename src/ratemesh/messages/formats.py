"""How numbers travel (in full, in half precision, or in eight bits with a scale for each class), and what a codec is.

An array x has one row a class held, (h, ...). Every format knows how far each number may be off, so that what is
accepted follows from how it was sent. The codecs that are built of these formats are in `codecs`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ratemesh.core.stats import nearest_moments
from ratemesh.errors import RatemeshError
from ratemesh.specs import NamedSpec

Payload = Mapping[str, Tensor]
"""Named tensors; the only thing that travels."""

Parts = dict[str, Tensor]
"""Named tensors while a payload is put together."""

Layout = dict[str, tuple[tuple[int, ...], torch.dtype | None]]
"""Shape and type of every part; None is the floating type of the run."""

FLOAT_BYTES = 4
"""Bytes of a number of the run's own type; encoders compute in float32."""


def refused(sender: int, reason: str) -> RatemeshError:
    """Return the error of a message that must not be used; it names the sender."""
    return RatemeshError(f"the message of node {sender} was refused: {reason}.")


def misshapen(payload: Payload, layout: Layout) -> str:
    """Say which tensor has another shape or type than in the layout, or is not finite; tensors not there are fine."""
    for name, (shape, dtype) in layout.items():
        tensor = payload.get(name)
        if tensor is None:
            continue
        fits = tensor.dtype == dtype if dtype else tensor.is_floating_point()
        if tensor.shape != shape or not fits:
            wanted = f", not {dtype}" if dtype and not fits else ""
            return f"'{name}' must have shape {shape}; got {tuple(tensor.shape)} of {tensor.dtype}{wanted}"
        if not bool(torch.isfinite(tensor).all()):
            return f"'{name}' is not finite"
    return ""


class Numbers:
    """Numbers as they are: exact, 4 bytes each."""

    dtype: torch.dtype | None = None

    def encode(self, name: str, x: Tensor) -> Parts:
        """Return the parts that carry x (h, ...)."""
        return {name: x}

    def decode(self, name: str, parts: Payload, dtype: torch.dtype) -> Tensor:
        """Return x̂ (h, ...)."""
        return parts[name].to(dtype)

    def error(self, name: str, parts: Payload, dtype: torch.dtype) -> Tensor:
        """Return for every number of x̂ how far x may be from it, same shape."""
        return torch.zeros_like(parts[name], dtype=dtype)

    def layout(self, name: str, shape: tuple[int, ...]) -> Layout:
        """Return shapes and types of the parts that carry an array of this shape."""
        return {name: (shape, self.dtype)}

    def fault(self, name: str, parts: Payload, most: float) -> str:  # noqa: ARG002 - int8 needs it
        """Say what cannot have been sent where no number is larger than `most`; empty when all can."""
        return ""


class HalfNumbers(Numbers):
    """float16: 2 bytes each, |x̂ − x| ≤ max(2⁻¹¹|x̂|, 2⁻²⁵).

    What is sent is at most 1 in size, differences little more, so nothing leaves float16's range (65504), and of the
    two half types it is the closer one: on second moments of random features, d = 128, the relative error is 2e-4 with
    float16 and 1.7e-3 with bfloat16 (`tests/test_codecs.py` compares them).
    """

    dtype = torch.float16

    def encode(self, name: str, x: Tensor) -> Parts:
        """Round to float16."""
        return {name: x.to(torch.float16)}

    def error(self, name: str, parts: Payload, dtype: torch.dtype) -> Tensor:
        """Return half a unit in the last place."""
        return (parts[name].to(dtype).abs() * 2**-11).clamp(min=2**-25)


class ByteNumbers(Numbers):
    """int8 with one scale s for each class: x ≈ s·q, q in −127..127, s = max|x|/127; n + 4 bytes for n numbers.

    |x̂ − x| ≤ s/2, with what float32 rounds away: s·(½ + 2e-5).
    """

    dtype = torch.int8
    LARGEST = 127
    STEP = 0.5 + 2e-5
    NOTHING = 1e-30
    """A row whose numbers are all smaller is sent as zeros: its scale would leave the range of float32."""

    def encode(self, name: str, x: Tensor) -> Parts:
        """Divide every row by its scale and round."""
        most = x.flatten(1).abs().amax(1)
        scale = torch.where(most < self.NOTHING, torch.zeros_like(most), most / self.LARGEST).float()
        per = torch.where(scale == 0, torch.ones_like(scale), scale).to(x.dtype)
        q = (x / _rows(per, x)).round().clamp(-self.LARGEST, self.LARGEST)
        return {name: self.stored(q.to(torch.int8)), f"{name}.scale": scale}

    def decode(self, name: str, parts: Payload, dtype: torch.dtype) -> Tensor:
        """Return s·q."""
        q = self.loaded(parts[name]).to(dtype)
        return q * _rows(parts[f"{name}.scale"].to(dtype), q)

    def stored(self, q: Tensor) -> Tensor:
        """Return whole numbers (h, ...) as they travel."""
        return q

    def loaded(self, stored: Tensor) -> Tensor:
        """Return the whole numbers that travelled."""
        return stored

    def error(self, name: str, parts: Payload, dtype: torch.dtype) -> Tensor:
        """Return half a step, the same for all numbers of a row."""
        q = self.loaded(parts[name])
        return _rows(self.STEP * parts[f"{name}.scale"].to(dtype), q).expand(q.shape)

    def layout(self, name: str, shape: tuple[int, ...]) -> Layout:
        """Return the numbers and their scales."""
        return {name: (shape, torch.int8), f"{name}.scale": (shape[:1], torch.float32)}

    def fault(self, name: str, parts: Payload, most: float) -> str:
        """Refuse −128 and scales that no numbers have."""
        scale = parts[f"{name}.scale"]
        if bool((self.loaded(parts[name]) < -self.LARGEST).any()):
            return f"'{name}' must lie in −{self.LARGEST}..{self.LARGEST}"
        if bool(((scale < 0) | (scale * self.LARGEST > most * 1.001)).any()):
            return f"'{name}.scale' must lie in 0..{most / self.LARGEST:.3g}; got {scale.tolist()}"
        return ""


class NibbleNumbers(ByteNumbers):
    """Four bits with one scale for each class, q in −7..7: two numbers a byte along the last axis, of even length."""

    dtype = torch.uint8
    LARGEST = 7

    def stored(self, q: Tensor) -> Tensor:
        """Return q + 8 of two numbers in every byte, the first in the low half."""
        first, second = (q + 8).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
        both: Tensor = first | (second << 4)
        return both

    def loaded(self, stored: Tensor) -> Tensor:
        """Return both halves of every byte, less 8."""
        return torch.stack([stored & 15, stored >> 4], dim=-1).flatten(-2).to(torch.int8) - 8

    def layout(self, name: str, shape: tuple[int, ...]) -> Layout:
        """Return half as many bytes as numbers, and the scales."""
        return {**super().layout(name, shape), name: ((*shape[:-1], shape[-1] // 2), torch.uint8)}


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """Return one number a row (h,), shaped to go with an array (h, ...)."""
    return x.view(-1, *[1] * (like.ndim - 1))


FORMATS: dict[str, Numbers] = {"packed": Numbers(), "half": HalfNumbers(), "int8": ByteNumbers()}
"""By the names of the codecs that send their triangles so."""


class Bound(NamedTuple):
    """How far decoded matrices may be off, each (h,).

    Attributes:
        below, above: how far tr V̂ may lie below and above tr V.
        norm: ‖V̂ − V‖_F at most; no eigenvalue is off by more.
    """

    below: Tensor
    above: Tensor
    norm: Tensor


class CodecSpec(NamedSpec):
    """Settings of a codec; a subclass says how symmetric matrices (h, d, d) become tensors and come back.

    `difference` marks matrices that are a difference of second moments (codec delta): they may have any sign.
    """

    kind: ClassVar[str] = "codec"
    lossless: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @property
    @abstractmethod
    def numbers(self) -> Numbers:
        """How single numbers travel, those of the class means too."""

    @abstractmethod
    def encode(self, V: Tensor, *, difference: bool = False) -> Parts:
        """Return what travels of V (h, d, d)."""

    @abstractmethod
    def decode(self, parts: Payload, d: int, dtype: torch.dtype) -> Tensor:
        """Return V̂ (h, d, d), symmetric, as far off as `bound` says; parts must have passed `layout` and `fault`."""

    @abstractmethod
    def bound(self, parts: Payload, d: int, dtype: torch.dtype) -> Bound:
        """Return how far V̂ may be from what was sent."""

    @abstractmethod
    def layout(self, h: int, d: int, parts: Payload | None = None, *, difference: bool = False) -> Layout:
        """Return shapes and types of the parts for h classes: of these parts, or of the largest there can be."""

    def fault(self, parts: Payload, d: int, *, difference: bool = False) -> str:  # noqa: ARG002 - lowrank needs d
        """Say what no sender could have sent, before anything is decoded; empty when all can be."""
        return self.numbers.fault("V", parts, largest(difference=difference))

    def settle(self, V: Tensor) -> Tensor:
        """Return V̂ as a second moment again, positive semi-definite and of trace 1; here the nearest.

        A projection onto a convex set that holds the true V cannot raise the error. A slightly indefinite V̂ must not
        get further, because I + (d/ε²)V̂ may have no logdet. Where nothing is lost, V̂ is V.
        """
        return V if self.lossless else nearest_moments(V)

    def label(self) -> str:
        """Name the codec in tables, unless it is the default."""
        return f"codec {self.name}"


def largest(*, difference: bool) -> float:
    """Return the largest entry of V and μ, 1; or of a difference to a receiver's view, itself off by at most 1/254."""
    return 2 / (1 - 1 / 254) if difference else 1.0
