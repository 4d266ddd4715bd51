"""VGG networks with batch normalisation [Simonyan and Zisserman, Very Deep Convolutional Networks, 2014]."""

from typing import ClassVar

from torch import nn

from ratemesh.encoders.encoder import EncoderSpec, WidthField, width
from ratemesh.encoders.layers import ChannelsLast, conv_norm, elu_head, require_image

SIDE = 32
"""Five halvings leave one pixel of it."""

BLACK = -1.0
"""A pixel of 0 once it is centred."""


class Vgg(EncoderSpec):
    """A VGG network: 3×3 convolutions with batch normalisation and ReLU, five times a pooling by 2.

    64-128-256-512-512 channels, mean over what is left of the image (one pixel of 32×32), and in place of
    the three fully connected layers, made for 224×224, the paper's two with ELU. Five halvings need
    32×32: images from 28×28 up get a black frame to that size inside the network; smaller ones, which
    would be mostly frame, are refused.
    """

    convolutions: ClassVar[tuple[int, int, int, int, int]]
    width: float = WidthField

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        instead = "'conv4', 'resnet18' or 'resnet34' (from 8×8), or 'mlp'"
        require_image(type(self).__name__.lower(), shape, 28, instead)
        layers: list[nn.Module] = [ChannelsLast(centred=True), _frame(shape[1], shape[2])]
        inputs = shape[0]
        for size, convolutions in zip((64, 128, 256, 512, 512), self.convolutions, strict=True):
            for _ in range(convolutions):
                layers += [conv_norm(inputs, width(size, self.width), 3), nn.ReLU()]
                inputs = width(size, self.width)
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), elu_head(inputs, d))


class Vgg11(Vgg):
    """VGG11 with batch normalisation, two-layer ELU head; from 28×28 up, framed to 32×32."""

    convolutions = (1, 1, 2, 2, 2)


class Vgg16(Vgg):
    """VGG16 with batch normalisation, two-layer ELU head; from 28×28 up, framed to 32×32."""

    convolutions = (2, 2, 3, 3, 3)


def _frame(height: int, width: int) -> nn.Module:
    """Return a layer that puts black around centred images below 32×32, an odd line at the bottom and the right."""
    rows, columns = max(0, SIDE - height), max(0, SIDE - width)
    if not rows and not columns:
        return nn.Identity()
    return nn.ConstantPad2d((columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), BLACK)
