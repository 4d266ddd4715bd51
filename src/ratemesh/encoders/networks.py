"""The networks and their registry; add one as a class with `network` and a line in ENCODERS.

Residual networks are those of [He et al., Deep Residual Learning, 2015], VGG networks with batch normalisation those of
[Simonyan and Zisserman, Very Deep Convolutional Networks, 2014], both in a form for small images.
"""

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from ratemesh.encoders.encoder import (
    ChannelsLast,
    EncoderSpec,
    WidthField,
    conv_norm,
    elu_head,
    require_image,
    width,
)


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


class Subsample(nn.Module):
    """Keeps every step-th row and column: (m, C, H, W) → (m, C, H/step, W/step), rounded up."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def forward(self, X: Tensor) -> Tensor:
        """Return the pixels that a 1×1 convolution with this stride would look at."""
        return X[:, :, :: self.step, :: self.step]


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut: (m, inputs, H, W) → (m, outputs, H/stride, W/stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        # Not a convolution with stride: of fewer than 8 channels laid out last, oneDNN's gradient of a strided 1×1
        # convolution writes past its buffer (uxlfoundation/oneDNN issue 6035).
        self.shortcut = nn.Identity() if same else nn.Sequential(Subsample(stride), conv_norm(inputs, outputs, 1))
        self.relu = nn.ReLU()

    def forward(self, X: Tensor) -> Tensor:
        """Return relu(shortcut + what the convolutions add to it)."""
        added: Tensor = self.second(self.relu(self.first(X)))
        return self.relu(added + self.shortcut(X))  # type: ignore[no-any-return]


class ResNet(EncoderSpec):
    """A residual network in its form for small images: 3×3 stem without stride or pooling.

    Four stages of 64-128-256-512 channels, the last three of which halve the side, mean over the image,
    and in place of the last linear layer the paper's two layers with ELU. Works from 8×8 up, where the last
    stage sees one pixel.
    """

    blocks: ClassVar[tuple[int, int, int, int]]
    width: float = WidthField

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        require_image(type(self).__name__.lower(), shape, 8, "'mlp'")
        sizes = [width(size, self.width) for size in (64, 128, 256, 512)]
        layers: list[nn.Module] = [ChannelsLast(centred=True), conv_norm(shape[0], sizes[0], 3), nn.ReLU()]
        inputs = sizes[0]
        for stage, (size, blocks) in enumerate(zip(sizes, self.blocks, strict=True)):
            for block in range(blocks):
                layers.append(Block(inputs, size, stride=2 if stage > 0 and block == 0 else 1))
                inputs = size
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), elu_head(inputs, d))


class ResNet18(ResNet):
    """ResNet18 for small images, two-layer ELU head; from 8×8 up."""

    blocks = (2, 2, 2, 2)


class ResNet34(ResNet):
    """ResNet34 for small images, two-layer ELU head; from 8×8 up."""

    blocks = (3, 4, 6, 3)


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


ENCODERS: dict[str, type[EncoderSpec]] = {
    "conv4": Conv4,
    "mlp": Mlp,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "vgg11": Vgg11,
    "vgg16": Vgg16,
}
