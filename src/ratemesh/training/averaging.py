"""Averages of weights: what takes part, the mean, the check of what arrives, and weights that no one dominates."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, Inbox, Node

Scope = Literal["edges", "group"]
"""With whom weights are averaged: neighbours of the same architecture, or all nodes of it, edges or not."""


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


def alike(node: Node, scope: Scope) -> tuple[int, ...]:
    """Return the nodes that node i averages with, ascending: parameters of different networks have no mean."""
    if not node.kinds:
        return node.neighbours
    same = [j for j, kind in enumerate(node.kinds) if kind == node.kinds[node.index] and j != node.index]
    return tuple(j for j in same if scope == "group" or j in node.neighbours)


def weights_exchange(module: nn.Module, peers: Sequence[int]) -> Exchange:
    """Return the module's weights and this node's degree to all peers, and theirs back."""
    message = {**mixable(module), "degree": torch.tensor(len(peers), dtype=torch.int32)}
    return Exchange("weights", dict.fromkeys(peers, message), frozenset(peers))


def weights_bytes(module: nn.Module) -> int:
    """Return the payload bytes of one such message."""
    return 4 * (1 + sum(value.numel() for value in mixable(module).values()))


def combine(module: nn.Module, degree: int, inbox: Inbox) -> None:
    """θ_i ← Σ_j W_ij θ_j with Metropolis weights, W_ij = 1/(1 + max(d_i, d_j)) and W_ii = 1 − Σ_j W_ij."""
    own = mixable(module)
    for j, payload in inbox.items():
        check_exchange(payload, own, j)
    W = [1 / (1 + max(degree, int(payload["degree"]))) for payload in inbox.values()]
    load_mixable(module, weighted_mean([(1 - sum(W), own), *zip(W, inbox.values(), strict=True)]))


def check_exchange(payload: Payload, own: Payload, sender: int) -> None:
    """Refuse weights of another network, and degrees that are none."""
    check_weights(payload, own, sender, "degree")
    degree = payload["degree"]
    if degree.shape or degree.dtype != torch.int32 or int(degree) < 0:
        raise RatemeshError(f"the message of node {sender} was refused: its degree is {degree.tolist()}.")


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
