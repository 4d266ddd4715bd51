"""What every encoder shares: unit length and the node's gauge around a network, and layers of the networks."""

from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from ratemesh.errors import InputError
from ratemesh.seeds import seeded
from ratemesh.specs import NamedSpec


class Encoder(nn.Module):
    """A network followed by x / ‖x‖ and an orthogonal d×d gauge, so outputs lie on the unit sphere.

    The gauge is a buffer behind the normalisation: turning it changes no weight and no optimiser
    state. A turn commutes with the normalisation, so it can be folded into a last linear layer.
    """

    gauge: Tensor

    def __init__(self, network: nn.Module, d: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("gauge", torch.eye(d))

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return self.gauge.shape[0]

    def forward(self, X: Tensor) -> Tensor:
        """Encode samples (m, ...) as unit vectors (m, d)."""
        return normalize(self.network(as_float(X)), dim=1) @ self.gauge.mT

    @torch.no_grad()
    def turn(self, Q: Tensor) -> None:
        """Compose the orthogonal Q (d, d) into the gauge: features become Z @ Q.T."""
        U, _, Wh = torch.linalg.svd(Q.to(self.gauge) @ self.gauge)  # rounding must not pile up over rounds
        self.gauge.copy_(U @ Wh)


def as_float(X: Tensor) -> Tensor:
    """Return uint8 samples as float32 in [0, 1], and floats as they are."""
    return X.float() / 255 if X.dtype == torch.uint8 else X


class EncoderSpec(NamedSpec):
    """Settings of an encoder."""

    kind: ClassVar[str] = "encoder"

    @abstractmethod
    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for samples of `shape` and d outputs, not normalised."""

    def build(self, shape: tuple[int, ...], d: int, seed: int, *names: object) -> Encoder:
        """Return the encoder with initial weights drawn from the seed and names."""
        with seeded(seed, "encoder", *names):
            return Encoder(self.network(shape, d), d)


def width(channels: int, factor: float) -> int:
    """Scale a number of channels, at least 1."""
    return max(1, round(channels * factor))


WidthField = Field(1.0, gt=0, le=16, description="multiplies every hidden width")


def require_image(encoder: str, shape: tuple[int, ...], smallest: int, instead: str) -> None:
    """Refuse samples that are no images (channels, height, width) of at least smallest × smallest."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
        raise InputError(
            f"encoder '{encoder}' must be given images of at least {smallest}×{smallest}; got samples of shape "
            f"{shape}, read as (channels, height, width). Use {instead}."
        )


class ChannelsLast(nn.Module):
    """Lays images (m, C, H, W) out with the channels innermost; convolutions then keep that layout.

    On one CPU thread a training step of a narrow network was 1.04 to 1.37 times as fast; two threads and wide
    networks are not settled (benchmarks/RESULTS.md). Weights keep the usual layout, so that optimiser state,
    checkpoints and messages need not care.

    Args:
        centred: move pixels from [0, 1] to [−1, 1], for natural images, whose mean is near the middle: a kernel's sum
            then no longer outweighs its differences, and zeros around the image are grey, not black.
    """

    def __init__(self, *, centred: bool = False) -> None:
        super().__init__()
        self.centred = centred

    def forward(self, X: Tensor) -> Tensor:
        """Return a copy of X; of one channel, `contiguous` would return X itself and convolutions not notice."""
        laid = torch.empty_like(X, memory_format=torch.channels_last).copy_(X)
        return laid.mul_(2).sub_(1) if self.centred else laid


def elu_head(features: int, d: int) -> nn.Sequential:
    """Return the paper's head: features (m, p) → linear → ELU → linear → (m, d).

    The hidden layer is as wide as the features. A narrow network has p < d, and a linear map of p features has
    rank p at most, which would bound R. Behind an ELU the rank can reach d, but a unit that is positive for all
    samples is linear: then the layer has 2d units, not d.
    """
    hidden = features if features >= d else 2 * d
    return nn.Sequential(nn.Linear(features, hidden), nn.ELU(), nn.Linear(hidden, d))


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the side (divided by the stride), and batch normalisation.

    No bias: the normalisation would take it off again.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))
