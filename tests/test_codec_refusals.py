"""Codecs and what they must not accept: malformed and impossible messages, and settings that make no sense."""

import pytest
import torch

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.messages.codecs import CODECS
from ratemesh.messages.statistics import StatsMessage
from toy_codecs import SETTINGS, codec_of, pack, stream_of

every_codec = pytest.mark.parametrize("words", SETTINGS)


def parts_of(payload):
    return {name: tensor for name, tensor in payload.items() if name.split(".")[0] == "V"}


def test_a_difference_to_what_never_arrived_is_refused(stats_of):
    sender, late = stream_of("delta int8"), stream_of("delta int8", node=1)
    payloads = [sender.pack(StatsMessage(stats_of(seed=seed)))[0] for seed in range(3)]
    with pytest.raises(
        RatemeshError, match=r"node 0 was refused: it is a difference to message 0, the receiver has none"
    ):
        late.read(payloads[1], 0)
    late.read(payloads[0], 0)
    with pytest.raises(RatemeshError, match=r"node 0 was refused: .* message 1, the receiver has message 0"):
        late.read(payloads[2], 0)
    other = dict(payloads[1]) | {"m": torch.tensor([5.0, 8.0, 0.0])}
    with pytest.raises(RatemeshError, match="about the classes held before"):
        late.read(other, 0)
    assert late.read(payloads[1], 0).stats.m.tolist() == [5, 0, 8]


def refused(words, payload, match):
    with pytest.raises(RatemeshError, match=rf"node 7 was refused: .*{match}"):
        stream_of(words).read(payload, 7)


@every_codec
def test_malformed_payloads_are_refused_for_every_codec(stats_of, words):
    payload = dict(stream_of(words).pack(StatsMessage(stats_of()))[0])
    stream_of(words).read(payload, 7)  # as it is, it is fine
    for name in payload.keys() - {"hops", "mu", "mu.scale"}:
        refused(words, {key: value for key, value in payload.items() if key != name}, f"lacking or unknown: {name}")
    refused(words, payload | {"extra": torch.zeros(())}, "unknown: extra")
    for name, part in payload.items():
        refused(words, payload | {name: part[None]}, f"'{name}' must have shape")
        refused(words, payload | {name: part.to(torch.complex64)}, f"'{name}' must have shape .* of torch.complex64")
        if part.is_floating_point():
            refused(words, payload | {name: torch.full_like(part, torch.nan)}, f"'{name}' is not finite")
    refused(words, payload | {name: torch.zeros_like(part) for name, part in parts_of(payload).items()}, "V")
    huge = torch.zeros((), dtype=payload["V"].dtype).expand(2, 10**6, 10**6)  # claims terabytes
    refused(words, payload | {"V": huge}, "'V' must have shape")


@every_codec
def test_what_no_unit_vectors_have_is_refused_for_every_codec(stats_of, words):
    """Twice the trace; a negative eigenvalue beyond the codec's own error; means that are too long."""
    codec, stats = codec_of(words), stats_of((9, 9, 9))
    low = torch.diag_embed(torch.tensor([[1.6, 0, 0, 0, 0, -0.6]] * 3))
    wrong = {"trace 1|scale": 2 * stats.V, "trace 1|semi-definite|scale": low}
    for match, V in wrong.items():
        bad = ClassStats(V, stats.mu, stats.m)
        refused(words, pack(StatsMessage(bad), means=True, frame=True, codec=codec), f"({match})")
    long = ClassStats(stats.V, torch.full_like(stats.mu, 0.9), stats.m)
    refused(words, pack(StatsMessage(long), means=True, frame=True, codec=codec), "class means")


@pytest.mark.parametrize(
    ("words", "name", "value", "match"),
    [
        ("int8", "V", -128, r"'V' must lie in −127\.\.127"),
        ("int8", "V.scale", -0.001, r"'V.scale' must lie in 0\.\."),
        ("int8", "V.scale", 1.0, r"'V.scale' must lie in 0\.\."),
        ("int8", "mu.scale", 1.0, r"'mu.scale' must lie in 0\.\."),
        ("rank int8", "V.scale", 1.0, r"'V.scale' must lie in 0\.\."),
        ("delta int8", "V.scale", 1.0, r"'V.scale' must lie in 0\.\."),
        ("delta rank", "V.sign", 2, r"'V.sign' must be 1 or −1"),
        ("delta int8", "step", -1, "'step' must not be negative"),
    ],
)
def test_numbers_out_of_reach_are_refused(stats_of, words, name, value, match):
    payload = dict(stream_of(words).pack(StatsMessage(stats_of()))[0])
    refused(words, payload | {name: torch.full_like(payload[name], value)}, match)


def test_a_configuration_names_a_codec_or_gives_a_table_and_is_written_back():
    for words, codec in SETTINGS.items():
        config = make_config({"method": {"name": "alg1", "codec": codec}})
        again = make_config({"method": config.model_dump(mode="json", exclude_none=True)["method"]})
        assert again.method == config.method
        assert type(config.method.codec) is CODECS[codec if isinstance(codec, str) else codec["name"]]
        assert (config.digest() == make_config({}).digest()) == (words == "packed")
    assert make_config({}, ["method.codec=half"]).method.codec.name == "half"


@pytest.mark.parametrize(
    ("codec", "match"),
    [
        ("hlaf", r"method.codec.name must be a known codec; got 'hlaf'. Did you mean 'half'\?"),
        ({"name": "half", "bits": 3}, "method.codec.bits is not a setting"),
        ({"name": "lowrank"}, "either rank or energy; got rank = None, energy = None. Write"),
        ({"name": "lowrank", "rank": 3, "energy": 0.5}, "either rank or energy"),
        ({"name": "lowrank", "rank": 0}, "method.codec.rank: .*greater than or equal to 1; got 0"),
        ({"name": "lowrank", "energy": 1.5}, "method.codec.energy: .*less than or equal to 1; got 1.5"),
        ({"name": "lowrank", "rank": 2, "inner": "int4"}, "method.codec.inner: .*'half'.*got 'int4'"),
        ({"name": "delta", "inner": "zip"}, "method.codec.inner.name must be a known codec; got 'zip'"),
        ({"name": "delta", "inner": "delta"}, "method.codec.inner must not be delta itself"),
        (3, "method.codec must be a table or a name; got 3"),
    ],
)
def test_bad_settings_are_named(codec, match):
    with pytest.raises(InputError, match=match):
        make_config({"method": {"name": "alg1", "codec": codec}})
