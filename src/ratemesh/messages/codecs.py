"""How class statistics travel: codecs behind one interface, chosen per run with `method.codec`.

A codec turns the V of the h classes held, symmetric (h, d, d), into named tensors and back, and says how far what it
returns may be from what was sent. The class means go in the codec's number format; the counts always go in full.

| codec | parts of V | bytes of V | error of V̂_k, Frobenius |
|---|---|---|---|
| packed | triangle | 4·h·d(d+1)/2 | 0 |
| half | triangle, float16 | 2·h·d(d+1)/2 | 2⁻¹¹ (V has norm ≤ 1) |
| int8 | triangle, int8, and a scale | h·d(d+1)/2 + 4h | d·s/2, s = largest entry/127 |
| lowrank | √λ·u of r directions | h·r·d numbers as `inner` sends them | 2τ + 2q, τ = 1 − the part kept |
| delta | as `inner`, of the difference | as `inner` + 4 (lowrank: + h·r signs) | as `inner`, of the difference |

Means add h·d numbers in the same format (int8: + 4h). q = 2e + e² with e = ‖F̂ − F‖, the error of the factor's numbers.
"""

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.messages.formats import FORMATS, Bound, CodecSpec, Layout, Numbers, Parts, Payload
from ratemesh.messages.lowrank import LowRank
from ratemesh.specs import NamedSpec, resolve


@lru_cache(maxsize=8)
def _triangle(d: int) -> Tensor:
    """Return flat positions of the upper triangle of a d×d matrix."""
    rows, cols = torch.triu_indices(d, d).unbind()
    return rows * d + cols


def _symmetric(packed: Tensor, d: int) -> Tensor:
    """Return symmetric matrices (h, d, d) from packed upper triangles (h, d(d+1)/2)."""
    upper = packed.new_zeros(packed.shape[0], d * d)
    upper = upper.index_copy(1, _triangle(d).to(packed.device), packed).view(-1, d, d)
    return upper + upper.triu(1).mT


class TriangleSpec(CodecSpec):
    """The upper triangle of every V_k, row by row: symmetric by construction."""

    numbers: ClassVar[Numbers]

    def encode(self, V: Tensor, *, difference: bool = False) -> Parts:  # noqa: ARG002 - a triangle has any sign
        """Return the triangles (h, d(d+1)/2)."""
        flat = V.flatten(1)
        return self.numbers.encode("V", flat.index_select(1, _triangle(V.shape[-1]).to(V.device)))

    def decode(self, parts: Payload, d: int, dtype: torch.dtype) -> Tensor:
        """Return matrices from triangles."""
        return _symmetric(self.numbers.decode("V", parts, dtype), d)

    def bound(self, parts: Payload, d: int, dtype: torch.dtype) -> Bound:
        """Add up what single numbers may be off."""
        off = _symmetric(self.numbers.error("V", parts, dtype), d)
        trace = off.diagonal(dim1=1, dim2=2).sum(1)
        return Bound(trace, trace, off.flatten(1).norm(dim=1))

    def layout(self, h: int, d: int, parts: Payload | None = None, *, difference: bool = False) -> Layout:  # noqa: ARG002
        """Return one row of d(d+1)/2 numbers a class."""
        return self.numbers.layout("V", (h, d * (d + 1) // 2))


class Packed(TriangleSpec):
    """One triangle of every V_k in full: lossless, the default."""

    numbers: ClassVar[Numbers] = FORMATS["packed"]
    lossless: ClassVar[bool] = True

    def label(self) -> str:
        """Say nothing."""
        return ""


class Half(TriangleSpec):
    """One triangle in float16."""

    numbers: ClassVar[Numbers] = FORMATS["half"]


class Int8(TriangleSpec):
    """One triangle in eight bits, with a scale for each class."""

    numbers: ClassVar[Numbers] = FORMATS["int8"]


def codec_at(where: str) -> Any:
    """Return a validator that turns a name or a table at this key into the codec it stands for."""
    base: type[NamedSpec] = CodecSpec
    return BeforeValidator(lambda table: resolve(table, CODECS, base, where))


class Delta(CodecSpec):
    """Differences with error feedback: what `inner` makes of V − (what the receivers have).

    The sender reads its own messages as the receivers do, so it knows what they have, and what one message loses the
    next one carries: errors do not add up, and shrink with the differences. Message 0 is whole, a difference to
    nothing; so is the one after a change of the classes held. Messages are numbered, and one
    that does not follow what a receiver has is refused.
    """

    remembers: ClassVar[bool] = True
    inner: Annotated[SerializeAsAny[CodecSpec], codec_at("method.codec.inner")] = Field(
        Int8(name="int8"), description="what codes the differences"
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.inner.remembers:
            raise InputError(
                "method.codec.inner must not be delta itself; got 'delta'. Name what codes the differences."
            )
        return self

    @property
    def numbers(self) -> Numbers:
        """The inner codec's format."""
        return self.inner.numbers

    def encode(self, V: Tensor, *, difference: bool = True) -> Parts:  # noqa: ARG002 - always one
        """Return the coded difference; the message's number is the packer's."""
        return self.inner.encode(V, difference=True)

    def decode(self, parts: Payload, d: int, dtype: torch.dtype) -> Tensor:
        """Return the difference."""
        return self.inner.decode(parts, d, dtype)

    def bound(self, parts: Payload, d: int, dtype: torch.dtype) -> Bound:
        """Return how far the difference may be off, and so the sum with what the receiver has.

        A whole message is no difference: V has no negative directions, so none were cut off.
        """
        whole = int(parts["step"]) == 0
        return self.inner.bound({k: v for k, v in parts.items() if not (whole and k == "V.sign")}, d, dtype)

    def layout(self, h: int, d: int, parts: Payload | None = None, *, difference: bool = True) -> Layout:  # noqa: ARG002
        """Return the inner codec's parts and the message's number."""
        return {**self.inner.layout(h, d, parts, difference=True), "step": ((), torch.int32)}

    def fault(self, parts: Payload, d: int, *, difference: bool = True) -> str:  # noqa: ARG002
        """Refuse what the inner codec refuses of differences."""
        if int(parts["step"]) < 0:
            return f"'step' must not be negative; got {int(parts['step'])}"
        return self.inner.fault(parts, d, difference=True)

    def label(self) -> str:
        """Name both codecs."""
        return f"codec delta of {self.inner.label().removeprefix('codec ') or 'packed'}"


CODECS: dict[str, type[CodecSpec]] = {"packed": Packed, "half": Half, "int8": Int8, "lowrank": LowRank, "delta": Delta}

PACKED = Packed(name="packed")

CodecField = Annotated[SerializeAsAny[CodecSpec], codec_at("method.codec")]
"""The type of a setting that names a codec: a name or a table."""
