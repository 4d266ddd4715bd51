"""Value and closed-form gradient of the local objective (lagran1_2), without an autograd graph.

With V the class statistics, Y the summed duals and T̄ the mean of the midpoints ½(V_i + V_j):

    L = −w·ΔR(V, m) + ⟨Y, V⟩ + γ Σ_k n_k ‖V_k − T̄_k‖²_F

With α = d/ε², A_k = I + αV_k, Ā = I + αΣ_kπ_kV_k its gradient is

    H_k = ½ w α π_k (A_k⁻¹ − Ā⁻¹) + Y_k + 2γn_k (V_k − T̄_k),      dL/dZ_k = (2/m_k) Z_k H_k

and the inverses come from the Cholesky factors that gave the log-determinants, so value and gradient
cost one batched factorisation and two batched products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ratemesh.core.rates import ConsensusTerms, half_logdet
from ratemesh.core.stats import ClassStats, Grouping, group_by_class
from ratemesh.errors import InputError


@dataclass(frozen=True)
class Coupling:
    """What ties a node to its neighbours for a whole round: duals Y, midpoints T̄, `weight` (K,) = γn_k.

    ⟨Y, V⟩ + Σ_k w_k‖V_k − T̄_k‖² = ⟨Y − 2wT̄, V⟩ + Σ_k w_k‖V_k‖² + Σ_k w_k‖T̄_k‖²: what does not depend
    on V is computed once, not every step.
    """

    Y: Tensor
    T_bar: Tensor
    weight: Tensor

    @classmethod
    def of(cls, Y: Tensor, T_bar: Tensor, n: float | Tensor, gamma: float) -> "Coupling":
        """Weigh the penalty of n neighbours (a number, or (K,) per class) by γ."""
        count = torch.as_tensor(n, dtype=Y.dtype, device=Y.device)
        return cls(Y, T_bar, gamma * count.expand(Y.shape[0]))

    def to(self, dtype: torch.dtype) -> "Coupling":
        """Return it in this precision; itself where it has it, with what is computed once a round."""
        if self.Y.dtype == dtype:
            return self
        return Coupling(self.Y.to(dtype), self.T_bar.to(dtype), self.weight.to(dtype))

    @cached_property
    def pull(self) -> Tensor:
        """Y − 2wT̄, shape (K, d, d)."""
        return torch.addcmul(self.Y, self.T_bar, self.weight[:, None, None], value=-2)

    @cached_property
    def offset(self) -> Tensor:
        """w_k‖T̄_k‖², shape (K,)."""
        return self.weight * _norm2(self.T_bar)


Evaluation = tuple[ConsensusTerms, Tensor]
"""L and H at some statistics."""


class RunningStats:
    """A running estimate V̂ of a shard's class statistics, so that the batch no longer decides what a class looks like.

    Beyond the paper. A batch with n_k < d rows of a class spans at most n_k directions, so the in-batch R^c cannot tell
    n_k mutually orthogonal vectors from a compressed class, and training stalls there. A detached running estimate V̂
    removes the cause: the gradient is that of the full-data objective at V̂, applied to the samples at hand. Given H(V̂)
    the loss is a sum over samples, so H may be refreshed only every few steps. The one mutable object of the core.

    Args:
        stats: where V̂ starts (the shard's last full statistics) and the shard's true counts.
        beta: β, weight of a new batch; 1 is the paper's in-batch loss with the batch's proportions.
        refresh: recompute H every this many batches.
        fixed: some of `stats` are other nodes' and stay: V̂ and the counts are used even where β = 1 (Algorithm 3).
    """

    def __init__(self, stats: ClassStats, beta: float = 0.1, refresh: int = 1, *, fixed: bool = False) -> None:
        if not 0 <= beta <= 1:
            raise InputError(f"beta must lie in 0..1; got {beta}. 0.05 to 0.2 works, 1 is the paper's loss.")
        if refresh < 1:
            raise InputError(f"refresh must be at least 1; got {refresh}. It counts batches between updates of H.")
        self.V = stats.V.clone()
        self.m = stats.m
        self.beta = beta
        self.refresh = refresh
        self.fixed = fixed
        self._batches = 0
        self._last: Evaluation | None = None

    def move_towards(self, batch: ClassStats, lagrangian: Callable[[ClassStats], Evaluation]) -> Evaluation:
        """Move V̂ towards the batch, V̂_k ← (1−β)V̂_k + βV_{B,k} for its classes; return L and H at V̂.

        Between refreshes the last evaluation is returned, terms included.
        """
        step = self.beta * batch.held.to(self.V.dtype)
        self.V = self.V + step[:, None, None] * (batch.V - self.V)
        if self._last is None or self._batches % self.refresh == 0:
            m = torch.where(batch.held & (self.m == 0), batch.m, self.m)
            self._last = lagrangian(ClassStats.without_means(self.V, m))
        self._batches += 1
        return self._last


def value_and_gradient(
    Z: Tensor,
    y: Tensor,
    num_classes: int,
    coupling: Coupling | None,
    eps2: float,
    scale: float,
    running: RunningStats | None,
) -> tuple[ConsensusTerms, Tensor]:
    """Return the terms of L on a batch and dL/dZ (n, d).

    Chooses the branch: d×d statistics per class, or on the CPU Gram matrices where every class has fewer than d rows;
    to know that, the host would have to wait for a GPU.
    """
    uses_running = running is not None and (running.beta < 1 or running.fixed)
    counts = not uses_running and Z.device.type == "cpu"
    groups = group_by_class(y, num_classes, whole=counts)
    if counts and groups.rows < Z.shape[1]:
        return _gram_branch(Z, y, groups, coupling, eps2, scale)
    unit = groups.m.clamp(min=1).to(Z.dtype).rsqrt()  # rows over √m_k: V_k is then a plain product
    P = groups.pad(Z * unit[y, None])
    batch = ClassStats.without_means(groups.sum_by_class(P.mT @ P), groups.m.to(Z.dtype))
    if running is not None and uses_running:
        terms, H = running.move_towards(batch, lambda stats: lagrangian(stats, coupling, eps2, scale))
    else:
        terms, H = lagrangian(batch, coupling, eps2, scale)
    return terms, groups.unpad(P @ groups.of_class(H)).mul_(2 * unit[y, None])


def lagrangian(
    stats: ClassStats, coupling: Coupling | None, eps2: float, scale: float
) -> tuple[ConsensusTerms, Tensor]:
    """Return the terms of L at class statistics, and H (K, d, d)."""
    alpha = stats.d / eps2
    pi, V = stats.proportions, stats.V
    rates, U = half_logdet(torch.cat([V, stats.mixture()[None]]), alpha)
    inverse = torch.cholesky_inverse(U, upper=True)
    H = (inverse[:-1] - inverse[-1]).mul_((0.5 * scale * alpha * pi)[:, None, None])
    if coupling is None:
        return _terms(rates[-1], pi @ rates[:-1], V.new_zeros(()), scale, lambda: V.new_zeros(())), H
    present = stats.held.to(V.dtype)
    weight = coupling.weight * present
    H.addcmul_(coupling.pull, present[:, None, None]).addcmul_(V, 2 * weight[:, None, None])
    coupled = present @ (_inner(coupling.pull, V) + coupling.offset) + weight @ _norm2(V)
    return _terms(rates[-1], pi @ rates[:-1], coupled, scale, lambda: present @ _inner(coupling.Y, V)), H


def _gram_branch(
    Z: Tensor, y: Tensor, groups: Grouping, coupling: Coupling | None, eps2: float, scale: float
) -> tuple[ConsensusTerms, Tensor]:
    """Evaluate L from the m_k×m_k Gram matrices G_k = Z_k Z_kᵀ / m_k; nothing d×d per class is formed.

    Sylvester: logdet(I + αV_k) = logdet(I + αG_k), ‖V_k‖ = ‖G_k‖, Z_k V_k = G_k Z_k and
    Z_k A_k⁻¹ = (I + αG_k)⁻¹ Z_k. Padding rows are zero and change none of these.
    """
    n, d = Z.shape
    alpha = d / eps2
    m = groups.m.to(Z.dtype)
    unit = m.clamp(min=1).rsqrt()
    P = groups.pad(Z * unit[y, None])  # (K, c, d), rows over √m_k
    G = P @ P.mT
    compress, U = half_logdet(G, alpha)
    expand, U_all = half_logdet(Z.mT @ Z, alpha / n)
    inner = torch.cholesky_inverse(U, upper=True).mul_((0.5 * scale * alpha / n * m)[:, None, None])  # (K, c, c)
    coupled = Z.new_zeros(())
    if coupling is None:
        PH = inner @ P
    else:
        present = (m > 0).to(Z.dtype)
        weight = coupling.weight * present
        PH = P @ coupling.pull
        coupled = torch.dot(PH.flatten(), P.flatten()) + weight @ _norm2(G) + present @ coupling.offset
        PH.baddbmm_(inner.addcmul_(G, 2 * weight[:, None, None]), P)
    gradient = groups.unpad(PH).mul_(2 * unit[y, None])
    # (2/m_k)·½wαπ_k is the same number for every class, so Ā⁻¹ meets Z in one plain product.
    gradient.addmm_(Z, torch.cholesky_inverse(U_all, upper=True), alpha=-scale * alpha / n)
    return _terms(expand, (m / n) @ compress, coupled, scale, lambda: _dual(P, coupling)), gradient


def _inner(A: Tensor, B: Tensor) -> Tensor:
    """Return ⟨A_k, B_k⟩ of stacks (K, r, s)."""
    out: Tensor = torch.linalg.vecdot(A.flatten(1), B.flatten(1))
    return out


def _norm2(A: Tensor) -> Tensor:
    """Return ‖A_k‖²_F of a stack (K, r, s), without a squared copy."""
    norms: Tensor = torch.linalg.vector_norm(A, dim=(1, 2))
    return norms.square()


def _dual(P: Tensor, coupling: Coupling | None) -> Tensor:
    """Return ⟨Y, V⟩ from rows P (K, c, d) over √m_k."""
    return P.new_zeros(()) if coupling is None else ((P @ coupling.Y) * P).sum()


def _terms(
    expand: Tensor, compress: Tensor, coupled: Tensor, scale: float, dual: Callable[[], Tensor]
) -> ConsensusTerms:
    return ConsensusTerms(expand, compress, coupled, coupled - scale * (expand - compress), dual)
