"""Images (n, C, H, W) changed pixel by pixel, by parameters (n,), one a sample: geometry, colours, blur.

Geometry says where each pixel of the new image comes from, by one affine map a sample. Maps are (n, 3, 3) in pixels
from the image's centre, x to the right and y down, and lead from the new image back to the old one, as sampling needs
it. What happens first to the image stands furthest left. Colours are values in [0, 1].

Images may be on any device. Parameters are on the CPU, where they were drawn, and follow the images where they meet.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from ratemesh.devices import moved

TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""Luma Y and the colour plane (I, Q) of the NTSC system; grey is Y."""

FROM_YIQ = torch.linalg.inv(TO_YIQ.double()).float()


def as_float(X: Tensor) -> Tensor:
    """Return what `encoders.as_float` does, to the bit; packages of one layer do not import each other."""
    return X.float() / 255 if X.dtype == torch.uint8 else X


def crop_map(width: Tensor, height: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return maps that fill the image with a box, (n,) each: sides as parts of the image's, centre in pixels."""
    return _maps(width, 0, x, 0, height, y)


def flip_map(flipped: Tensor) -> Tensor:
    """Return maps that swap left and right where `flipped` (n,) is true."""
    return _maps(1.0 - 2.0 * flipped.to(torch.float32), 0, 0, 0, 1, 0)


def affine_map(degrees: Tensor, zoom: Tensor, shear: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return maps that shear along x, enlarge, turn anticlockwise about the centre and move by (x, y) pixels.

    All are (n,); `degrees` and `shear` are angles in degrees.
    """
    turn, slant = torch.deg2rad(degrees), torch.tan(torch.deg2rad(shear))
    c, s = torch.cos(turn) / zoom, torch.sin(turn) / zoom
    # Seen with y down, the way back of an anticlockwise turn is (c, -s; s, c); then the slant is undone.
    linear = _maps(c - slant * s, -s - slant * c, 0, s, c, 0)
    return linear @ shift_map(x, y)


def shift_map(x: Tensor, y: Tensor) -> Tensor:
    """Return maps that move the image by (x, y) pixels, (n,) each."""
    return _maps(1, 0, -x, 0, 1, -y)


def _maps(*entries: Tensor | float) -> Tensor:
    """Stack six entries, (n,) or one number for all, to maps (a b x; c d y; 0 0 1)."""
    columns = [torch.as_tensor(entry, dtype=torch.float32) for entry in (*entries, 0, 0, 1)]
    return torch.stack(torch.broadcast_tensors(*columns), dim=-1).view(-1, 3, 3)


def warp(X: Tensor, back: Tensor, outside: Literal["zeros", "border"]) -> Tensor:
    """Return the images X (n, C, H, W) seen through maps `back` (n, 3, 3), bilinear, without antialiasing."""
    H, W = X.shape[-2:]
    half = torch.tensor([W / 2, H / 2, 1.0])
    theta = moved((back * half / half[:, None])[:, :2].to(X.dtype), X.device)
    grid = affine_grid(theta, list(X.shape), align_corners=False)
    return grid_sample(X, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def move_pixels(X: Tensor, flipped: Tensor, x: Tensor, y: Tensor, most: int) -> Tensor:
    """Return X (n, C, H, W) with left and right swapped where `flipped` (n,), then moved by (x, y) pixels, (n,) each.

    Whole pixels, at most `most` along each axis; zeros come in. Copies by index: exact, and cheaper than sampling.
    """
    n, channels, H, W = X.shape
    framed = pad(X, (most, most, most, most)).flatten(2)
    flipped, x, y = (moved(parameter, X.device) for parameter in (flipped, x, y))
    forth = torch.arange(W, device=X.device)
    back = forth.flip(0)
    # Column j of the result is column j − x of the swapped image, which is column W − 1 − (j − x) of the given one.
    columns = most + torch.where(flipped[:, None], back + x[:, None], forth - x[:, None])
    rows = most + torch.arange(H, device=X.device) - y[:, None]
    places = rows[:, :, None] * (W + 2 * most) + columns[:, None, :]
    return framed.gather(2, places.view(n, 1, -1).expand(-1, channels, -1)).view_as(X)


def colour_matrices(saturation: Tensor, hue: Tensor) -> Tensor:
    """Return (n, 3, 3) maps of RGB that scale the colour plane by `saturation` and turn it by `hue` (1 is once round).

    Saturation 0 is grey. Turning the plane of YIQ keeps luma and is linear, an approximation of the hue of HSV.
    """
    turn = -2 * math.pi * hue  # from red over yellow to green is clockwise in (I, Q)
    c, s = saturation * torch.cos(turn), saturation * torch.sin(turn)
    zero = torch.zeros_like(c)
    plane = torch.stack([zero + 1, zero, zero, zero, c, -s, zero, s, c], dim=1).view(-1, 3, 3)
    maps: Tensor = FROM_YIQ @ plane @ TO_YIQ
    return maps


def recolour(X: Tensor, brightness: Tensor, contrast: Tensor, colours: Tensor | None) -> Tensor:
    """Return X times `brightness`, stretched about its mean luma by `contrast`, through `colours` (n, 3, 3), clamped.

    Without `colours` the mean is over all channels. All of it is one linear map a sample, so that values are
    clamped once, at the end.
    """
    gain = (brightness * contrast)[:, None]
    means = X.mean((2, 3))
    luma = means @ _beside(X, TO_YIQ[0]) if colours is not None else means.mean(1)
    # The same for R, G and B, so that `colours` leave it alone.
    lift = (moved((1 - contrast) * brightness, X.device) * luma)[:, None, None]
    if colours is None:
        return (X * _beside(X, gain[..., None, None]) + lift[..., None]).clamp_(0, 1)
    maps = _beside(X, gain[..., None] * colours)
    return torch.baddbmm(lift.expand(-1, 3, 1), maps, X.flatten(2)).clamp_(0, 1).view_as(X)


def _beside(X: Tensor, parameters: Tensor) -> Tensor:
    """Return parameters on the device of X, in its precision."""
    return moved(parameters.to(X.dtype), X.device)


def blur(X: Tensor, sigma: Tensor, reach: int) -> Tensor:
    """Return X under a Gaussian of standard deviation `sigma` pixels, cut off after `reach`; the rim is repeated."""
    away = torch.arange(reach + 1)
    weights = torch.exp(-((away / sigma[:, None]) ** 2) / 2)
    weights = _beside(X, weights / (weights[:, :1] + 2 * weights[:, 1:].sum(1, keepdim=True)))[:, :, None, None, None]
    for dim in (3, 2):
        framed = pad(X, (reach, reach, 0, 0) if dim == 3 else (0, 0, reach, reach), mode="replicate")
        size = X.shape[dim]
        X = X * weights[:, 0]
        for k in range(1, reach + 1):
            pair = framed.narrow(dim, reach - k, size) + framed.narrow(dim, reach + k, size)
            X = X.addcmul_(pair, weights[:, k].expand_as(pair))
    return X


def solarize(X: Tensor, threshold: float) -> Tensor:
    """Return X with every value from `threshold` up turned into 1 minus itself."""
    return torch.where(threshold <= X, 1 - X, X)
