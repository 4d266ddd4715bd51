"""What learning without labels is made of: heads, losses of two views, and a target that follows."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from ratemesh.encoders import Encoder


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return linear → batch normalisation → ReLU → linear, for features (n, inputs)."""
    first = nn.Linear(inputs, hidden, bias=False)  # the normalisation would take a bias off again
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Projected(nn.Module):
    """An encoder f and a projector g; the projection is what losses see, the encoder's output what is kept."""

    def __init__(self, encoder: Encoder, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector

    def forward(self, X: Tensor) -> Tensor:
        """Return unit vectors g(f(x)) / ‖g(f(x))‖, (n, D), of samples (n, ...)."""
        return normalize(self.projector(self.encoder(X)), dim=1)


def nt_xent(u: Tensor, temperature: float) -> Tensor:
    """Return the contrastive loss of unit vectors u (2n, D), row i and row n + i being two views of one sample.

    The mean over rows a of −log( exp(⟨u_a, u_p⟩/τ) / Σ_{c ≠ a} exp(⟨u_a, u_c⟩/τ) ), p the other view of a.
    """
    n = len(u) // 2
    similar = (u @ u.mT / temperature).fill_diagonal_(-torch.inf)
    return cross_entropy(similar, torch.arange(2 * n, device=u.device).roll(n))


def regression_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return Σ over both views of 2 − 2 cos(prediction of one, target of the other), mean over samples; both (2n, D).

    The halves are two views of the same n samples. No gradient flows into the target.
    """
    other = target.detach().roll(len(target) // 2, 0)
    return 2 * (2 - 2 * cosine_similarity(predicted, other, dim=1)).mean()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, keep: float) -> None:
    """ξ ← β ξ + (1 − β) φ for all parameters, β being `keep`; buffers stay the target's own."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, 1 - keep)
