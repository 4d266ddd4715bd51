"""Colours of augmentation, on images (n, C, H, W) with values in [0, 1]; parameters (n,) are one a sample."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""Luma Y and the colour plane (I, Q) of the NTSC system; grey is Y."""

FROM_YIQ = torch.linalg.inv(TO_YIQ.double()).float()


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
    luma = means @ TO_YIQ[0].to(X) if colours is not None else means.mean(1)
    lift = ((1 - contrast) * brightness * luma)[:, None, None]  # the same for R, G and B, so `colours` leave it alone
    if colours is None:
        return (X * gain[..., None, None].to(X) + lift[..., None]).clamp_(0, 1)
    maps = (gain[..., None] * colours).to(X)
    return torch.baddbmm(lift.expand(-1, 3, 1), maps, X.flatten(2)).clamp_(0, 1).view_as(X)


def blur(X: Tensor, sigma: Tensor, reach: int) -> Tensor:
    """Return X under a Gaussian of standard deviation `sigma` pixels, cut off after `reach`; the rim is repeated."""
    away = torch.arange(reach + 1)
    weights = torch.exp(-((away / sigma[:, None]) ** 2) / 2)
    weights = (weights / (weights[:, :1] + 2 * weights[:, 1:].sum(1, keepdim=True))).to(X)[:, :, None, None, None]
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
