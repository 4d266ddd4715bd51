"""What every codec of class statistics has in common (see `codecs`)."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ratemesh.core.stats import nearest_moments
from ratemesh.messages.formats import Layout, Numbers, Parts, Payload, layout_bytes
from ratemesh.specs import NamedSpec


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

    @property
    def fixed_size(self) -> bool:
        """Whether every message has the size of `size`; if not, that is the most it can have."""
        return True

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

    def size(self, h: int, d: int, *, means: bool) -> int:
        """Return the bytes of V of h classes, and of their means."""
        return layout_bytes(self.layout(h, d)) + (layout_bytes(self.numbers.layout("mu", (h, d))) if means else 0)

    def fault(self, parts: Payload, d: int, *, difference: bool = False) -> str:  # noqa: ARG002 - lowrank asks for d
        """Say what no sender could have sent, before anything is decoded; empty when all can be."""
        return self.numbers.fault("V", parts, largest(difference=difference))

    def settle(self, V: Tensor) -> Tensor:
        """Return V̂ as a second moment again, positive semi-definite and of trace 1; here the nearest.

        A projection onto a convex set that holds the true V cannot raise the error. A slightly indefinite V̂ must not
        get further, for I + (d/ε²)V̂ may have no logdet.
        """
        return nearest_moments(V)

    def label(self) -> str:
        """Name the codec in tables, unless it is the default."""
        return f"codec {self.name}"


def largest(*, difference: bool) -> float:
    """Return the largest entry of V and μ, 1; or of a difference to a receiver's view, itself off by at most 1/254."""
    return 2 / (1 - 1 / 254) if difference else 1.0
