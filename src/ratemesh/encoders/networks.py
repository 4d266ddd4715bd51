"""The registry of networks, and the two smallest; add one as a class with `network` and a line in ENCODERS."""

import math

from pydantic import Field
from torch import nn

from ratemesh.encoders.encoder import EncoderSpec, WidthField, width
from ratemesh.encoders.layers import ChannelsLast, require_image
from ratemesh.encoders.resnet import ResNet18, ResNet34
from ratemesh.encoders.vgg import Vgg11, Vgg16


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

    The paper gives the number of layers, its authors' code the sizes, for MNIST enlarged to 32×32, of which
    4×4 is left. Of 28×28 as it is, 3×3 is left, and the last convolution is 3×3: it still sees the whole
    image, and a frame of zeros to 32×32 would cost 1.3 times the arithmetic for no information.
    """

    width: float = WidthField

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        require_image("conv4", shape, 8, "'mlp'")
        a, b, c, e = (width(size, self.width) for size in (64, 128, 256, 128))
        e = max(e, d)  # fewer channels than d would bound the rank of the features, and with it R
        left = [side // 8 for side in shape[1:]]
        last = (min(4, left[0]), min(4, left[1]))
        after = math.prod(side - kernel + 1 for side, kernel in zip(left, last, strict=True))

        def halve(inputs: int, outputs: int) -> nn.Conv2d:
            return nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=False)

        return nn.Sequential(
            *(ChannelsLast(), halve(shape[0], a), nn.LeakyReLU(0.2)),
            *(halve(a, b), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)),
            *(halve(b, c), nn.BatchNorm2d(c), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(c, e, last, bias=False), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(e * after, d)),
        )


ENCODERS: dict[str, type[EncoderSpec]] = {
    "conv4": Conv4,
    "mlp": Mlp,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "vgg11": Vgg11,
    "vgg16": Vgg16,
}
