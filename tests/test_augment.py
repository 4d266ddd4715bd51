"""Augmentation: off is identity, exact where it can be, one draw a sample, repeatable from its generator."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from ratemesh.data.augment import AugmentSpec
from ratemesh.data.pixels import affine_map, crop_map, flip_map, move_pixels, shift_map, warp
from ratemesh.encoders.encoder import as_float
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config

COLOUR = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
SIMCLR = {"crop_scale": (0.2, 1), "flip": 0.5, **COLOUR, "jitter": 0.8, "grey": 0.2, "blur": 0.5}
PARTS = {
    "crop": {"crop_scale": (0.2, 0.8)},
    "shift": {"shift": 3},
    "flip": {"flip": 0.5},
    "rotate": {"rotate": 30},
    "translate": {"translate": 0.3},
    "zoom": {"zoom": (0.7, 1.3)},
    "shear": {"shear": 20},
    **{name: {name: strength} for name, strength in COLOUR.items()},
    "grey": {"grey": 0.5},
    "blur": {"blur": 0.5},
    "solarize": {"solarize": 0.5},
    "SimCLR": SIMCLR,
    "all": {**SIMCLR, "shift": 3, "rotate": 15, "translate": 0.1, "zoom": (0.9, 1.1), "shear": 5, "solarize": 0.2},
}


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    return torch.rand(n, channels, height, width, generator=draw(seed))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def same_turn(n: int, degrees: float, zoom: float = 1.0, shear: float = 0.0) -> Tensor:
    return affine_map(*(torch.full((n,), value) for value in (degrees, zoom, shear, 0.0, 0.0)))


def test_off_is_identity_and_draws_nothing() -> None:
    generator, X = draw(), images()
    before = generator.get_state()
    assert AugmentSpec().apply(X, generator) is X
    assert torch.equal(generator.get_state(), before)
    raw = (255 * X).to(torch.uint8)
    assert torch.equal(AugmentSpec().apply(raw, generator), as_float(raw))
    assert not AugmentSpec().enabled
    assert not AugmentSpec(jitter=0.0, **COLOUR).enabled
    assert AugmentSpec(crop_ratio=(0.1, 9), blur_sigma=(1, 2)) != AugmentSpec()
    assert not AugmentSpec(crop_ratio=(0.1, 9), blur_sigma=(1, 2)).enabled


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_keeps_shape_type_and_range_and_repeats(part: str, channels: int) -> None:
    spec, X = AugmentSpec(**PARTS[part]), images(40, channels, 9, 12)
    kept, state = X.clone(), torch.random.get_rng_state()
    out = spec.apply(X, draw(3))
    assert spec.enabled
    assert out.shape == X.shape
    assert out.dtype == torch.float32
    assert 0 <= out.min() <= out.max() <= 1 + 1e-6
    assert torch.equal(out, spec.apply(X, draw(3)))
    assert torch.equal(X, kept)
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing from the global generator
    if channels == 3 or part not in {"saturation", "hue", "grey"}:
        assert not torch.equal(out, spec.apply(X, draw(4)))
    else:
        torch.testing.assert_close(out, X, rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_samples_of_one_batch_get_draws_of_their_own(part: str) -> None:
    """Equal samples in, different samples out: at least two kinds for a coin, many for a range."""
    out = AugmentSpec(**PARTS[part]).apply(images(1).expand(32, -1, -1, -1), draw())
    kinds = len(torch.unique(out.flatten(1), dim=0))
    assert kinds >= (2 if part in {"flip", "grey", "solarize"} else 12)


@pytest.mark.parametrize("part", PARTS)
def test_bytes_are_the_same_as_parts_of_255(part: str) -> None:
    raw = (255 * images(8)).to(torch.uint8)
    spec = AugmentSpec(**PARTS[part])
    torch.testing.assert_close(spec.apply(raw, draw()), spec.apply(as_float(raw), draw()), rtol=0, atol=0)


def test_flips_are_exact() -> None:
    X = images(50, 3, 7, 10)
    assert torch.equal(AugmentSpec(flip=1.0).apply(X, draw()), X.flip(-1))
    some = AugmentSpec(flip=0.3).apply(X, draw())
    flipped = (some == X.flip(-1)).flatten(1).all(1)
    assert ((some == X).flatten(1).all(1) ^ flipped).all()
    assert 5 <= int(flipped.sum()) <= 25


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 4))
def test_shifts_are_windows_of_the_padded_image(seed: int, side: int, most: int) -> None:
    X = images(5, 2, side, 6, seed)
    x, y = torch.randint(-most, most + 1, (2, 5), generator=draw(seed))
    flipped = torch.rand(5, generator=draw(seed)) < 0.5
    out = move_pixels(X, flipped, x, y, most)
    for i in range(5):
        framed = pad(X[i].flip(-1) if flipped[i] else X[i], (most,) * 4)
        assert torch.equal(out[i], framed[:, most - y[i] :, most - x[i] :][:, :side, :6])


def test_sampling_agrees_with_copying_whole_pixels() -> None:
    """The two routes are one operation: flips and shifts through the affine map give the copied pixels."""
    X = images(6, 3, 9, 14)
    flipped = torch.tensor([False, True] * 3)
    x, y = column(0, 1, -2, 3, 4, -4), column(2, 0, -1, 4, -4, 1)
    sampled = warp(X, flip_map(flipped) @ shift_map(x, y), "zeros")
    torch.testing.assert_close(sampled, move_pixels(X, flipped, x.long(), y.long(), 4), rtol=0, atol=1e-5)


def test_shifts_reach_all_sides_and_no_further() -> None:
    X = torch.zeros(400, 1, 9, 9)
    X[:, 0, 4, 4] = 1
    where = AugmentSpec(shift=2).apply(X, draw()).nonzero()[:, 2:]
    assert where.amin(0).tolist() == [2, 2]
    assert where.amax(0).tolist() == [6, 6]


@pytest.mark.parametrize("quarters", [-1, 1, 2, 3])
def test_quarter_turns_are_rot90(quarters: int) -> None:
    X = images(3, 2, 9, 9)
    out = warp(X, same_turn(3, 90.0 * quarters), "zeros")
    torch.testing.assert_close(out, torch.rot90(X, quarters, (2, 3)), rtol=0, atol=1e-5)


def test_a_turn_keeps_shapes_where_the_image_is_not_square() -> None:
    """A disc off the centre stays a disc of the same size at the turned place: pixels, not parts of the sides."""
    rows, columns = torch.meshgrid(torch.arange(21.0), torch.arange(41.0), indexing="ij")
    disc = ((rows - 10) ** 2 + (columns - 26) ** 2 < 16).float()
    turned = warp(disc.expand(1, 1, -1, -1), same_turn(1, 90.0), "zeros")[0, 0]
    torch.testing.assert_close(turned.sum(), disc.sum(), rtol=1e-3, atol=0)
    assert [(turned * where).sum() / turned.sum() for where in (rows, columns)] == pytest.approx([4, 20], abs=0.01)


def test_zoom_enlarges_and_shear_slants() -> None:
    ramp = torch.arange(-4.0, 5.0).expand(1, 1, 9, 9)  # x; linear, so that sampling is exact
    torch.testing.assert_close(warp(ramp, same_turn(1, 0.0, zoom=2.0), "zeros"), ramp / 2)
    slanted = warp(ramp, same_turn(1, 0.0, shear=math.degrees(math.atan(0.5))), "border")[0, 0, :, 4]
    torch.testing.assert_close(slanted, -0.5 * torch.arange(-4.0, 5.0), rtol=0, atol=1e-5)


def test_a_crop_is_its_part_of_the_image_enlarged() -> None:
    X = images(2, 3, 8, 12)
    box = crop_map(column(0.5, 0.5), column(0.5, 0.5), column(3.0, -3.0), column(-2.0, 2.0))
    corners = torch.stack([X[0, :, :4, 6:], X[1, :, 4:, :6]])
    expected = torch.nn.functional.interpolate(corners, scale_factor=2, mode="bilinear", align_corners=False)
    inside = (..., slice(1, -1), slice(1, -1))  # on the rim `interpolate` does not see what is around the box
    torch.testing.assert_close(warp(X, box, "border")[inside], expected[inside], rtol=0, atol=1e-5)


def test_crops_have_the_area_and_ratio_asked_for_and_stay_inside() -> None:
    """Of an image whose values are its coordinates, the extremes of a crop give its box back."""
    H, W, n = 16, 24, 500
    rows, columns = torch.meshgrid(torch.arange(H) + 0.5, torch.arange(W) + 0.5, indexing="ij")
    X = torch.stack([rows / H, columns / W]).expand(n, -1, -1, -1)
    out = AugmentSpec(crop_scale=(0.1, 0.3), crop_ratio=(0.5, 2)).apply(X, draw())
    # Steps at the middle are free of the rim; a step is the box's side over the number of pixels.
    height = (out[:, 0, H // 2, 0] - out[:, 0, H // 2 - 1, 0]) * H
    width = (out[:, 1, 0, W // 2] - out[:, 1, 0, W // 2 - 1]) * W
    area, ratio = width * height, width * W / (height * H)
    assert 0.0999 <= area.min() < 0.11
    assert 0.28 < area.max() <= 0.3001
    assert 0.499 <= ratio.min() < 0.53
    assert 1.9 < ratio.max() <= 2.001
    centre = out[:, :, H // 2 - 1 : H // 2 + 1, W // 2 - 1 : W // 2 + 1].mean((2, 3))
    assert (centre[:, 0] - height / 2).min() > -1e-4
    assert (centre[:, 1] + width / 2).max() < 1 + 1e-4


def test_a_crop_alone_has_no_black_rim() -> None:
    assert AugmentSpec(crop_scale=(0.2, 1), flip=0.5).apply(torch.ones(50, 1, 8, 8), draw()).min() > 0.999
    assert AugmentSpec(crop_scale=(0.2, 1), rotate=45).apply(torch.ones(50, 1, 8, 8), draw()).min() == 0


def test_grey_takes_all_colour() -> None:
    out = AugmentSpec(grey=1.0).apply(images(), draw())
    torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=0, atol=1e-6)


def test_jitter_leaves_the_others_alone() -> None:
    X = images(60)
    out = AugmentSpec(jitter=0.4, **COLOUR).apply(X, draw())
    alone = ((out - X).abs() < 1e-6).flatten(1).all(1)
    assert 25 <= int(alone.sum()) <= 47


def test_doubles_stay_doubles() -> None:
    assert AugmentSpec(**PARTS["all"]).apply(images().double(), draw()).dtype == torch.float64


@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 8), (4, 1, 1, 8, 8)])
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match=r"augment must be off for samples that are no images .*got samples of shape \("
    ):
        AugmentSpec(flip=0.5).apply(torch.zeros(shape), draw())
    AugmentSpec().apply(torch.zeros(shape), draw())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("flip=2", r"local\.augment\.flip: .*less than or equal to 1; got 2"),
        ("flop=1", r"local\.augment\.flop is not a setting\. Did you mean 'flip'\?"),
        ("zoom=[2, 1]", r"local\.augment\.zoom: .*first number must not exceed the second"),
        ("crop_scale=[0.5, 1.5]", r"local\.augment\.crop_scale\.1: .*less than or equal to 1; got 1\.5"),
    ],
)
def test_bad_settings_name_key_value_and_remedy(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_config({}, [f"local.augment.{setting}"])


def test_settings_read_back_from_the_run_folder() -> None:
    config = make_config({"local": {"augment": SIMCLR}})
    assert config.local.augment == AugmentSpec(**SIMCLR)
    assert make_config(config.model_dump(mode="json", exclude_none=True)) == config
