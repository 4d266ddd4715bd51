"""Codecs: there and back within their stated errors and in their stated bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratemesh.core.stats import nearest_moments
from ratemesh.engines.rounds import nbytes
from ratemesh.messages.formats import FORMATS
from ratemesh.messages.statistics import StatsMessage, message_bytes
from ratemesh.methods.alg1 import Alg1
from toy_codecs import SETTINGS, D, K, codec_of, pack, read, stream_of

every_codec = pytest.mark.parametrize("words", SETTINGS)
counts_lists = st.lists(st.integers(0, 9), min_size=1, max_size=4)
dtypes = st.sampled_from([torch.float32, torch.float64])


def errors(a, b):
    """Frobenius distances of the classes held."""
    return (a.V - b.V)[a.held].flatten(1).norm(dim=1)


@every_codec
@settings(max_examples=12)
@given(counts_lists, st.integers(1, 7), st.integers(0, 10_000), dtypes)
def test_what_is_read_is_a_second_moment_as_near_as_the_codec_says(stats_of, words, counts, d, seed, dtype):
    sent = stats_of(counts, d, seed, dtype)
    codec = codec_of(words)
    payload = pack(StatsMessage(sent, 4), means=True, frame=True, codec=codec)
    back = read(payload, 0, len(counts), d, codec, dtype)
    assert (back.hops, back.stats.V.dtype) == (4, dtype)
    assert torch.equal(back.stats.m, sent.m)
    V = back.stats.V[sent.held]
    assert torch.equal(V, V.mT)
    rounding = 2e-5
    torch.testing.assert_close(V.diagonal(dim1=1, dim2=2).sum(1), torch.ones(len(V), dtype=dtype), rtol=0, atol=1e-5)
    assert bool((torch.linalg.eigvalsh(V) > -rounding).all())
    bound = codec.bound(payload, d, dtype)
    factor = 2 if codec.name == "lowrank" else 1  # the trace restored costs as much as was cut off
    limit = factor * (bound.below if codec.name == "lowrank" else bound.norm)
    assert bool((errors(sent, back.stats) <= limit + rounding).all())
    off = codec.numbers.error("mu", payload, dtype)
    assert bool(((back.stats.mu - sent.mu)[sent.held].abs() <= off + 1e-7).all())


@every_codec
@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_decoded_numbers_are_off_by_no_more_than_the_bound(stats_of, words, seed):
    """Before anything is settled; of a difference, too."""
    codec = codec_of(words)
    V = stats_of((5, 4, 8), D, seed, torch.float64).V
    if codec.remembers:
        V = V - stats_of((5, 4, 8), D, seed + 1, torch.float64).V
    parts = codec.encode(V) | ({"step": torch.tensor(1)} if codec.remembers else {})
    off = codec.decode(parts, D, V.dtype) - V
    bound = codec.bound(parts, D, V.dtype)
    trace = off.diagonal(dim1=1, dim2=2).sum(1)
    assert bool(((-bound.below - 1e-9 <= trace) & (trace <= bound.above + 1e-9)).all())
    assert bool((off.flatten(1).norm(dim=1) <= bound.norm + 1e-9).all())


@pytest.mark.parametrize(("form", "limit"), [("packed", 0.0), ("half", 2**-11), ("int8", 0.5 / 127 + 1e-6)])
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=8))
def test_single_numbers_keep_to_their_formats_error(form, limit, values):
    """int8: half of max/127; half: 2⁻¹¹ of the number, and 2⁻²⁵ where float16 ends."""
    x = torch.tensor([values])
    numbers = FORMATS[form]
    parts = numbers.encode("x", x)
    off = (numbers.decode("x", parts, x.dtype) - x).abs()
    assert bool((off <= numbers.error("x", parts, x.dtype)).all() or float(x.abs().max()) < 1e-30)
    size = x.abs().max() if form == "int8" else x.abs()
    assert bool((off <= limit * size + 2**-25).all())
    assert bool(torch.isfinite(parts["x"]).all())


def test_float16_is_nearer_than_bfloat16(stats_of):
    V = stats_of((60, 60, 60), 64).V
    error = {dtype: float((V.to(dtype).float() - V).norm() / V.norm()) for dtype in (torch.float16, torch.bfloat16)}
    assert error[torch.float16] < 4e-4
    assert error[torch.bfloat16] > 1e-3


def test_lowrank_keeps_the_energy_and_no_more_directions_than_needed():
    V = torch.diag_embed(torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.5, 0.5, 0.0, 0.0]]))
    for energy, r in ((0.55, 2), (0.9 - 1e-6, 2), (0.95, 3), (1.0, 3)):
        parts = Alg1(codec={"name": "lowrank", "energy": energy}).codec.encode(V)
        assert parts["V"].shape == (2, r, 4)
    codec = Alg1(codec={"name": "lowrank", "rank": 1}).codec
    back = codec.settle(codec.decode(codec.encode(V), 4, V.dtype))
    torch.testing.assert_close(back[0], torch.diag(torch.tensor([1.0, 0, 0, 0])))


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_nearest_second_moment_is_nearer_to_all_others(stats_of, seed, d):
    true = stats_of((7,), d, seed, torch.float64).V
    noise = torch.randn(1, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noisy = true + 0.3 * (noise + noise.mT)
    near = nearest_moments(noisy)
    assert float((near - true).norm()) <= float((noisy - true).norm()) + 1e-12
    torch.testing.assert_close(nearest_moments(near), near)
    torch.testing.assert_close(nearest_moments(true), true)


HAND = {  # h = 2, d = 6: 21 numbers a triangle, 18 a factor of rank 3, 6 a mean
    "packed": 4 * (42 + 12),
    "half": 2 * (42 + 12),
    "int8": 42 + 8 + 12 + 8,
    "rank": 4 * (36 + 12),
    "rank half": 2 * (36 + 12),
    "rank int8": 36 + 8 + 12 + 8,
}


@every_codec
def test_bytes_are_those_of_the_formula(stats_of, words):
    stream = stream_of(words)
    for seed in (0, 1, 2):
        payload, _ = stream.pack(StatsMessage(stats_of(seed=seed)))
        declared = message_bytes(stream.codec, 2, K, D, means=True, frame=True)
        inner = words.removeprefix("delta ")
        if "energy" not in words:
            extra = 4 * K + 4 + (4 if stream.codec.remembers else 0)
            signs = 2 * 3 if stream.codec.remembers and "rank" in words else 0
            assert nbytes(payload) == declared == HAND[inner] + extra + signs
        else:
            r = payload["V"].shape[1]
            one = 1 if "int8" in words else 4
            assert nbytes(payload) == declared - 2 * (D - r) * (D * one + (1 if stream.codec.remembers else 0))
            assert 1 <= r < D


@every_codec
def test_the_same_statistics_give_the_same_bits(stats_of, words):
    first, second = (stream_of(words).pack(StatsMessage(stats_of()))[0] for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@every_codec
def test_sender_and_receivers_have_the_same_view_and_resuming_is_not_stopping(stats_of, words):
    sender, receiver = stream_of(words), stream_of(words, node=1)
    for seed in range(5):
        payload, told = sender.pack(StatsMessage(stats_of(seed=seed)))
        heard = receiver.read(payload, 0).stats
        assert torch.equal(told.V, heard.V)
        state = sender.state_dict(), receiver.state_dict()
        assert bool(state[0]) == sender.codec.remembers
        sender, receiver = stream_of(words), stream_of(words, node=1)
        sender.load_state_dict(state[0])
        receiver.load_state_dict(state[1])


@pytest.mark.parametrize("words", ["half", "int8", "rank", "energy"])
def test_with_error_feedback_what_is_lost_arrives_later(stats_of, words):
    """The same V sent again and again: without memory the error stays, with it it goes."""
    stats = stats_of((9, 7, 8))
    plain, delta = stream_of(words), stream_of(f"delta {words}")
    left = [float(errors(stats, delta.pack(StatsMessage(stats))[1]).max()) for _ in range(12)]
    once = float(errors(stats, plain.pack(StatsMessage(stats))[1]).max())
    assert left[-1] < 1e-6 < once
    assert left[-1] < left[0]


def test_whole_messages_come_first_and_with_other_classes(stats_of):
    sender, receiver = stream_of("delta int8"), stream_of("delta int8", node=1)
    steps = []
    for counts in ((5, 0, 8), (5, 0, 8), (5, 0, 8), (5, 2, 8), (5, 2, 8)):
        payload, _ = sender.pack(StatsMessage(stats_of(counts, seed=len(steps))))
        receiver.read(payload, 0)
        steps.append(int(payload["step"]))
    assert steps == [0, 1, 2, 0, 1]
