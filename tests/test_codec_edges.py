"""Messages at the edges: one dimension, no classes, many classes, float64, other types, and what is remembered."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError
from ratemesh.messages.codecs import CODECS, PACKED, Delta
from ratemesh.messages.formats import FORMATS, misshapen
from ratemesh.messages.statistics import NO_FRAME, StatsMessage, Stream, message_bytes
from toy_codecs import SETTINGS, codec_of, like, pack, read, stream_of
from toy_stats import keep, no_samples

every_codec = pytest.mark.parametrize("words", SETTINGS)


@every_codec
def test_one_dimension_has_one_second_moment(words):
    """d = 1: V is 1 for every class held, whatever the codec does to it."""
    Z, y = torch.tensor([[1.0], [-1.0], [1.0]]), torch.tensor([0, 0, 2])
    stats = ClassStats.of(Z, y, 3)
    found = read(pack(StatsMessage(stats), means=False, frame=False, codec=codec_of(words)), 1, 3, 1, codec_of(words))
    assert found.stats.V.flatten().tolist() == [1, 0, 1]
    assert found.stats.m.tolist() == [2, 0, 1]
    assert found.hops == NO_FRAME


@every_codec
def test_a_node_without_classes_says_so(words):
    """No class held: a message of counts, and of statistics that are all zero."""
    payload = pack(StatsMessage(no_samples(3, 6), 4), means=True, frame=True, codec=codec_of(words))
    assert payload["V"].numel() == 0
    found = stream_of(words).read(payload, 1)
    assert found.hops == 4
    assert not bool(found.stats.held.any())
    assert not bool(found.stats.V.any() | found.stats.mu.any())


@every_codec
def test_double_precision_is_kept_and_single_is_refused(stats_of, words):
    stats = stats_of((9, 0, 4), dtype=torch.float64)
    payload, told = stream_of(words, dtype=torch.float64).pack(StatsMessage(stats))
    found = stream_of(words, node=1, dtype=torch.float64).read(payload, 0).stats
    assert {part.dtype for part in found.tensors().values()} == {torch.float64}
    assert all(torch.equal(a, b) for a, b in zip(found.tensors().values(), told.tensors().values(), strict=True))
    reason = r"node 0 was refused: 'm' must have shape \(3,\); got \(3,\) of torch\.float64, not torch\.float32"
    with pytest.raises(RatemeshError, match=reason):
        stream_of(words).read(payload, 0)


@settings(max_examples=12)
@given(K=st.integers(1, 150), d=st.integers(1, 5), seed=st.integers(0, 2**16), means=st.booleans(), frame=st.booleans())
def test_bytes_follow_the_formula_for_any_number_of_classes(unit_rows, K, d, seed, means, frame):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, K, (8,), generator=draw)
    stats = ClassStats.of(unit_rows(8, d, seed).float(), y, K)
    held = int(stats.held.sum())
    for codec in map(codec_of, ("packed", "half", "int8", "rank int8", "delta half")):
        payload = pack(StatsMessage(stats, 0), means=means, frame=frame, codec=codec)
        assert sum(t.numel() * t.element_size() for t in payload.values()) == message_bytes(
            codec, held, K, d, means=means, frame=frame
        )
        assert torch.equal(read(payload, 0, K, d, codec).stats.m, stats.m)


def test_a_tensor_that_is_not_there_is_no_fault_and_a_wrong_one_is_named():
    layout = {"a": ((2,), torch.int8), "b": ((2,), None)}
    assert misshapen({}, layout) == ""
    assert misshapen({"a": torch.ones(2, dtype=torch.int8), "b": torch.ones(2).half()}, layout) == ""
    assert misshapen({"a": torch.ones(2)}, layout) == (
        "'a' must have shape (2,); got (2,) of torch.float32, not torch.int8"
    )
    assert misshapen({"b": torch.ones(3)}, layout) == "'b' must have shape (2,); got (3,) of torch.float32"
    assert misshapen({"b": torch.tensor([1.0, torch.inf])}, layout) == "'b' is not finite"


@pytest.mark.parametrize("form", FORMATS)
@given(seed=st.integers(0, 2**16), size=st.sampled_from([0.0, 1e-38, 1e-20, 1e-6, 1.0]))
def test_numbers_of_any_size_arrive_as_near_as_their_format_says(form, seed, size):
    """Also rows of zeros, and rows too small for a scale."""
    numbers = FORMATS[form]
    x = size * torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).clamp(-1, 1)
    x[1] = 0
    parts = numbers.encode("x", x)
    found, error = numbers.decode("x", parts, torch.float64), numbers.error("x", parts, torch.float64)
    assert bool(torch.isfinite(found).all())
    assert bool(((found - x).abs() <= error + 1e-30).all())
    assert not bool(found[1].any())
    assert numbers.fault("x", parts, 1.0) == ""


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"m": torch.tensor([5.0, -1.0, 8.0])}, "counts must not be negative, and at most 1e"),
        ({"m": torch.tensor([5.0, 0.0, 1e13])}, "counts must not be negative, and at most 1e"),
        ({"hops": torch.tensor(-2, dtype=torch.int32)}, "'hops' must be -1 or more, and at most 1000000; got -2"),
        ({"hops": torch.tensor(1000001, dtype=torch.int32)}, "'hops' must be -1 or more.*got 1000001"),
        ({"hops": torch.tensor(3)}, r"'hops' must have shape \(\); got \(\) of torch.int64, not torch.int32"),
        ({"m": torch.tensor([5, 0, 8])}, "'m' must have shape .* of torch.int64, not torch.float32"),
        ({"V": torch.zeros(2, 21, dtype=torch.int64)}, r"'V' must have shape \(2, 21\); got \(2, 21\) of torch.int64"),
        ({"m": torch.tensor([5.0, 3.0, 8.0])}, r"'V' must have shape \(3, 21\); got \(2, 21\)"),
    ],
)
def test_counts_hops_and_types_out_of_reach_are_refused(stats_of, change, match):
    payload = dict(stream_of("packed").pack(StatsMessage(stats_of(), 2))[0])
    assert stream_of("packed").read(payload, 7).hops == 2
    with pytest.raises(RatemeshError, match=f"the message of node 7 was refused: {match}"):
        stream_of("packed").read(payload | change, 7)


def test_a_refused_message_leaves_what_was_remembered_alone(stats_of):
    """The right message still follows after a wrong one."""
    sender, receiver = stream_of("delta int8"), stream_of("delta int8", node=1)
    first, second = (sender.pack(StatsMessage(stats_of(seed=seed)))[0] for seed in (0, 1))
    receiver.read(first, 0)
    before = {name: value.clone() for name, value in receiver.state_dict().items()}
    with pytest.raises(RatemeshError, match="is not finite"):
        receiver.read(dict(second) | {"V.scale": torch.full_like(second["V.scale"], torch.nan)}, 0)
    assert all(torch.equal(before[name], value) for name, value in receiver.state_dict().items())
    receiver.read(second, 0)
    assert int(receiver.state_dict()["0.step"]) == 1


def test_streams_that_do_not_remember_have_no_state_and_others_forget_on_loading(stats_of):
    for words in SETTINGS:
        stream = stream_of(words)
        stream.pack(StatsMessage(stats_of()))
        names = {"0.V", "0.mu", "0.held", "0.step"} if words.startswith("delta") else set()
        assert set(stream.state_dict()) == names
        stream.load_state_dict({})
        assert stream.state_dict() == {}


def test_a_message_after_other_classes_is_whole_again(stats_of):
    """The classes held change, so a difference would be to other classes: step 0 again, and it is read by all."""
    sender, receiver = stream_of("delta packed"), stream_of("delta packed", node=1)
    both = stats_of((5, 0, 8))
    for stats, step in ((both, 0), (both, 1), (keep(both, [2]), 0), (keep(both, [2]), 1)):
        payload = sender.pack(StatsMessage(stats))[0]
        assert int(payload["step"]) == step
        found = receiver.read(payload, 0).stats
        assert torch.allclose(found.V, stats.V, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("packed", ""),
        ("half", "codec half"),
        ("rank int8", "codec lowrank, rank 3, int8"),
        ("energy", "codec lowrank, 0.9 of the trace"),
        ("delta packed", "codec delta of packed"),
        ("delta energy int8", "codec delta of lowrank, 0.9 of the trace, int8"),
    ],
)
def test_tables_call_codecs_by_what_they_do(words, label):
    assert codec_of(words).label() == label


def test_registered_names_are_the_codecs_own_and_delta_is_of_bytes_by_default():
    for name, kind in CODECS.items():
        if name != "lowrank":
            assert kind(name=name).name == name
    assert Delta(name="delta").inner.name == "int8"
    assert PACKED.settle(torch.full((1, 2, 2), 3.0)).tolist() == [[[3, 3], [3, 3]]]  # lossless: left as it came


def test_a_stream_takes_sizes_and_type_from_the_nodes_own_statistics():
    stream = Stream(PACKED, 3, like(4, 2, torch.float64))
    assert (stream.num_classes, stream.d, stream.dtype) == (4, 2, torch.float64)
    with pytest.raises(RatemeshError, match="it must hold V and m, perhaps hops, mu; lacking or unknown: V, m"):
        stream.read({}, 0)
