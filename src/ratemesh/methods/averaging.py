"""Averages of weights: what takes part, the mean, the check of what arrives, and weights that no one dominates."""

from collections.abc import Mapping, Sequence

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from ratemesh.errors import RatemeshError


def mixable(module: nn.Module) -> dict[str, Tensor]:
    """Return what is averaged: weights and float buffers; the gauge is no part of this, counters are whole numbers."""
    return {
        name: value.clone()
        for name, value in module.state_dict().items()
        if value.is_floating_point() and not name.endswith("gauge")
    }


def load_mixable(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set weights and float buffers; what is not named, such as the counters, stays the node's own."""
    module.load_state_dict(dict(weights), strict=False)


def weighted_mean(parts: Sequence[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Return Σ w·θ name by name, over the names of the first part.

    >>> weighted_mean([(0.25, {"a": torch.tensor(4.0)}), (0.75, {"a": torch.tensor(8.0)})])
    {'a': tensor(7.)}
    """
    (first, own), *others = parts
    return {name: sum((w * x[name] for w, x in others), start=first * value) for name, value in own.items()}


def check_weights(payload: Mapping[str, Tensor], own: Mapping[str, Tensor], sender: int, *beside: str) -> None:
    """Refuse weights that are not those of the same network, or not numbers; `beside` names what else must be there."""
    if payload.keys() != own.keys() | set(beside):
        raise RatemeshError(f"the message of node {sender} was refused: its weights have other names than this node's.")
    for name, value in own.items():
        got = payload[name]
        if got.shape != value.shape or got.dtype != value.dtype or not bool(torch.isfinite(got).all()):
            raise RatemeshError(
                f"the message of node {sender} was refused: '{name}' must be finite and have shape "
                f"{tuple(value.shape)} of {value.dtype}; got {tuple(got.shape)} of {got.dtype}."
            )


def min_norm_weights(gram: Tensor) -> Tensor:
    """Return α on the simplex with the smallest αᵀGα, G (N, N) the inner products of N vectors v_k.

    At the optimum v* = Σ α_k v_k has ⟨v_k, v*⟩ ≥ ‖v*‖² for all k: going along v* serves every one of them. Exact, by
    non-negative least squares: for x ≥ 0 of any given sum s, xᵀGx + (s − 1)² is smallest in the direction of α.
    """
    values, vectors = torch.linalg.eigh(gram.double())
    root = (
        vectors * (values / values[-1].clamp(min=torch.finfo(values.dtype).tiny)).clamp(min=0).sqrt()
    )  # G = root rootᵀ
    x, _ = nnls(torch.cat([root.mT, torch.ones(1, len(gram))]).numpy(), [0.0] * len(gram) + [1.0])
    return torch.from_numpy(x / x.sum()).to(gram)
