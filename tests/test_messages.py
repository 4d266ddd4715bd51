"""Statistics as a message: bit for bit there and back, and refused by name when they cannot be right."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError
from ratemesh.messages.statistics import NO_FRAME, StatsMessage
from toy_codecs import pack, read

counts_lists = st.lists(st.integers(0, 7), min_size=1, max_size=4)
K, D = 2, 3


@pytest.fixture(scope="session")
def message_of(unit_rows, labels_of):
    """Return a function that draws a message."""

    def draw(counts, d, seed=0, dtype=torch.float32, hops=NO_FRAME):
        Z, y = unit_rows(sum(counts), d, seed).to(dtype), labels_of(counts, seed)
        return StatsMessage(ClassStats.of(Z, y, len(counts)), hops)

    return draw


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


@given(
    counts_lists,
    st.integers(1, 7),
    st.integers(0, 10_000),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(-1, 50),
)
def test_there_and_back_is_bit_exact(message_of, counts, d, seed, dtype, hops):
    message = message_of(counts, d, seed, dtype, hops)
    back = read(pack(message, means=True, frame=True), 0, len(counts), d, dtype=dtype)
    assert back.hops == hops
    for name in ("V", "mu", "m"):
        sent, received = getattr(message.stats, name), getattr(back.stats, name)
        assert received.dtype == dtype
        assert torch.equal(bits(received), bits(sent)), name


@given(counts_lists, st.integers(2, 6), st.integers(0, 10_000))
def test_sums_of_statistics_survive_too(message_of, counts, d, seed):
    """Pooled and turned statistics are symmetric bit for bit as well."""
    total = message_of(counts, d, seed).stats + message_of(counts, d, seed + 1).stats
    Q = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed)))[0]
    for stats in (total, total.rotated(Q)):
        back = read(pack(StatsMessage(stats), means=True, frame=False), 0, len(counts), d).stats
        assert torch.equal(back.V, stats.V)
        assert torch.equal(back.V, back.V.mT)


@pytest.mark.parametrize("means", [True, False])
@pytest.mark.parametrize("frame", [True, False])
def test_only_what_is_asked_for_travels(message_of, means, frame):
    message = message_of((4, 3), D, hops=5)
    payload = pack(message, means=means, frame=frame)
    assert set(payload) == {"V", "m"} | ({"mu"} if means else set()) | ({"hops"} if frame else set())
    back = read(payload, 0, K, D)
    assert back.hops == (5 if frame else NO_FRAME)
    assert torch.equal(back.stats.mu, message.stats.mu if means else torch.zeros(K, D))


def test_one_triangle_row_by_row():
    V = torch.tensor([[[0.5, 0.1, 0.2], [0.1, 0.3, 0.4], [0.2, 0.4, 0.2]]])
    stats = ClassStats(V, torch.zeros(1, 3), torch.ones(1))
    payload = pack(StatsMessage(stats), means=False, frame=False)
    torch.testing.assert_close(payload["V"], torch.tensor([[0.5, 0.1, 0.2, 0.3, 0.4, 0.2]]), rtol=0, atol=0)


def test_a_message_is_about_half_of_the_matrices():
    """d = 128: 50.4 % of K·d² numbers, and the means are 1.6 % on top (algorithms.md, §8 and §4)."""
    stats = ClassStats.of(torch.eye(128)[:10], torch.arange(10), 10)
    payload = pack(StatsMessage(stats), means=True, frame=True)
    full = 10 * 128**2
    assert payload["V"].numel() / full == pytest.approx(0.504, abs=5e-4)
    assert payload["mu"].numel() / payload["V"].numel() == pytest.approx(0.016, abs=5e-4)
    assert payload["hops"].numel() == 1


@pytest.fixture
def payload(message_of):
    return dict(pack(message_of((4, 3), D), means=True, frame=True))


@pytest.mark.parametrize("name", ["V", "m"])
def test_a_message_that_lacks_something_is_refused(payload, name):
    del payload[name]
    with pytest.raises(
        RatemeshError, match=rf"message of node 7 was refused: it must hold V and m.*lacking or unknown: {name}\."
    ):
        read(payload, 7, K, D)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("V", (2, 5), r"\(2, 6\)"),
        ("V", (3, 6), r"\(2, 6\)"),
        ("m", (3,), r"\(2,\)"),
        ("mu", (2, 4), r"\(2, 3\)"),
        ("hops", (1,), r"\(\)"),
    ],
)
def test_a_message_of_another_shape_is_refused(payload, name, shape, expected):
    payload[name] = torch.zeros(shape)
    with pytest.raises(RatemeshError, match=rf"node 7 was refused: '{name}' must have shape {expected}; got \("):
        read(payload, 7, K, D)


def test_a_message_for_another_d_is_refused(payload):
    with pytest.raises(RatemeshError, match=r"node 1 was refused: 'V' must have shape \(2, 10\); got \(2, 6\)"):
        read(payload, 1, K, 4)


def test_an_unknown_part_is_refused(payload):
    payload["extra"] = torch.zeros(())
    with pytest.raises(RatemeshError, match=r"node 7 was refused.*unknown: extra"):
        read(payload, 7, K, D)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["V", "m", "mu"])
def test_what_is_not_finite_is_refused(payload, name, value):
    payload[name] = payload[name].clone()
    payload[name].view(-1)[0] = value
    with pytest.raises(RatemeshError, match=rf"node 7 was refused: '{name}' is not finite"):
        read(payload, 7, K, D)


@pytest.mark.parametrize(
    "change",
    [
        {"V": torch.zeros(K, 6)},
        {"m": torch.tensor([4.0, 0.0])},
        {"m": torch.tensor([-4.0, 3.0]), "V": torch.tensor([[1.0, 0, 0, 0, 0, 0]]), "mu": torch.zeros(1, D)},
    ],
    ids=["no trace", "trace without samples", "negative count"],
)
def test_traces_must_go_with_counts(payload, change):
    with pytest.raises(
        RatemeshError,
        match=r"node 7 was refused: (V must have trace 1 for every class|counts must not|'V' must have shape \(1, 6\))",
    ):
        read(payload | change, 7, K, D)


def test_trace_is_checked_within_rounding(payload):
    for scale, fine in ((1 + 5e-4, True), (1 + 5e-3, False), (1 - 5e-3, False)):
        scaled = payload | {"V": payload["V"] * scale}
        if fine:
            assert torch.equal(read(scaled, 7, K, D).stats.m, payload["m"])
        else:
            with pytest.raises(RatemeshError, match="trace 1"):
                read(scaled, 7, K, D)


def test_a_matrix_that_is_no_second_moment_is_refused(payload):
    payload["V"] = torch.tensor([[2.0, 0, 0, -1, 0, 0], [1, 0, 0, 0, 0, 0]])
    with pytest.raises(RatemeshError, match="node 7"):
        read(payload, 7, K, D)


@pytest.mark.parametrize("change", [{"mu": torch.full((K, D), 1e6)}, {"hops": torch.tensor(-7, dtype=torch.int32)}])
def test_impossible_means_and_hops_are_refused(payload, change):
    with pytest.raises(RatemeshError, match="node 7"):
        read(payload | change, 7, K, D)


def test_only_classes_with_samples_travel(message_of):
    """Remark 4: O(|K_i|·d²) numbers, not O(K·d²)."""
    message = message_of((4, 0, 3), D)
    payload = pack(message, means=True, frame=True)
    assert payload["V"].shape == (2, 6)
    assert payload["mu"].shape == (2, D)
    back = read(payload, 0, 3, D).stats
    for name in ("V", "mu", "m"):
        assert torch.equal(getattr(back, name), getattr(message.stats, name))
