"""What every encoder shares: unit length and the node's gauge around a network."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ratemesh.devices import Precision
from ratemesh.errors import InputError
from ratemesh.seeds import seeded
from ratemesh.specs import NamedSpec


class Encoder(nn.Module):
    """A network followed by x / ‖x‖ and an orthogonal d×d gauge, so outputs lie on the unit sphere.

    The gauge is a buffer behind the normalisation: turning it changes no weight and no optimiser
    state. A turn commutes with the normalisation, so it can be folded into a last linear layer.

    Attributes:
        precision: what the network computes in; features are in the gauge's precision whatever it is.
        compiles: whether the network is compiled for training, under the same names of weights.
    """

    gauge: Tensor
    precision: Precision = "float32"
    compiles: bool = False

    def __init__(self, network: nn.Module, d: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("gauge", torch.eye(d))
        self._compiled: Callable[[Tensor], Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Where the encoder computes."""
        return self.gauge.device

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return self.gauge.shape[0]

    def forward(self, X: Tensor) -> Tensor:
        """Encode samples (m, ...) as unit vectors (m, d)."""
        return normalize(self._outputs(as_float(X)), dim=1) @ self.gauge.mT

    def placed(self, device: torch.device, precision: Precision = "float32", *, compiles: bool = False) -> "Encoder":
        """Move to a device, to compute there so; return itself."""
        self.precision, self.compiles = precision, compiles
        return self.to(device)

    def _outputs(self, X: Tensor) -> Tensor:
        """Return the network's outputs (m, d), not normalised, in the gauge's precision."""
        half = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        with half:
            outputs: Tensor = self._compiled_outputs(X) if self.compiles and self.training else self.network(X)
        return outputs.to(self.gauge.dtype)

    def _compiled_outputs(self, X: Tensor) -> Tensor:
        """Return what the compiled network puts out; compiled at the first call, of a copy for itself."""
        from torch._dynamo.exc import TorchDynamoException  # slow to import, and only needed here

        if self._compiled is None:
            self._compiled = torch.compile(self.network.forward)
        try:
            return self._compiled(X)
        except TorchDynamoException as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(
                f"compile must be false where torch.compile cannot compile an encoder; it says: {why[0]} Set compile = "
                "false, or install what it needs (on the CPU a C++ compiler)."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was compiled for these very weights: a copy has its own."""
        return {**self.__dict__, "_compiled": None}

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
