"""Nodes as users make them in Python: own networks, small clouds of samples, words as labels."""

import numpy as np
import torch
from torch import nn

import ratemesh as rm

WORDS = np.array(["ash", "beech", "cedar"])


class Wide(nn.Module):
    """A network as users write them."""

    def __init__(self, hidden: int = 16, d: int = 8) -> None:
        super().__init__()
        self.hidden, self.d = hidden, d
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, d))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.body(X)


class Forgetful(Wide):
    """One that does not keep what it was made of."""

    def __init__(self, secret: int) -> None:
        super().__init__(secret)


def samples(seed: int, m: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, each a cloud around its own corner; (m, 6) and places of labels (m,)."""
    draw = np.random.default_rng(seed)
    y = np.arange(m) % 3
    X = np.eye(3, 6)[y] * 3 + draw.normal(size=(m, 6))
    return X.astype(np.float32), y


def nets() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Wide(), nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8))]


def nodes(**how) -> list[rm.Node]:
    return [rm.Node(net, X, WORDS[y], **how) for net, (X, y) in zip(nets(), map(samples, (0, 1)), strict=True)]
