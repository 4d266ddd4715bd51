"""Sketch moments: what varies inside a class, told without a sample (beyond the paper).

ΔR is flat inside a class: V_k and μ_k leave every rotation of a class's own subspace free. Let all nodes know one
function h of samples, a sketch (`data.sketches`). The covariance of a class's features with it,
C_k = E[(z − μ_k)(h − h̄_k)ᵀ | k], turns with the features, C_k → Q C_k, and is the same at all nodes up to that
turn if samples of a class follow one law everywhere. Like V it is a mean over samples: statistics of parts add up.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ratemesh.errors import InputError


@dataclass(frozen=True, eq=False)
class SketchMoments:
    """Covariances of the features of each class with a sketch of its samples, and the sketch's class means.

    Attributes:
        C: (K, d, p) sketch moments; zero where a class has no samples.
        h: (K, p) class means h̄_k of the sketch, entries in −1..1; zero where a class has no samples.
        v: (K,) the sketch's variance in a class, E[|h − h̄_k|² | k].
    """

    C: Tensor
    h: Tensor
    v: Tensor

    @classmethod
    def of(cls, P: Tensor, R: Tensor, per: Tensor, mu: Tensor) -> "SketchMoments":
        """Return the moments of sums over classes.

        Args:
            P: (K, d, p) Σ z hᵀ; R: (K, p + 1) Σ (h, |h|²); per: (K,) counts, 1 where there are none; mu: (K, d).
        """
        means = R / per[:, None]
        h = means[:, :-1]
        return cls(P / per[:, None, None] - mu[:, :, None] * h[:, None, :], h, means[:, -1] - h.square().sum(1))

    def tensors(self) -> dict[str, Tensor]:
        """Return the parts by name."""
        return {"C": self.C, "h": self.h, "v": self.v}

    @property
    def p(self) -> int:
        """Dimension of the sketch."""
        return self.C.shape[-1]

    def rotated(self, Q: Tensor) -> "SketchMoments":
        """Return the moments of Z Qᵀ."""
        return replace(self, C=Q @ self.C)

    def kept(self, keep: Tensor) -> "SketchMoments":
        """Return the moments times `keep` (K,), 1 or 0 for each class."""
        return SketchMoments(self.C * keep[:, None, None], self.h * keep[:, None], self.v * keep)

    def signal(self, spread: Tensor, m: Tensor) -> Tensor:
        """Return which part of ‖C_k‖² is no sampling noise, (K,) in 0..1.

        Where features and sketch have nothing to do with each other, E‖C_k‖² = tr Cov(z) · tr Cov(h) / (m_k − 1).

        Args:
            spread: (K,) tr Cov(z) of every class.
            m: (K,) counts.
        """
        size, noise = self.C.square().sum((1, 2)), spread * self.v / (m - 1).clamp(min=1)
        return torch.where(size > 0, 1 - noise / torch.where(size > 0, size, torch.ones_like(size)), size).clamp(min=0)

    def merged(self, other: "SketchMoments", w: Tensor, v: Tensor, apart: Tensor) -> "SketchMoments":
        """Return the moments of the union: inside the two parts, and between their means (law of total covariance).

        Args:
            w, v: (K,) this part's and the other's share of each class.
            apart: (K, d) this part's class means minus the other's.
        """
        if self.p != other.p:
            raise InputError(
                f"other must have sketch moments of the same sketch to be added: p = {self.p} against {other.p}. "
                "Compute both with one sketch."
            )
        step = self.h - other.h
        between = (w * v)[:, None, None] * apart[:, :, None] * step[:, None, :]
        C = w[:, None, None] * self.C + v[:, None, None] * other.C + between
        variance = w * self.v + v * other.v + w * v * step.square().sum(1)
        return SketchMoments(C, w[:, None] * self.h + v[:, None] * other.h, variance)


def check_sketch(H: Tensor, rows: int) -> None:
    """Require a sketch (rows, p) with entries in −1..1."""
    if not isinstance(H, Tensor) or H.ndim != 2 or len(H) != rows or not H.is_floating_point():
        got = f"{H.dtype} of shape {tuple(H.shape)}" if isinstance(H, Tensor) else type(H).__name__
        raise InputError(f"H must be floating point (m, p) with m = {rows}, one row a sample; got {got}.")
    if H.numel() and not bool(H.abs().max() <= 1):
        raise InputError(
            f"H must lie in −1..1; got {float(H.abs().max()):.4g}. Bound it, e.g. with torch.tanh: what may be "
            "accepted of others' sketch moments follows from that."
        )


SLACK = 2e-3
"""How far a bound on sketch moments may be passed by rounding."""


def sketch_fault(sketch: SketchMoments, spread: Tensor, C_off: Tensor, h_off: Tensor) -> str:
    """Say why these cannot be moments of a sketch in −1..1; empty when they can.

    Var(h_j) ≤ 1 − h̄_j², so by Cauchy–Schwarz C_aj² ≤ Cov(z)_aa · (1 − h̄_j²), over a column
    ‖C_j‖² ≤ tr Cov(z) · (1 − h̄_j²), and over all ‖C‖² ≤ tr Cov(z) · v with v = Σ_j Var(h_j) ≤ Σ_j (1 − h̄_j²).

    Args:
        sketch: moments of n classes.
        spread: (n, d) variances of the features, at least those that the sender has.
        C_off, h_off: (n, d, p) and (n, p) how far entries of C and h̄ may be off by rounding in transit.
    """
    C, v = sketch.C, sketch.v
    variances = (1 - (sketch.h.abs() - h_off).clamp(min=0).square()).clamp(min=0)
    if bool(((v < -SLACK) | (v > variances.sum(1) + SLACK)).any()):
        return f"the sketch's variance must lie between 0 and what its means leave; got {v.tolist()}"
    each = spread.clamp(min=0).sqrt()[:, :, None] * variances.sqrt()[:, None, :]
    whole = (spread.clamp(min=0).sum(1) * v.clamp(min=0)).sqrt()
    excess = [
        C.abs() - C_off - each,
        C.norm(dim=1) - C_off.norm(dim=1) - each.norm(dim=1),
        C.norm(dim=(1, 2)) - C_off.norm(dim=(1, 2)) - whole,
    ]
    if any(bool((over > SLACK).any()) for over in excess):
        return "sketch moments must not exceed what the spread of features and sketch allows"
    return ""
