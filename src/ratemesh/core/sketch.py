"""Sketch moments: what varies inside a class, told without a sample (beyond the paper).

ΔR is flat inside a class: V_k and μ_k leave every rotation of a class's own subspace free. Let all nodes know one
function h of samples, a sketch (`data.sketches`). The covariance of a class's features with it,
C_k = E[(z − μ_k)(h − h̄_k)ᵀ | k], turns with the features, C_k → Q C_k, and is the same at all nodes up to that
turn if samples of a class follow one law everywhere. Like V it is a mean over samples: statistics of parts add up.
"""

from dataclasses import dataclass

from torch import Tensor

from ratemesh.errors import InputError


@dataclass(frozen=True, eq=False)
class SketchMoments:
    """Covariances of the features of each class with a sketch of its samples, and the sketch's class means.

    Attributes:
        C: (K, d, p) sketch moments; zero where a class has no samples.
        h: (K, p) class means h̄_k of the sketch, entries in −1..1; zero where a class has no samples.
    """

    C: Tensor
    h: Tensor

    @property
    def p(self) -> int:
        """Dimension of the sketch."""
        return self.C.shape[-1]

    def rotated(self, Q: Tensor) -> "SketchMoments":
        """Return the moments of Z Qᵀ."""
        return SketchMoments(Q @ self.C, self.h)

    def kept(self, keep: Tensor) -> "SketchMoments":
        """Return the moments times `keep` (K,), 1 or 0 for each class."""
        return SketchMoments(self.C * keep[:, None, None], self.h * keep[:, None])

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
        between = (w * v)[:, None, None] * apart[:, :, None] * (self.h - other.h)[:, None, :]
        C = w[:, None, None] * self.C + v[:, None, None] * other.C + between
        return SketchMoments(C, w[:, None] * self.h + v[:, None] * other.h)


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


def sketch_fault(C: Tensor, h: Tensor, spread: Tensor, off: Tensor) -> str:
    """Say why C (n, d, p) cannot be covariances with a sketch in −1..1 of means h (n, p); empty when they can.

    Var(h_j) ≤ 1 − h̄_j², so by Cauchy–Schwarz C_aj² ≤ Cov(z)_aa · (1 − h̄_j²), and over a column
    ‖C_j‖² ≤ tr Cov(z) · (1 − h̄_j²).

    Args:
        spread: (n, d) variances of the features, at least those that the sender has.
        off: (n, d, p) how far entries of C may be off by rounding in transit.
    """
    deviation = (1 - h.square()).clamp(min=0).sqrt()[:, None, :]
    each = spread.clamp(min=0).sqrt()[:, :, None] * deviation
    entries = C.abs() - off - each
    columns = C.norm(dim=1) - off.norm(dim=1) - each.norm(dim=1)
    if bool((entries > SLACK).any() or (columns > SLACK).any()):
        return "sketch moments must not exceed what the spread of features and sketch allows"
    return ""
