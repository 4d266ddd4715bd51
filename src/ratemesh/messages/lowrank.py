"""Low rank: the strongest directions of every class instead of the whole matrix."""

import math
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ratemesh.core.subspace import directions_holding
from ratemesh.errors import InputError
from ratemesh.messages.formats import FORMATS, Bound, CodecSpec, Layout, Numbers, Parts, Payload


class LowRank(CodecSpec):
    """The r strongest directions of every V_k, each scaled by the root of its eigenvalue: F (h, r, d), V̂ = FᵀF/tr.

    With tail τ = 1 − (eigenvalues kept) the trace norm of V̂ − V is at most 2τ, plus 2(2e + e²) for factors whose
    numbers are off by e = ‖F̂ − F‖_F. A difference keeps the eigenvalues of largest size, and their signs go along.
    """

    rank: int | None = Field(None, ge=1, description="directions of every class; at most d are sent")
    energy: float | None = Field(
        None, gt=0, le=1, description="instead: part of every class's trace to keep; the rank is the largest any needs"
    )
    inner: Literal["packed", "half", "int8"] = Field("packed", description="how the factors travel")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.rank is None) == (self.energy is None):
            raise InputError(
                f"codec lowrank must have either rank or energy; got rank = {self.rank}, energy = {self.energy}. "
                "Write codec = {name = 'lowrank', energy = 0.99}."
            )
        return self

    @property
    def numbers(self) -> Numbers:
        """The factors' format."""
        return FORMATS[self.inner]

    def encode(self, V: Tensor, *, difference: bool = False) -> Parts:
        """Return the factors (h, r, d), strongest direction first, and of differences the signs (h, r)."""
        values, U = torch.linalg.eigh(V)
        size = values.abs() if difference else values.clamp(min=0)
        size, order = size.sort(dim=1, descending=True)
        r = self._needed(size)
        order = order[:, :r]
        F = U.mT.take_along_dim(order[:, :, None], dim=1) * size[:, :r, None].sqrt()
        parts = self.numbers.encode("V", F)
        if difference:
            negative = values.take_along_dim(order, dim=1) < 0
            parts["V.sign"] = 1 - 2 * negative.to(torch.int8)
        return parts

    def _needed(self, size: Tensor) -> int:
        """Return r for eigenvalues of these sizes (h, d), falling."""
        d = size.shape[1]
        if self.energy is None:
            return min(self.rank or d, d)
        # Without slack: `bound` relies on the energy kept.
        return int(directions_holding(self.energy, size, slack=0).max()) if len(size) else 1

    def decode(self, parts: Payload, d: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - factors have d columns
        """Return FᵀF, with signs FᵀSF."""
        F = self.numbers.decode("V", parts, dtype)
        signed = F * parts["V.sign"].to(dtype)[:, :, None] if "V.sign" in parts else F
        V = F.mT @ signed
        return (V + V.mT) / 2

    def bound(self, parts: Payload, d: int, dtype: torch.dtype) -> Bound:
        """Bound what was cut off by the weakest direction kept, and what the numbers are off.

        No eigenvalue that was cut off is larger than λ_r, and d − r were; with `energy` they add to no more than
        (1/energy − 1) times those kept. Without signs nothing negative was cut off, so the trace cannot have grown.
        """
        F, off = self.numbers.decode("V", parts, dtype), self.numbers.error("V", parts, dtype)
        kept = (F.norm(dim=2) + off.norm(dim=2)).square()
        cut, e = d - F.shape[1], off.flatten(1).norm(dim=1)
        weakest = kept.amin(1)
        tail = cut * weakest
        if self.energy is not None:
            tail = tail.minimum((1 / self.energy - 1) * kept.sum(1))
        numbers = 2 * F.flatten(1).norm(dim=1) * e + e.square()
        above = tail + numbers if "V.sign" in parts else numbers
        return Bound(tail + numbers, above, tail.minimum(math.sqrt(cut) * weakest) + numbers)

    def layout(self, h: int, d: int, parts: Payload | None = None, *, difference: bool = False) -> Layout:
        """Return factors of rank r: as given, or with `energy` what came, 1 to d."""
        r = min(self.rank or d, d)
        if self.energy is not None and parts is not None and parts["V"].ndim == 3:
            r = min(max(parts["V"].shape[1], 1), d)
        signs: Layout = {"V.sign": ((h, r), torch.int8)} if difference else {}
        return {**self.numbers.layout("V", (h, r, d)), **signs}

    def fault(self, parts: Payload, d: int, *, difference: bool = False) -> str:
        """Refuse scales out of reach, and signs that are none.

        A factor's entries are at most the root of an eigenvalue. What r of d directions leave of a difference decays
        with 1 − r/(2d) or faster, so differences of matrices that are at most √2 apart stay below 2√2·d/r < 3d.
        """
        if "V.sign" in parts and bool((parts["V.sign"].abs() != 1).any()):
            return "'V.sign' must be 1 or −1"
        return self.numbers.fault("V", parts, math.sqrt(3 * d) if difference else 1.0)

    def settle(self, V: Tensor) -> Tensor:
        """Restore trace 1; FᵀF is positive semi-definite as it is."""
        return V / V.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]

    def label(self) -> str:
        """Name rank or energy, and the factors' format."""
        size = f"rank {self.rank}" if self.energy is None else f"{self.energy:.4g} of the trace"
        return f"codec lowrank, {size}" + ("" if self.inner == "packed" else f", {self.inner}")
