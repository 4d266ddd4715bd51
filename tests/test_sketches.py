"""Sketches: the same at all nodes, bounded, and blind to what must not matter; and how their moments travel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.data.sketches import SKETCHES, Auto, Convolutions, Fourier, Ngrams
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.messages.formats import NibbleNumbers
from ratemesh.messages.statistics import StatsMessage, Stream, message_bytes
from ratemesh.methods.alg1 import Alg1
from toy_codecs import SETTINGS, D, K, codec_of

IMAGES = torch.rand(7, 3, 9, 11, generator=torch.Generator().manual_seed(0))
TEXTS = ["a cat sat", "a cat sits", "the dog", "", "quite another sentence"]
SAMPLES = {"auto": IMAGES, "convolutions": IMAGES, "fourier": IMAGES.flatten(1), "ngrams": TEXTS}


def shape_of(samples):
    return tuple(samples.shape[1:]) if isinstance(samples, torch.Tensor) else ()


@pytest.mark.parametrize("name", SKETCHES)
def test_a_sketch_repeats_from_the_seed_is_bounded_and_goes_sample_by_sample(name):
    samples, spec = SAMPLES[name], SKETCHES[name](name=name, p=6)
    H = spec.build(shape_of(samples), 3)(samples)
    assert H.shape == (len(samples), 6)
    assert bool((H.abs() <= 1).all())
    assert torch.equal(H, spec.build(shape_of(samples), 3)(samples))
    assert not torch.equal(H, spec.build(shape_of(samples), 4)(samples))
    torch.testing.assert_close(H[1:3], spec.build(shape_of(samples), 3)(samples[1:3]))
    assert float(H.std(0).min()) > 0.01  # it varies


def test_auto_takes_what_fits_the_shape():
    for samples, kind in ((IMAGES, Convolutions), (IMAGES.flatten(1), Fourier)):
        spec = kind(name="x", p=4)
        assert torch.equal(
            Auto(name="auto", p=4).build(shape_of(samples), 0)(samples), spec.build(shape_of(samples), 0)(samples)
        )


@given(st.floats(0.2, 3), st.floats(-0.5, 0.5))
def test_sketches_of_images_do_not_see_brightness_and_contrast(gain, shift):
    sketch = Convolutions(p=4).build((3, 9, 11), 0)
    torch.testing.assert_close(sketch(gain * IMAGES + shift), sketch(IMAGES), atol=1e-4, rtol=0)


def test_bytes_and_floats_have_one_sketch():
    pixels = (IMAGES * 255).to(torch.uint8)
    sketch = Convolutions(p=4).build((3, 9, 11), 0)
    torch.testing.assert_close(sketch(pixels), sketch(pixels.float() / 255))


def test_like_texts_have_like_sketches():
    H = Ngrams(p=64).build((), 0)(TEXTS)
    assert (H[0] - H[1]).norm() < (H[0] - H[2]).norm()


def test_a_scale_makes_fourier_features_see_length():
    x = IMAGES.flatten(1)
    assert torch.allclose(Fourier(p=4).build((297,), 0)(2 * x), Fourier(p=4).build((297,), 0)(x), atol=1e-4)
    assert not torch.allclose(Fourier(p=4, scale=9).build((297,), 0)(2 * x), Fourier(p=4, scale=9).build((297,), 0)(x))


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"images of at least 3×3; got samples of shape \(5,\)"):
        Convolutions().build((5,), 0)
    with pytest.raises(InputError, match=r"shape \(3, 9, 11\) for this sketch; got \(3, 9, 9\)"):
        Convolutions().build((3, 9, 11), 0)(IMAGES[..., :9])
    with pytest.raises(InputError, match=r"method\.sketch\.name must be a known sketch; got 'wavelets'"):
        make_config({"method": {"name": "alg1", "sketch": "wavelets"}})
    assert Alg1(sketch={"p": 8}).sketch == Auto(name="auto", p=8)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_four_bits_come_back_to_within_half_a_step(h, pairs, seed):
    numbers = NibbleNumbers()
    x = torch.randn(h, 3, 2 * pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parts = numbers.encode("x", x)
    assert {name: part.shape for name, part in parts.items()} == {"x": (h, 3, pairs), "x.scale": (h,)}
    off = numbers.error("x", parts, torch.float64)
    assert bool(((numbers.decode("x", parts, torch.float64) - x).abs() <= off + 1e-12).all())
    assert float(off.max()) <= float(x.abs().max()) / 14 * 1.001
    assert numbers.fault("x", parts, 10.0) == ""
    assert "must lie in −7..7" in numbers.fault("x", {**parts, "x": torch.zeros_like(parts["x"])}, 10.0)


def sent_stats(seed=0, m=60, p=4):
    draw = torch.Generator().manual_seed(seed)
    H = torch.tanh(torch.randn(m, p, generator=draw))
    Z = torch.nn.functional.normalize(H @ torch.randn(p, D, generator=draw) + torch.randn(1, D, generator=draw), dim=1)
    return ClassStats.of(Z, torch.arange(m) % (K - 1), K, H=H)  # the last class has no samples


@pytest.mark.parametrize("words", SETTINGS)
def test_sketch_moments_travel_with_every_codec(words):
    stats, codec = sent_stats(), codec_of(words)
    sender, receiver = (Stream(codec, node, stats, means=True, frame=True, p=4) for node in (0, 1))
    for _ in range(2):  # the second is a difference where the codec has them
        payload, _told = sender.pack(StatsMessage(stats, 2))
        found = receiver.read(payload, 0).stats.sketch
        assert (found.C - stats.sketch.C).abs().max() <= stats.sketch.C.abs().max() / 13
        assert (found.h - stats.sketch.h).abs().max() <= 1 / 254
        assert found.C[K - 1].abs().max() == 0
    bytes_sent = sum(part.numel() * part.element_size() for part in payload.values())
    most = message_bytes(codec, K - 1, K, D, means=True, frame=True, p=4)
    assert bytes_sent <= most
    extra = most - message_bytes(codec, K - 1, K, D, means=True, frame=True)
    assert extra == (K - 1) * (D * 4 // 2 + 4 + 4 + 4 + 4)  # half a byte a number, a byte a mean, two scales, v


LIES = {
    "too large": (lambda parts: parts | {"C.scale": parts["C.scale"] * 0 + 0.14}, "must not exceed"),
    "scale": (lambda parts: parts | {"C.scale": parts["C.scale"] + 1}, r"'C\.scale' must lie in 0"),
    "not finite": (lambda parts: parts | {"h.scale": parts["h.scale"] * torch.nan}, "'h.scale' is not finite"),
    "other p": (lambda parts: parts | {"C": parts["C"][..., :1]}, "'C' must have shape"),
    "half": (lambda parts: {k: v for k, v in parts.items() if k != "h"}, "lacking or unknown: h"),
    "variance": (lambda parts: parts | {"v": parts["v"] + 5}, "variance must lie between"),
    "means": (lambda parts: parts | {"h.scale": parts["h.scale"] * 0 + 1}, r"'h\.scale' must lie in 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_sketch_moments_that_nobody_can_have_are_refused(lie):
    change, words = LIES[lie]
    stats = sent_stats()
    stream = Stream(codec_of("packed"), 0, stats, means=True, frame=True, p=4)
    payload = dict(stream.encode(StatsMessage(stats)))
    stream.read(payload, 1)
    with pytest.raises(RatemeshError, match=f"node 1 was refused.*{words}"):
        stream.read(change(payload), 1)


def test_who_expects_no_sketch_refuses_one_and_does_without():
    stats = sent_stats()
    plain, sketching = (Stream(codec_of("packed"), 0, stats, means=True, frame=True, p=p) for p in (0, 4))
    with pytest.raises(RatemeshError, match=r"unknown: C, C\.scale, h, h\.scale, v"):
        plain.read(sketching.encode(StatsMessage(stats)), 1)
    assert sketching.read(plain.encode(StatsMessage(stats)), 1).stats.sketch is None
