"""Random changes of images that keep their class: batched, one draw a sample, from the generator given.

Draws are made on the CPU, so that they are the same for every device; pixels change on the device that they are on.
"""

import math
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from ratemesh.data import pixels
from ratemesh.devices import moved
from ratemesh.errors import InputError
from ratemesh.specs import Spec


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError("the first number must not exceed the second")
    return pair


Positive = Annotated[float, Field(gt=0, le=100)]
Part = Annotated[float, Field(gt=0, le=1)]
Range = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
Parts = Annotated[tuple[Part, Part], AfterValidator(_ordered)]


class AugmentSpec(Spec):
    """Augmentation of images in training; all off by default, every part drawn for each sample on its own.

    In this order: crop, flip, affine (shear, zoom, rotate, translate) and shift, as one map; brightness,
    contrast, saturation, hue and grey, as one matrix; blur; solarize. Images (n, C, H, W) with values in
    [0, 1], or uint8; other than three channels take brightness and contrast only. New ground is black;
    a crop alone stays on the image.
    """

    crop_scale: Parts = Field((1.0, 1.0), description="part of the area that a crop, enlarged to full size, keeps")
    crop_ratio: Range = Field((3 / 4, 4 / 3), description="width over height of such a crop")
    shift: int = Field(0, ge=0, le=1000, description="most whole pixels moved along each axis (crop of a padded image)")
    flip: float = Field(0.0, ge=0, le=1, description="probability of swapping left and right")
    rotate: float = Field(0.0, ge=0, le=180, description="most degrees turned, either way")
    translate: float = Field(0.0, ge=0, le=1, description="most part of the side moved, either way")
    zoom: Range = Field((1.0, 1.0), description="enlargement")
    shear: float = Field(0.0, ge=0, lt=90, description="most degrees sheared along x, either way")
    brightness: float = Field(0.0, ge=0, description="factor within 1 ± this, not below 0")
    contrast: float = Field(0.0, ge=0, description="factor within 1 ± this, not below 0")
    saturation: float = Field(0.0, ge=0, description="factor within 1 ± this, not below 0; three channels only")
    hue: float = Field(0.0, ge=0, le=0.5, description="most of a full circle of hues, either way; three channels only")
    jitter: float = Field(
        1.0, ge=0, le=1, description="probability of brightness, contrast, saturation and hue together"
    )
    grey: float = Field(0.0, ge=0, le=1, description="probability of losing all colour; three channels only")
    blur: float = Field(0.0, ge=0, le=1, description="probability of a Gaussian blur")
    blur_sigma: Range = Field((0.1, 2.0), description="standard deviation of the blur, in pixels")
    blur_reach: int = Field(1, ge=1, le=15, description="pixels that the blur looks at to either side")
    solarize: float = Field(0.0, ge=0, le=1, description="probability of inverting bright values")
    solarize_from: float = Field(0.5, ge=0, le=1, description="smallest value that is inverted")

    @property
    def enabled(self) -> bool:
        """Whether anything is on."""
        chances = (self.flip, self.grey, self.blur, self.solarize)
        return self._crops or self._turns or self._jitters or self.shift > 0 or max(chances) > 0

    @property
    def _crops(self) -> bool:
        return self.crop_scale != (1, 1)

    @property
    def _turns(self) -> bool:
        return max(self.rotate, self.translate, self.shear) > 0 or self.zoom != (1, 1)

    @property
    def _jitters(self) -> bool:
        return self.jitter > 0 and max(self.brightness, self.contrast, self.saturation, self.hue) > 0

    def check(self, shape: tuple[int, ...], where: str = "augment") -> None:
        """Refuse samples of a shape that is not (C, H, W), if anything is on."""
        if self.enabled and len(shape) != 3:
            raise InputError(
                f"{where} must be off for samples that are no images (channels, height, width); got samples of shape "
                f"{tuple(shape)}. Leave {where} out, or use images."
            )

    @torch.no_grad()
    def apply(self, X: Tensor, draw: torch.Generator) -> Tensor:
        """Return changed copies of X (n, C, H, W) as floats; uint8 becomes float32 in [0, 1]. X itself stays.

        >>> AugmentSpec(flip=1.0).apply(torch.tensor([[[[0.25, 0.5]]]]), torch.Generator())
        tensor([[[[0.5000, 0.2500]]]])
        """
        if not self.enabled:
            return pixels.as_float(X)
        self.check(tuple(X.shape[1:]))
        X = pixels.as_float(self._move(X, draw))
        if self._jitters or self.grey:
            X = self._colour(X, draw)
        if self.blur:
            rows = _chosen(self.blur, X, draw)
            sigma = _within(*self.blur_sigma, len(rows), draw)
            X = X.index_copy(0, rows, pixels.blur(X[rows], sigma, self.blur_reach))
        if self.solarize:
            rows = _chosen(self.solarize, X, draw)
            X = X.index_copy(0, rows, pixels.solarize(X[rows], self.solarize_from))
        return X

    def _move(self, X: Tensor, draw: torch.Generator) -> Tensor:
        """Crop, flip, turn and shift; whole pixels are copied, which is exact and cheaper than sampling."""
        n = len(X)
        flipped = torch.rand(n, generator=draw) < self.flip
        x, y = torch.randint(-self.shift, self.shift + 1, (2, n), generator=draw)
        if self._crops or self._turns:  # pixels fall between pixels
            back = pixels.flip_map(flipped)
            back = self._crop(n, X.shape[-2:], draw) @ back if self._crops else back
            back = back @ self._turn(n, X.shape[-2:], draw) if self._turns else back
            back = back @ pixels.shift_map(x.float(), y.float())
            # A crop never leaves the image, and its rim must not fade into black.
            return pixels.warp(pixels.as_float(X), back, "zeros" if self._turns or self.shift else "border")
        return pixels.move_pixels(X, flipped, x, y, self.shift) if self.flip or self.shift else X

    def _crop(self, n: int, size: tuple[int, ...], draw: torch.Generator) -> Tensor:
        """Draw boxes of the wanted area and ratio anywhere on the image; sides are cut to the image's."""
        H, W = size
        area = _within(*self.crop_scale, n, draw)
        ratio = _within(math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1]), n, draw).exp() * H / W
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        x, y = torch.rand(2, n, generator=draw) - 0.5
        return pixels.crop_map(width, height, x * (1 - width) * W, y * (1 - height) * H)

    def _turn(self, n: int, size: tuple[int, ...], draw: torch.Generator) -> Tensor:
        degrees, shear = (_within(-most, most, n, draw) for most in (self.rotate, self.shear))
        x, y = (_within(-self.translate, self.translate, n, draw) * side for side in (size[1], size[0]))
        return pixels.affine_map(degrees, _within(*self.zoom, n, draw), shear, x, y)

    def _colour(self, X: Tensor, draw: torch.Generator) -> Tensor:
        """Draw factors, 1 for the samples that are left alone, and recolour."""
        n = len(X)
        strengths = (self.brightness, self.contrast, self.saturation)
        factors = [_within(max(0.0, 1 - most), 1 + most, n, draw) for most in strengths]
        hue = _within(-self.hue, self.hue, n, draw)
        alone = torch.rand(n, generator=draw) >= self.jitter
        brightness, contrast, saturation = (factor.masked_fill(alone, 1) for factor in factors)
        saturation = saturation.masked_fill(torch.rand(n, generator=draw) < self.grey, 0)
        colours = pixels.colour_matrices(saturation, hue.masked_fill(alone, 0)) if X.shape[1] == 3 else None
        return pixels.recolour(X, brightness, contrast, colours)


def _within(low: float, high: float, n: int, draw: torch.Generator) -> Tensor:
    """Draw n numbers between low and high, (n,)."""
    return low + (high - low) * torch.rand(n, generator=draw)


def _chosen(chance: float, X: Tensor, draw: torch.Generator) -> Tensor:
    """Draw which of the samples X, each with this chance; return their indices, on the device of X."""
    return moved((torch.rand(len(X), generator=draw) < chance).nonzero().squeeze(1), X.device)
