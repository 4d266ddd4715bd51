"""Coding rates: the only place where a log-determinant is taken."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ratemesh.core.checks import check_eps2, check_resolution
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError


def half_logdet(S: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return ½ logdet(I + αS) and the upper Cholesky factor of I + αS, batched.

    Args:
        S: (..., r, r) symmetric positive semi-definite.
        alpha: scalar, or (..., 1, 1) to scale each matrix.

    Returns:
        values (...,) and upper factors U (..., r, r). A matrix that is not finite or not positive
        definite gives NaN, never a placeholder: callers name the class it came from.
    """
    A = alpha * S
    A.diagonal(dim1=-2, dim2=-1).add_(1)
    U, info = torch.linalg.cholesky_ex(A, upper=True)  # LAPACK's own layout: a fifth faster than the lower factor
    value = U.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.where(info == 0, value, torch.full_like(value, torch.nan)), U


def coding_rate(V: Tensor, eps2: float = 0.5) -> Tensor:
    """Return rate(V) = ½ logdet(I + (d/ε²) V), paper eq. (eqR) with V = ZᵀZ/m.

    Args:
        V: (..., d, d) second moments.
        eps2: ε², the squared distortion.

    Returns:
        (...,) rates in nats; zero for V = 0.

    >>> round(coding_rate(torch.eye(4) / 4, eps2=0.5).item(), 4)  # (4/2) log(1 + 2)
    2.1972
    """
    check_eps2(eps2)
    if V.ndim < 2 or V.shape[-1] != V.shape[-2]:
        raise InputError(
            f"V must be square second moments (..., d, d); got {tuple(V.shape)}. "
            "For features Z (m, d) pass Z.T @ Z / len(Z)."
        )
    check_resolution(V.dtype, V.shape[-1], eps2)
    return half_logdet(V, V.shape[-1] / eps2)[0]


@dataclass(frozen=True)
class RateTerms:
    """Named terms of the rate reduction, scalars: `reduction = expand − compress`."""

    expand: Tensor
    compress: Tensor

    @property
    def reduction(self) -> Tensor:
        """ΔR, eq. (MCR2)."""
        return self.expand - self.compress

    def numbers(self) -> dict[str, float]:
        """Return the terms by name, as round logs hold them."""
        return {"expand": float(self.expand), "compress": float(self.compress), "reduction": float(self.reduction)}


@dataclass(frozen=True)
class ConsensusTerms(RateTerms):
    """Named terms of the local objective (lagran1_2); scalars, only `total` carries a gradient.

    `coupled` is ⟨Y, V⟩ + γΣ_k n_k‖V_k − T̄_k‖²; its two parts are computed on demand, because a
    training step needs only their sum.
    """

    coupled: Tensor
    total: Tensor
    dual_part: Callable[[], Tensor] = field(repr=False)

    @cached_property
    def dual(self) -> Tensor:
        """⟨Y, V⟩."""
        return self.dual_part()

    @property
    def penalty(self) -> Tensor:
        """γ Σ_k n_k ‖V_k − T̄_k‖²."""
        return self.coupled - self.dual

    def numbers(self) -> dict[str, float]:
        """Return the terms by name, as round logs hold them: those of ΔR, dual, penalty and their total."""
        own = {"dual": float(self.dual), "penalty": float(self.penalty), "total": float(self.total)}
        return {**super().numbers(), **own}


def rate_reduction(stats: ClassStats, eps2: float = 0.5) -> RateTerms:
    """Return R, R^c and ΔR of class statistics, eqs. (eqR), (eqRc), (MCR2).

    ΔR = rate(Σ_k π_k V_k) − Σ_k π_k rate(V_k), a Jensen gap, so never negative. The same function
    of other (V, m) is the node objective of Algorithm 1 and the cluster objective of Algorithm 3.

    >>> s = ClassStats.of(torch.eye(2), torch.tensor([0, 1]), num_classes=2)
    >>> round(rate_reduction(s, eps2=0.5).reduction.item(), 4)  # log(1+2) - log(1+4)/2
    0.2939
    """
    return RateTerms(
        expand=coding_rate(stats.mixture(), eps2),
        compress=(stats.proportions * coding_rate(stats.V, eps2)).sum(),
    )
