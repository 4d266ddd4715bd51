"""What every encoder shares: unit length and the node's gauge around a network."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

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

    @property
    def title(self) -> str:
        """What people call the network."""
        return self.name

    @abstractmethod
    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for samples of `shape` and d outputs, not normalised."""

    def build(self, shape: tuple[int, ...], d: int, seed: int, *names: object) -> Encoder:
        """Return the encoder with initial weights drawn from the seed and names."""
        with seeded(seed, "encoder", *names):
            return Encoder(self.network(shape, d), d)
