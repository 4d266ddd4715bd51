"""Averages of weights: what takes part, the mean, the check of what arrives, and weights that no one dominates."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from ratemesh.messages.formats import FLOAT_BYTES, Payload, misshapen, refused
from ratemesh.training.protocol import Exchange, Inbox, Node

Scope = Literal["edges", "group"]
"""With whom weights are averaged: neighbours of the same architecture, or all nodes of it, edges or not."""


def _averaged(module: nn.Module) -> dict[str, Tensor]:
    """Return what is averaged: weights and float buffers; the gauge is no part of this, counters are whole numbers."""
    state = module.state_dict()
    return {name: x for name, x in state.items() if x.is_floating_point() and not name.endswith("gauge")}


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights and float buffers that are averaged."""
    return {name: value.clone() for name, value in _averaged(module).items()}


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set weights and float buffers; what is not named, such as the counters, stays the node's own."""
    module.load_state_dict(dict(weights), strict=False)


def weighted_mean(parts: Sequence[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Return Σ w·θ name by name, over the names of the first part.

    >>> weighted_mean([(0.25, {"a": torch.tensor(4.0)}), (0.75, {"a": torch.tensor(8.0)})])
    {'a': tensor(7.)}
    """
    (first, own), *others = parts
    return {name: sum((w * x[name] for w, x in others), start=first * value) for name, value in own.items()}


DEGREE = {"degree": torch.tensor(0, dtype=torch.int32)}
"""What goes with weights that neighbours average: how many peers the sender has."""


@dataclass(frozen=True)
class WeightsMessage:
    """A peer's weights by name, and single numbers that go with them."""

    weights: Mapping[str, Tensor]
    numbers: Mapping[str, float]


def read_weights(
    payload: Payload, sender: int, module: nn.Module, least: Mapping[str, Tensor] = DEGREE
) -> WeightsMessage:
    """Read weights of a network like `module`; refuse those of another one, and what is not finite.

    Args:
        least: the numbers that must go along, each as its least value, a tensor of its type.
    """
    own = _averaged(module)
    if payload.keys() != own.keys() | least.keys():
        raise refused(sender, "its weights have other names than this node's")
    if fault := misshapen(payload, {name: (x.shape, x.dtype) for name, x in {**own, **least}.items()}):
        raise refused(sender, fault)
    for name, value in least.items():
        if bool(payload[name] < value):
            raise refused(sender, f"'{name}' must be at least {value.item()}; got {payload[name].item()}")
    return WeightsMessage({name: payload[name] for name in own}, {name: payload[name].item() for name in least})


def alike(node: Node, scope: Scope) -> tuple[int, ...]:
    """Return the nodes that node i averages with, ascending: parameters of different networks have no mean."""
    if not node.kinds:
        return node.neighbours
    same = [j for j, kind in enumerate(node.kinds) if kind == node.kinds[node.index] and j != node.index]
    return tuple(j for j in same if scope == "group" or j in node.neighbours)


def weights_bytes(module: nn.Module, numbers: int = 1) -> int:
    """Return the payload bytes of a message with the weights and this many single numbers."""
    return FLOAT_BYTES * (numbers + sum(value.numel() for value in _averaged(module).values()))


def averaged(module: nn.Module, peers: Sequence[int]) -> Generator[Exchange, Inbox]:
    """θ_i ← Σ_j W_ij θ_j with Metropolis weights, W_ij = 1/(1 + max(d_i, d_j)) and W_ii = 1 − Σ_j W_ij."""
    degree = len(peers)
    message = {**weights_of(module), "degree": torch.tensor(degree, dtype=torch.int32)}
    inbox = yield Exchange("weights", dict.fromkeys(peers, message), frozenset(peers))
    W = [1 / (1 + max(degree, message.numbers["degree"])) for message in inbox.values()]
    others = zip(W, (message.weights for message in inbox.values()), strict=True)
    load_weights(module, weighted_mean([(1 - sum(W), weights_of(module)), *others]))


def min_norm_weights(gram: Tensor) -> Tensor:
    """Return α on the simplex with the smallest αᵀGα, G (N, N) the inner products of N vectors v_k.

    At the optimum v* = Σ α_k v_k has ⟨v_k, v*⟩ ≥ ‖v*‖² for all k: going along v* serves every one of them. Exact, by
    non-negative least squares: for x ≥ 0 of any given sum s, xᵀGx + (s − 1)² is smallest in the direction of α.
    """
    values, vectors = torch.linalg.eigh(gram.cpu().double())  # SciPy's solver computes there
    largest = values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    root = vectors * (values / largest).clamp(min=0).sqrt()  # root rootᵀ = G / largest
    x, _ = nnls(torch.cat([root.mT, torch.ones(1, len(gram))]).numpy(), [0.0] * len(gram) + [1.0])
    return torch.from_numpy(x / x.sum()).to(gram)
