"""Residual networks for small images [He et al., Deep Residual Learning, 2015]."""

from typing import ClassVar

from torch import Tensor, nn

from ratemesh.encoders.encoder import EncoderSpec, WidthField, width
from ratemesh.encoders.layers import ChannelsLast, conv_norm, elu_head, require_image


class Every(nn.Module):
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
        self.shortcut = nn.Identity() if same else nn.Sequential(Every(stride), conv_norm(inputs, outputs, 1))
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
