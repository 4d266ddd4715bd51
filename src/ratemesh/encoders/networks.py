"""The networks; add one as a class with `network` and a line in ENCODERS."""

import math

from pydantic import Field
from torch import nn

from ratemesh.encoders.encoder import EncoderSpec, WidthField, width
from ratemesh.errors import InputError


class Mlp(EncoderSpec):
    """Fully connected layers with batch normalisation and ReLU, on flattened samples."""

    hidden: tuple[int, ...] = Field((256, 256), description="widths of the hidden layers")

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return flatten → (linear → norm → ReLU)* → linear."""
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for size in self.hidden:
            layers += [nn.Linear(inputs, size, bias=False), nn.BatchNorm1d(size), nn.ReLU()]
            inputs = size
        return nn.Sequential(*layers, nn.Linear(inputs, d))


class Conv4(EncoderSpec):
    """The paper's MNIST encoder: four convolutions, a flattening and a linear layer.

    Kernels 4×4 with stride 2, 64-128-256 channels, then one convolution over what is left of the
    image to 128 channels; LeakyReLU(0.2), batch normalisation on the middle two. Works from 8×8 up.
    """

    width: float = WidthField

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise InputError(
                f"encoder 'conv4' must be given images of at least 8×8; got samples of shape {shape}. Use 'mlp'."
            )
        a, b, c, e = (width(size, self.width) for size in (64, 128, 256, 128))
        e = max(e, d)  # fewer channels than d would bound the rank of the features, and with it R
        left = [side // 8 for side in shape[1:]]
        last = (min(4, left[0]), min(4, left[1]))
        after = math.prod(side - kernel + 1 for side, kernel in zip(left, last, strict=True))

        def halve(inputs: int, outputs: int) -> nn.Conv2d:
            return nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)

        return nn.Sequential(
            *(halve(shape[0], a), nn.LeakyReLU(0.2)),
            *(halve(a, b), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)),
            *(halve(b, c), nn.BatchNorm2d(c), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(c, e, last, bias=False), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(e * after, d)),
        )


ENCODERS: dict[str, type[EncoderSpec]] = {"conv4": Conv4, "mlp": Mlp}
