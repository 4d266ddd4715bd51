"""The networks and their registry; add one as a class with `network` and a line in ENCODERS.

Residual networks are those of [He et al., Deep Residual Learning, 2015], VGG networks with batch normalisation those of
[Simonyan and Zisserman, Very Deep Convolutional Networks, 2014], both in a form for small images.
"""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ratemesh.encoders.encoder import EncoderSpec
from ratemesh.errors import InputError


class ImageEncoderSpec(EncoderSpec):
    """Settings of a convolutional encoder."""

    width: float = Field(1.0, gt=0, le=16, description="multiplies every hidden width")

    def scaled(self, channels: int) -> int:
        """Scale a number of channels, at least 1."""
        return max(1, round(channels * self.width))

    def check(self, shape: tuple[int, ...], smallest: int, instead: str) -> None:
        """Refuse samples that are no images (channels, height, width) of at least smallest × smallest."""
        if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
            raise InputError(
                f"encoder '{type(self).__name__.lower()}' must be given images of at least {smallest}×{smallest}; got "
                f"samples of shape {shape}, read as (channels, height, width). Use {instead}."
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


class Conv4(ImageEncoderSpec):
    """The paper's MNIST encoder: four convolutions, a flattening and a linear layer.

    Kernels 4×4 with stride 2, 64-128-256 channels, then one convolution over what is left of the
    image to 128 channels; LeakyReLU(0.2), batch normalisation on the middle two. Works from 8×8 up.

    The paper gives the number of layers, its authors' code the sizes, for MNIST enlarged to 32×32, of which
    4×4 is left. Of 28×28 as it is, 3×3 is left, and the last convolution is 3×3: it still sees the whole
    image, and a frame of zeros to 32×32 would cost 1.3 times the arithmetic for no information.
    """

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        self.check(shape, 8, "'mlp'")
        a, b, c, e = (self.scaled(size) for size in (64, 128, 256, 128))
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


class ResNet(ImageEncoderSpec):
    """A residual network in its form for small images: 3×3 stem without stride or pooling.

    Four stages of 64-128-256-512 channels, the last three of which halve the side, mean over the image,
    and in place of the last linear layer the paper's two layers with ELU. Works from 8×8 up, where the last
    stage sees one pixel.
    """

    blocks: ClassVar[tuple[int, int, int, int]]

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        self.check(shape, 8, "'mlp'")
        sizes = [self.scaled(size) for size in (64, 128, 256, 512)]
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


class Vgg(ImageEncoderSpec):
    """A VGG network: 3×3 convolutions with batch normalisation and ReLU, five times a pooling by 2.

    64-128-256-512-512 channels, mean over what is left of the image (one pixel of 32×32), and in place of
    the three fully connected layers, made for 224×224, the paper's two with ELU. Five halvings need
    32×32: images from 28×28 up get a black frame to that size inside the network; smaller ones, which
    would be mostly frame, are refused.
    """

    convolutions: ClassVar[tuple[int, int, int, int, int]]

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:
        """Return the network for images (C, H, W)."""
        self.check(shape, 28, "'conv4', 'resnet18' or 'resnet34' (from 8×8), or 'mlp'")
        layers: list[nn.Module] = [ChannelsLast(centred=True), _frame(shape[1], shape[2])]
        inputs = shape[0]
        sizes = [self.scaled(size) for size in (64, 128, 256, 512, 512)]
        for size, convolutions in zip(sizes, self.convolutions, strict=True):
            for _ in range(convolutions):
                layers += [conv_norm(inputs, size, 3), nn.ReLU()]
                inputs = size
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
    rows, columns = max(0, 32 - height), max(0, 32 - width)
    if not rows and not columns:
        return nn.Identity()
    black = -1.0  # a pixel of 0 once it is centred
    return nn.ConstantPad2d((columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), black)


ENCODERS: dict[str, type[EncoderSpec]] = {
    "conv4": Conv4,
    "mlp": Mlp,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "vgg11": Vgg11,
    "vgg16": Vgg16,
}
