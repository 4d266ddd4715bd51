"""Colours and blur of augmentation against the plain formulas."""

import colorsys
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ratemesh.data.augment import AugmentSpec
from ratemesh.data.pixels import blur, colour_matrices, recolour, solarize
from test_augment import column, draw, images


def luma(pixel: Tensor) -> float:
    return float(0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2])


def test_colours_follow_the_plain_formulas() -> None:
    """Pixel by pixel, one operation after the other, clamped at the end."""
    X = images(4, 3, 3, 2)
    b, c, s = column(0.7, 1.3, 1.0, 0.4), column(0.5, 1.6, 1.0, 0.0), column(1.0, 0.3, 1.9, 0.0)
    out = recolour(X, b, c, colour_matrices(s, torch.zeros(4)))
    for i in range(4):
        bright = b[i] * X[i]
        mean = sum(luma(bright[:, y, x]) for y in range(3) for x in range(2)) / 6
        for y in range(3):
            for x in range(2):
                contrasted = mean + c[i] * (bright[:, y, x] - mean)
                grey = luma(contrasted)
                expected = (grey + s[i] * (contrasted - grey)).clamp(0, 1)
                torch.testing.assert_close(out[i, :, y, x], expected, rtol=0, atol=1e-3)


def test_one_channel_takes_brightness_and_contrast() -> None:
    X = images(2, 1)
    out = recolour(X, column(0.5, 1.0), column(1.0, 0.5), None)
    torch.testing.assert_close(out[0], X[0] / 2)
    torch.testing.assert_close(out[1], X[1] / 2 + X[1].mean() / 2)


def test_hue_turns_keep_luma_and_come_full_circle() -> None:
    X = 0.4 + 0.2 * images(2)  # far from 0 and 1, where clamping would interfere
    one, neutral = torch.ones(2), colour_matrices(torch.ones(2), torch.zeros(2))
    turned = recolour(X, one, one, colour_matrices(one, column(0.3, 0.5)))
    for i, y, x in ((0, 0, 0), (1, 3, 5)):
        assert luma(turned[i, :, y, x]) == pytest.approx(luma(X[i, :, y, x]), abs=1e-3)
    assert (turned - X).abs().max() > 0.05
    torch.testing.assert_close(recolour(X, one, one, neutral), X, rtol=0, atol=1e-6)
    torch.testing.assert_close(colour_matrices(one, one), neutral, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        colour_matrices(one, column(0.25, 0.25)) @ colour_matrices(one, -column(0.25, 0.25)), neutral
    )


@pytest.mark.parametrize("turn", [-1 / 3, -0.1, 0.1, 1 / 3])
def test_hue_is_near_the_hue_of_hsv(turn: float) -> None:
    """An approximation, and in the same direction: within a twelfth of the circle."""
    for hue in (0.0, 0.15, 0.4, 0.55, 0.8):
        pixel = torch.tensor(colorsys.hsv_to_rgb(hue, 0.2, 0.6)).view(1, 3, 1, 1)
        out = recolour(pixel, torch.ones(1), torch.ones(1), colour_matrices(torch.ones(1), column(turn)))
        away = (colorsys.rgb_to_hsv(*out.flatten().tolist())[0] - hue - turn + 0.5) % 1 - 0.5
        assert abs(away) < 1 / 12


@pytest.mark.parametrize("reach", [1, 2])
def test_blur_is_a_convolution_with_a_gaussian(reach: int) -> None:
    X, sigma = images(3, 2, 6, 9), column(0.1, 0.8, 2.0)
    out = blur(X, sigma, reach)
    for i in range(3):
        line = torch.tensor([math.exp(-(k**2) / (2 * float(sigma[i]) ** 2)) for k in range(-reach, reach + 1)])
        kernel = torch.outer(line, line) / line.sum() ** 2
        framed = pad(X[i][:, None], (reach,) * 4, mode="replicate")
        torch.testing.assert_close(out[i], conv2d(framed, kernel[None, None])[:, 0], rtol=0, atol=1e-6)


def test_solarize_inverts_what_is_bright() -> None:
    X = torch.tensor([0.0, 0.2, 0.5, 0.9]).view(1, 1, 1, 4)
    torch.testing.assert_close(solarize(X, 0.5).flatten(), column(0.0, 0.2, 0.5, 0.1))
    assert torch.equal(AugmentSpec(solarize=1.0, solarize_from=0.0).apply(X, draw()), 1 - X)
