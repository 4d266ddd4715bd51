"""Optimisers of local training: Adam as in the paper, plain gradient descent, or orthogonalised momentum (Muon)."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

Name = Literal["adam", "muon", "sgd"]

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's polynomial: odd, steep at 0; applied a few times it brings small and large singular values near 1."""

MUON_LR = 0.02
"""Learning rate of matrices unless one is given."""

VECTORS = 0.05
"""Learning rate of what is no matrix (biases, scales), as a part of that of matrices: Adam's 1e-3 beside 0.02."""


def make_optimizers(modules: nn.Module, name: Name, lr: float, weight_decay: float) -> dict[str, Optimizer]:
    """Return the optimisers of all weights by the name of their state; `share` in a group is its part of the rate."""
    weights = list(modules.parameters())
    if name == "adam":
        return {"optimizer": _adam(weights, lr, weight_decay, 1.0)}
    if name == "sgd":
        return {"optimizer": SGD([{"params": weights, "share": 1.0}], lr=lr, weight_decay=weight_decay)}
    matrices = [weight for weight in weights if weight.ndim >= 2]
    vectors = [weight for weight in weights if weight.ndim < 2]
    found: dict[str, Optimizer] = {"muon": Muon(matrices, lr, weight_decay)} if matrices else {}
    return {**found, "optimizer": _adam(vectors, lr, weight_decay, VECTORS)} if vectors else found


def _adam(weights: list[nn.Parameter], lr: float, weight_decay: float, share: float) -> Adam:
    return Adam([{"params": weights, "share": share}], lr=share * lr, weight_decay=weight_decay, fused=True)


class Muon(Optimizer):
    """Steps along the orthogonal matrix nearest to the momentum [Jordan et al., Muon, 2024].

    A step of the same length in every singular direction: rare directions of the gradient learn as fast as the few
    that dominate it, which is what a short run has no time for otherwise. Kernels (out, in, h, w) count as matrices
    (out, in·h·w). In float32, unlike torch.optim.Muon, which rounds to bfloat16 and takes matrices only.
    """

    def __init__(
        self, weights: Iterable[Tensor], lr: float, weight_decay: float = 0.0, *, momentum: float = 0.95, steps: int = 4
    ) -> None:
        super().__init__(
            weights, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps, "share": 1.0}
        )

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Change every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, group)

    def _step(self, weight: Tensor, group: dict[str, Any]) -> None:
        gradient = weight.grad.add(weight, alpha=group["weight_decay"])  # type: ignore[union-attr]
        state = self.state[weight]
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(momentum, group["momentum"]).flatten(1)  # Nesterov
        rows, columns = ahead.shape
        # A tall matrix of orthonormal columns has short rows; outputs should change as much as those of a wide one.
        length = group["lr"] * max(1.0, rows / columns) ** 0.5
        weight.sub_(length * orthogonalised(ahead, group["steps"]).reshape(weight.shape))


def orthogonalised(G: Tensor, steps: int = 4) -> Tensor:
    """Return (r, c) with the singular vectors of G and singular values near 1, by products only.

    Newton–Schulz: every step applies an odd polynomial to the singular values, all at once.

    >>> G = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    >>> bool((orthogonalised(G, 5) - torch.eye(2)).abs().max() < 0.35)
    True
    """
    a, b, c = QUINTIC
    tall = G.shape[0] > G.shape[1]
    X: Tensor = G.mT if tall else G
    X = X / X.norm().clamp(min=torch.finfo(X.dtype).tiny)
    for _ in range(steps):
        S = X @ X.mT
        X = a * X + (b * S + c * S @ S) @ X
    return X.mT if tall else X
