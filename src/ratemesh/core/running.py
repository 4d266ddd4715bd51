"""Running class statistics: the batch no longer decides what a class looks like (beyond the paper).

A batch with n_k < d rows of a class spans at most n_k directions, so the in-batch R^c cannot tell n_k
mutually orthogonal vectors from a compressed class, and training stalls there. A detached running
estimate V̂ removes the cause: the gradient is that of the full-data objective at V̂, applied to the
samples at hand. Given H(V̂) the loss is a sum over samples, so H may be refreshed only every few steps.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ratemesh.core.rates import ConsensusTerms
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError

Evaluation = tuple[ConsensusTerms, Tensor]
"""L and H at some statistics."""


class RunningStats:
    """A running estimate V̂ of a shard's class statistics; the one mutable object of the core.

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
