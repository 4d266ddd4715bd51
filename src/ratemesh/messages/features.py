"""Features of single samples as bytes: what one node says of a sample, for others to judge or to look up.

| code | bytes a sample | what both ends must share |
|---|---|---|
| `float32` | 4d | nothing |
| `int8`, `int4` | d, ⌈d/2⌉ | nothing: features have unit length, so their scale need not travel |
| `class16`, `class8` … | 16, 8 … | class statistics, the same bytes at both ends |
| `product16`, `product8` … (`products`) | 16, 8 … | the same |

Codes are rows of uint8. What a class code needs follows from the statistics in closed form, without draws: nodes that
hold the same statistics have the same code, and no codebook travels. `with_noise` is the analogue link: features as
they are, through additive noise.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from ratemesh.core.checks import UNIT_TOLERANCE, check_finite, to_tensor
from ratemesh.core.stats import ClassStats, check_stats, group_by_class
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, principal_axes
from ratemesh.errors import InputError, RatemeshError

MOST_CLASSES = 256
"""That one byte can name."""

MOST_BITS = 8
"""Bits of one coefficient at most: 256 levels leave 10⁻⁴ of its variance."""

WIDER = math.sqrt(3)
"""Many cells of a Gaussian are best when equally likely under one √3 times as wide (Panter and Dite, 1951)."""


class FeatureCode(ABC):
    """Turns features (m, d), rows of unit length, into codes (m, size) of bytes, and back.

    Attributes:
        name: in tables.
        d: dimension of the features.
        size: bytes a sample, all that travels.
    """

    def __init__(self, name: str, d: int, size: int) -> None:
        self.name, self.d, self.size = name, d, size

    def encode(self, Z: Tensor) -> Tensor:
        """Return codes (m, size), uint8, of features Z (m, d)."""
        return self._coded(_checked(Z, self.d))

    def decode(self, codes: Tensor) -> Tensor:
        """Return features (m, d), float32, rows of unit length; refuse what no sender could have sent."""
        codes = to_tensor(codes, "codes")
        if codes.dtype != torch.uint8 or codes.ndim != 2 or codes.shape[1] != self.size:
            raise RatemeshError(
                f"codes must be bytes of shape (m, {self.size}) for code '{self.name}'; got {tuple(codes.shape)} of "
                f"{codes.dtype}. Sender and receiver must use the same code."
            )
        return normalize(self._decoded(codes).double(), dim=1).float()

    @abstractmethod
    def _coded(self, Z: Tensor) -> Tensor:
        """Return codes (m, size) of checked features (m, d), double precision."""

    @abstractmethod
    def _decoded(self, codes: Tensor) -> Tensor:
        """Return features (m, d), of any length above 0, of codes of the right shape."""

    def _refuse(self, bad: Tensor, why: str) -> None:
        """Raise if any sample (m,) is bad."""
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise RatemeshError(f"the code of sample {row} was refused: {why}. It is damaged, or of another code.")


def _checked(Z: Tensor, d: int) -> Tensor:
    """Return features (m, d) in double precision, or say why they are none."""
    Z = to_tensor(Z, "Z")
    if Z.ndim != 2 or Z.shape[1] != d or not Z.is_floating_point():
        raise InputError(f"Z must be features of shape (m, {d}), one sample a row; got {tuple(Z.shape)} of {Z.dtype}.")
    check_finite(Z, "Z")
    Z = Z.double()
    if bool(((Z.square().sum(1) - 1).abs() > UNIT_TOLERANCE).any()):
        raise InputError("Z must have rows of unit length. Apply torch.nn.functional.normalize(Z, dim=1).")
    return Z


class PlainCode(FeatureCode):
    """Every number as float32: nothing is lost, 4d bytes."""

    def __init__(self, d: int) -> None:
        super().__init__("float32", d, 4 * d)

    def _coded(self, Z: Tensor) -> Tensor:
        return Z.float().contiguous().view(torch.uint8)

    def _decoded(self, codes: Tensor) -> Tensor:
        Z = codes.contiguous().view(torch.float32)
        # A comparison with NaN is false, so these are refused too.
        self._refuse(~((Z.square().sum(1) - 1).abs() <= UNIT_TOLERANCE), "it must hold numbers of unit length")
        return Z


class LevelCode(FeatureCode):
    """Whole numbers q in −L..L, z ≈ q/‖q‖: one byte each (L = 127), or two to a byte (L = 7).

    A row is divided by its largest number and rounded; unit length tells the receiver the scale s ≤ 1/L. So
    |z − s·q| ≤ s/2 in every coordinate, and ‖ẑ − z‖ ≤ s√d: setting a vector to unit length at most doubles its distance
    to a unit vector.
    """

    def __init__(self, d: int, bits: int) -> None:
        super().__init__(f"int{bits}", d, math.ceil(d * bits / 8))
        self.bits, self.largest = bits, 2 ** (bits - 1) - 1

    def _coded(self, Z: Tensor) -> Tensor:
        q = (Z * (self.largest / Z.abs().amax(1, keepdim=True))).round()
        levels: Tensor = (q + self.largest + 1).to(torch.uint8)  # 1 … 2L + 1; level 0 never occurs
        if self.bits == 8:
            return levels
        even = pad(levels, (0, self.d % 2), value=self.largest + 1)
        pairs: Tensor = even[:, 0::2] * 16 + even[:, 1::2]
        return pairs

    def _decoded(self, codes: Tensor) -> Tensor:
        levels = codes if self.bits == 8 else torch.stack([codes // 16, codes % 16], dim=2).flatten(1)
        self._refuse((levels == 0).any(1), "level 0 never occurs")
        q: Tensor = levels.double() - (self.largest + 1)
        # The largest number of a row always is ±L: a row without it, one of zeros among them, was not sent so.
        self._refuse(q.abs().amax(1) != self.largest, f"its largest number must be ±{self.largest}")
        self._refuse(q[:, self.d :].any(1), "what fills the last byte must be 0")
        return q[:, : self.d]


class ClassCode(FeatureCode):
    """The name of a class in one byte, and in the others where in the class the sample lies.

    The sender takes the class k whose subspace is nearest, and sends the coefficients of z − μ_k along the principal
    axes of V_k − μ_kμ_kᵀ, each with as many bits as its variance λ is worth: a bit divides the error by 4, so bits go
    one by one to the largest λ/4^b (reverse water-filling, in whole bits). Levels are those of a Gaussian, in closed
    form.

    What lies outside the class's subspace is lost, and so is a class that the statistics do not hold; in turn a few
    bytes are enough. The class is the sender's, by shared statistics: a receiver may find more with it than with the
    features themselves.

    Args:
        stats: the shared statistics, e.g. the sum over the nodes; at most 256 classes.
        size: bytes a sample, at least 2.
        rule: how many directions a class's subspace has when the sender looks for the nearest.
    """

    def __init__(self, stats: ClassStats, size: int, rule: SubspaceRule | None = None) -> None:
        check_stats(stats, "stats")
        if not 2 <= size <= stats.d + 1:
            raise InputError(f"size must lie in 2..{stats.d + 1} bytes for d = {stats.d}; got {size}.")
        if stats.num_classes > MOST_CLASSES or not bool(stats.held.any()):
            raise InputError(
                f"stats must hold between 1 and {MOST_CLASSES} classes, named in one byte; got {stats.num_classes}, "
                f"of which {int(stats.held.sum())} have samples. Use int4 for more classes."
            )
        super().__init__(f"class{size}", stats.d, size)
        self._stats = ClassStats(stats.V.double(), stats.mu.double(), stats.m.double())
        self._judge = SubspaceJudge(rule=rule).fit_stats(self._stats)
        variance, axes = principal_axes(self._stats.covariance())
        self._coord, self._shift, self._bits = _allocated(variance, 8 * (size - 1))
        used = int(self._bits.any(0).nonzero().max()) + 1  # axes beyond carry no bit in any class
        # Eigenvectors come with either sign; the largest entry decides, so that it is the same everywhere.
        largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        self._axes = (axes * largest.sign())[:, :, :used]  # (K, d, r)
        self._spread = variance[:, :used].sqrt()  # (K, r)
        self._bits = self._bits[:, :used]

    def _coded(self, Z: Tensor) -> Tensor:
        k = self._judge.predict(Z)
        groups = group_by_class(k, self._stats.num_classes)
        x = groups.unpad(groups.pad(Z - self._stats.mu[k]) @ groups.of_class(self._axes))  # (m, r)
        levels = 2 ** self._bits[k]
        u = x / self._spread[k].clamp(min=torch.finfo(x.dtype).tiny)
        q = (levels * torch.special.ndtr(u / WIDER)).long().minimum(levels - 1)
        bits = q.gather(1, self._coord[k]) >> self._shift[k] & 1  # (m, 8·(size − 1))
        packed = torch.from_numpy(np.packbits(bits.to(torch.uint8).numpy(), axis=1))
        return torch.cat([k[:, None].to(torch.uint8), packed], dim=1)

    def _decoded(self, codes: Tensor) -> Tensor:
        k = codes[:, 0].long()
        known = self._stats.held.nonzero()[:, 0]
        self._refuse(~torch.isin(k, known), "it names a class that the statistics do not hold")
        bits = torch.from_numpy(np.unpackbits(codes[:, 1:].numpy(), axis=1)).long()
        q = torch.zeros_like(self._bits[k]).scatter_add(1, self._coord[k], bits << self._shift[k])
        x = _centroids(q, 2 ** self._bits[k]) * self._spread[k]
        return placed(x, k, self._axes) + self._stats.mu[k]


def placed(x: Tensor, k: Tensor, axes: Tensor) -> Tensor:
    """Return Σ_p x_p u_p (m, d) of coefficients x (m, r) along the axes u_p of classes k (m,); axes are (K, d, r)."""
    groups = group_by_class(k, len(axes))
    return groups.unpad(groups.pad(x) @ groups.of_class(axes).mT)


def _allocated(variance: Tensor, total: int) -> tuple[Tensor, Tensor, Tensor]:
    """Share `total` bits among coefficients of these variances (K, d), largest first.

    Returns:
        Coefficient and place in its number of every bit, (K, total) each; and the bits of every coefficient, (K, d).
    """
    K, d = variance.shape
    gains = variance[:, :, None] * 4.0 ** -torch.arange(MOST_BITS, dtype=variance.dtype)
    coord = gains.flatten(1).topk(total).indices.div(MOST_BITS, rounding_mode="floor").sort().values
    bits = torch.zeros(K, d, dtype=torch.long).scatter_add(1, coord, torch.ones_like(coord))
    last = bits.cumsum(1) - 1
    return coord, last.gather(1, coord) - torch.arange(total), bits


def _centroids(q: Tensor, levels: Tensor) -> Tensor:
    """Return the mean of a standard Gaussian inside cell q of so many, as `ClassCode` divides it."""
    low, high = (WIDER * torch.special.ndtri(edge.double() / levels) for edge in (q, q + 1))
    density = [torch.exp(-edge.square() / 2) / math.sqrt(2 * math.pi) for edge in (low, high)]
    mean: Tensor = (density[0] - density[1]) / (torch.special.ndtr(high) - torch.special.ndtr(low))
    return mean


def with_noise(Z: Tensor, snr: float, draw: torch.Generator) -> Tensor:
    """Return features (..., d) as they arrive over an analogue link with additive white Gaussian noise.

    The receiver knows that features have unit length, and restores it.

    Args:
        snr: signal-to-noise ratio in dB, 10·log₁₀ of 1 over the noise's squared length; infinity is no noise.
        draw: where the noise comes from.
    """
    if math.isnan(snr) or snr == -math.inf:
        raise InputError(f"snr must be a number of dB, or infinity for no noise; got {snr}.")
    noise = torch.randn(Z.shape, generator=draw, dtype=Z.dtype)
    return normalize(Z + noise * math.sqrt(10 ** (-snr / 10) / Z.shape[-1]), dim=-1)
