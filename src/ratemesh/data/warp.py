"""Geometry of augmentation: where each pixel of the new image comes from, by one affine map a sample.

Maps are (n, 3, 3) in pixels from the image's centre, x to the right and y down, and lead from the new
image back to the old one, as sampling needs it. What happens first to the image stands furthest left.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

Outside = Literal["zeros", "border"]


def crop_map(width: Tensor, height: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return maps that fill the image with a box, (n,) each: sides as parts of the image's, centre in pixels."""
    zero = torch.zeros_like(x)
    return _rows(width, zero, x, zero, height, y)


def flip_map(flipped: Tensor) -> Tensor:
    """Return maps that swap left and right where `flipped` (n,) is true."""
    sign = 1.0 - 2.0 * flipped.to(torch.float32)
    zero = torch.zeros_like(sign)
    return _rows(sign, zero, zero, zero, zero + 1, zero)


def affine_map(degrees: Tensor, zoom: Tensor, shear: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return maps that shear along x, enlarge, turn anticlockwise about the centre and move by (x, y) pixels.

    All are (n,); `degrees` and `shear` are angles in degrees.
    """
    turn, slant = torch.deg2rad(degrees), torch.tan(torch.deg2rad(shear))
    c, s = torch.cos(turn) / zoom, torch.sin(turn) / zoom
    zero = torch.zeros_like(x)
    # Seen with y down, the way back of an anticlockwise turn is (c, -s; s, c); then the slant is undone.
    linear = _rows(c - slant * s, -s - slant * c, zero, s, c, zero)
    return linear @ shift_map(x, y)


def shift_map(x: Tensor, y: Tensor) -> Tensor:
    """Return maps that move the image by (x, y) pixels, (n,) each."""
    zero = torch.zeros_like(x)
    return _rows(zero + 1, zero, -x, zero, zero + 1, -y)


def _rows(a: Tensor, b: Tensor, x: Tensor, c: Tensor, d: Tensor, y: Tensor) -> Tensor:
    """Stack entries (n,) to maps (a b x; c d y; 0 0 1)."""
    zero = torch.zeros_like(a)
    return torch.stack([a, b, x, c, d, y, zero, zero, zero + 1], dim=1).view(-1, 3, 3)


def warp(X: Tensor, back: Tensor, outside: Outside) -> Tensor:
    """Return the images X (n, C, H, W) seen through maps `back` (n, 3, 3), bilinear, without antialiasing."""
    H, W = X.shape[-2:]
    half = torch.tensor([W / 2, H / 2, 1.0])
    grid = affine_grid((back * half / half[:, None])[:, :2].to(X.dtype), list(X.shape), align_corners=False)
    return grid_sample(X, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def move_pixels(X: Tensor, flipped: Tensor, x: Tensor, y: Tensor, most: int) -> Tensor:
    """Return X (n, C, H, W) with left and right swapped where `flipped` (n,), then moved by (x, y) pixels, (n,) each.

    Whole pixels, at most `most` along each axis; zeros come in. Copies by index: exact, and cheaper than sampling.
    """
    n, channels, H, W = X.shape
    framed = pad(X, (most, most, most, most)).flatten(2)
    forth, back = torch.arange(W), torch.arange(W).flip(0)
    # Column j of the result is column j − x of the swapped image, which is column W − 1 − (j − x) of the given one.
    columns = most + torch.where(flipped[:, None], back + x[:, None], forth - x[:, None])
    rows = most + torch.arange(H) - y[:, None]
    places = rows[:, :, None] * (W + 2 * most) + columns[:, None, :]
    return framed.gather(2, places.view(n, 1, -1).expand(-1, channels, -1)).view_as(X)
