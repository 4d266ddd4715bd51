"""Features as bytes: what comes back, how far off it is, how long it is, and what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from conftest import UnitRows
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, RatemeshError
from ratemesh.messages.features import ClassCode, FeatureCode, LevelCode, PlainCode, with_noise
from ratemesh.messages.products import ProductCode, feature_codes

K, D, RANK = 3, 24, 5


def subspace_rows(count: int, seed: int, d: int = D) -> tuple[Tensor, Tensor]:
    """Unit rows of K classes: a mean, RANK directions of falling variance, and a little of everything."""
    fixed = torch.Generator().manual_seed(99)
    axes = torch.linalg.qr(torch.randn(d, K * (RANK + 1), generator=fixed, dtype=torch.float64))[0].mT
    axes = axes.reshape(K, RANK + 1, d)
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % K
    spread = 0.8 ** torch.arange(RANK)
    x = torch.cat([torch.ones(count, 1), spread * torch.randn(count, RANK, generator=draw)], 1).double()
    Z = torch.einsum("mr,mrd->md", x, axes[y]) + 0.02 * torch.randn(count, d, generator=draw, dtype=torch.float64)
    return normalize(Z, dim=1), y


@pytest.fixture(scope="module")
def stats() -> ClassStats:
    return ClassStats.of(*subspace_rows(600, seed=0), num_classes=K)


@pytest.fixture(scope="module")
def codes(stats: ClassStats) -> list[FeatureCode]:
    return feature_codes(stats)


def distortion(code: FeatureCode, Z: Tensor) -> float:
    return float((code.decode(code.encode(Z)) - Z).square().sum(1).mean())


@pytest.mark.parametrize(("d", "sizes"), [(24, [96, 24, 16, 16, 12, 8, 8, 4, 2]), (9, [36, 9, 8, 8, 5, 4, 2])])
def test_bytes_are_what_was_promised(d: int, sizes: list[int], unit_rows: UnitRows) -> None:
    Z = unit_rows(30, d)
    codes = feature_codes(ClassStats.of(Z, torch.arange(30) % 2, 2))
    assert [code.size for code in codes] == sizes
    for code in codes:
        sent = code.encode(Z)
        assert sent.dtype == torch.uint8
        assert sent.shape == (30, code.size)


def test_what_arrives_has_unit_length_and_none_may_be_sent(codes: list[FeatureCode]) -> None:
    Z, _ = subspace_rows(50, seed=1)
    for code in codes:
        arrived = code.decode(code.encode(Z))
        assert arrived.dtype == torch.float32
        torch.testing.assert_close(arrived.norm(dim=1), torch.ones(50))
        assert code.decode(code.encode(Z[:0])).shape == (0, D)


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_float32_is_exact(d: int, seed: int) -> None:
    Z = normalize(torch.randn(5, d, generator=torch.Generator().manual_seed(seed)), dim=1)
    code = PlainCode(d)
    torch.testing.assert_close(code.decode(code.encode(Z)), Z, rtol=0, atol=1e-6)


@given(st.sampled_from([4, 8]), st.integers(1, 40), st.integers(0, 10**6))
def test_levels_are_off_by_half_a_step_at_most(bits: int, d: int, seed: int) -> None:
    """Against rounding by itself: z = s·q + e with |e| ≤ s/2, s the largest number over L, and ‖ẑ − z‖ ≤ s√d."""
    Z = normalize(torch.randn(5, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)
    code, largest = LevelCode(d, bits), 2 ** (bits - 1) - 1
    arrived = code.decode(code.encode(Z)).double()
    s = Z.abs().amax(1) / largest
    assert bool(((arrived - Z).norm(dim=1) <= s * math.sqrt(d) + 1e-6).all())
    q = arrived * (largest / arrived.abs().amax(1, keepdim=True))
    torch.testing.assert_close(q, q.round(), rtol=0, atol=1e-4)
    assert bool(((q.round() * s[:, None] - Z).abs() <= s[:, None] / 2 + 1e-9).all())


def test_a_class_code_is_better_with_more_bytes_and_better_than_levels_of_its_size(stats: ClassStats) -> None:
    Z, _ = subspace_rows(300, seed=2)
    off = [distortion(ClassCode(stats, size), Z) for size in (2, 4, 8, 16)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.02 < off[0] < 1  # unrelated unit vectors are 2 apart
    assert distortion(ClassCode(stats, 4), Z) < distortion(LevelCode(D, 4), Z) * 8
    assert distortion(ClassCode(stats, 12), Z) < 4 * D * 0.02**2


def test_a_class_code_is_near_the_rate_distortion_bound() -> None:
    """One Gaussian class, so narrow that the sphere is flat there, against reverse water-filling: D = Σ min(θ, λ).

    Many scalar levels are √3·π/2 = 2.72 from it (Panter and Dite); whole bits cost the mean of errors that differ by up
    to 4 over their geometric mean, 3/ln 4/2 = 1.08. Fewer levels are nearer.
    """
    draw = torch.Generator().manual_seed(5)
    variance = 0.7 ** torch.arange(12, dtype=torch.float64)
    variance = 0.001 * variance / variance.sum()
    mu = torch.eye(13, dtype=torch.float64)[12]
    V = torch.diag(torch.cat([variance, torch.zeros(1, dtype=torch.float64)])) + mu[:, None] * mu
    stats = ClassStats((V / V.trace())[None], mu[None] / V.trace().sqrt(), torch.tensor([1e6], dtype=torch.float64))
    x = variance.sqrt() * torch.randn(20000, 12, generator=draw, dtype=torch.float64)
    Z = normalize(torch.cat([x, torch.ones(20000, 1, dtype=torch.float64)], 1), dim=1)
    for size in (3, 5, 9):
        low, high = 0.0, 1.0  # θ by bisection on R(θ) = Σ ½ log₂(λ/θ)⁺
        for _ in range(80):
            theta = (low + high) / 2
            rate = float((variance / theta).log2().clamp(min=0).sum() / 2)
            low, high = (theta, high) if rate > 8 * (size - 1) else (low, theta)
        bound = float(variance.clamp(max=theta).sum())
        assert bound < distortion(ClassCode(stats, size), Z) < 2.72 * 1.08 * bound


def test_a_product_code_is_better_with_more_bytes(stats: ClassStats) -> None:
    Z, _ = subspace_rows(300, seed=2)
    off = [distortion(ProductCode(stats, size), Z) for size in (2, 5, 8, 16)]  # 5 does not divide d
    assert off == sorted(off, reverse=True)
    assert off[-1] < 0.05
    assert off[0] < 0.6  # unrelated unit vectors are 2 apart


def test_a_product_code_picks_the_nearest_centre_of_every_group(stats: ClassStats) -> None:
    """Any other byte in any group brings the decoded coefficients no nearer, group by group, in a plain loop."""
    Z, _ = subspace_rows(3, seed=6)
    code = ProductCode(stats, 4)
    sent = code.encode(Z)
    every = torch.arange(256, dtype=torch.uint8)
    for row, z in zip(sent, Z, strict=True):
        best = code._decoded(row[None])[0]
        for group in range(4):
            tried = row.repeat(256, 1)
            tried[:, group] = every
            assert bool(((code._decoded(tried) - z).square().sum(1) >= (best - z).square().sum() - 1e-6).all())


def test_equal_statistics_make_equal_codes(stats: ClassStats, codes: list[FeatureCode]) -> None:
    Z, _ = subspace_rows(100, seed=3)
    there = ClassStats(stats.V.clone(), stats.mu.clone(), stats.m.clone())
    for one, other in zip(codes, feature_codes(there), strict=True):
        sent = one.encode(Z)
        assert torch.equal(sent, other.encode(Z))
        assert torch.equal(one.decode(sent), other.decode(sent))


def test_statistics_off_by_rounding_still_understand_each_other(stats: ClassStats) -> None:
    Z, _ = subspace_rows(100, seed=3)
    there = ClassStats(stats.V.float().double(), stats.mu.float().double(), stats.m)
    sent = ClassCode(stats, 8).encode(Z)
    torch.testing.assert_close(ClassCode(there, 8).decode(sent), ClassCode(stats, 8).decode(sent), rtol=0, atol=1e-4)


def test_a_class_code_keeps_class_and_place(stats: ClassStats) -> None:
    Z, y = subspace_rows(300, seed=4)
    code = ClassCode(stats, 8)
    arrived = code.decode(code.encode(Z))
    assert float((code.encode(Z)[:, 0] == y).double().mean()) > 0.98
    nearest = (arrived.double() @ Z.mT).argmax(1)
    assert float((nearest == torch.arange(300)).double().mean()) > 0.9  # chance is 1/300


def test_noise_is_as_strong_as_was_said() -> None:
    Z = normalize(torch.randn(400, 512, generator=torch.Generator().manual_seed(0)), dim=1)
    for snr in (20.0, 0.0, -5.0):
        arrived = with_noise(Z, snr, torch.Generator().manual_seed(1))
        cosine = float((arrived * Z).sum(1).mean())
        assert cosine == pytest.approx(1 / math.sqrt(1 + 10 ** (-snr / 10)), abs=0.01)
        assert torch.equal(arrived, with_noise(Z, snr, torch.Generator().manual_seed(1)))
    torch.testing.assert_close(with_noise(Z, math.inf, torch.Generator()), Z)
    with pytest.raises(InputError, match="snr must be a number of dB"):
        with_noise(Z, math.nan, torch.Generator())


def test_features_that_cannot_be_coded_are_refused(codes: list[FeatureCode]) -> None:
    Z, _ = subspace_rows(4, seed=0)
    for code in codes:
        for bad, words in (
            (Z[:, 1:], rf"shape \(m, {D}\)"),
            (Z[0], rf"shape \(m, {D}\)"),
            (Z * 2, "unit length"),
            (Z * math.nan, "finite"),
            ((Z * 9).long(), "int64"),
        ):
            with pytest.raises(InputError, match=words):
                code.encode(bad)


def test_class_codes_that_cannot_be_are_refused(stats: ClassStats) -> None:
    for size in (1, D + 2):
        with pytest.raises(InputError, match="size must lie in"):
            ClassCode(stats, size)
    many = ClassStats(torch.zeros(257, 4, 4), torch.zeros(257, 4), torch.ones(257))
    with pytest.raises(InputError, match="256 classes"):
        ClassCode(many, 2)
    for size in (0, D + 1):
        with pytest.raises(InputError, match="size must lie in"):
            ProductCode(stats, size)
    assert [code.name for code in feature_codes(many)] == [
        "float32",
        "int8",
        "int4",
    ]  # d = 4 is too few for groups of 8


def test_codes_that_nobody_sent_are_refused(codes: list[FeatureCode]) -> None:
    Z, _ = subspace_rows(4, seed=0)
    for code in codes:
        sent = code.encode(Z)
        for bad in (sent[:, 1:], sent[0], sent.int()):
            with pytest.raises(RatemeshError, match=rf"\(m, {code.size}\) for code '{code.name}'"):
                code.decode(bad)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3.0])
def test_numbers_that_are_no_features_are_refused(value: float) -> None:
    sent = PlainCode(3).encode(torch.eye(3))
    sent[1] = torch.tensor([[value, 0, 0]]).view(torch.uint8)
    with pytest.raises(RatemeshError, match=r"sample 1 was refused: .* unit length"):
        PlainCode(3).decode(sent)


@pytest.mark.parametrize(
    ("bits", "row", "words"),
    [
        (8, [0, 255, 1], "level 0"),
        (8, [128, 128, 128], "largest number must be ±127"),
        (8, [200, 130, 1 + 128], "largest number must be ±127"),
        (4, [0x0F, 0xF8], "level 0"),
        (4, [0x88, 0x88], "largest number must be ±7"),
        (4, [0xF8, 0x89], "fills the last byte"),
    ],
)
def test_levels_that_never_occur_are_refused(bits: int, row: list[int], words: str) -> None:
    good = LevelCode(3, bits).encode(torch.eye(3))
    bad = torch.tensor([row], dtype=torch.uint8)
    with pytest.raises(RatemeshError, match=f"sample 3 was refused: .*{words}"):
        LevelCode(3, bits).decode(torch.cat([good, bad]))


def test_a_class_that_nobody_holds_is_refused(stats: ClassStats) -> None:
    code = ClassCode(ClassStats(stats.V, stats.mu, stats.m * torch.tensor([1, 0, 1])), 4)
    Z, _ = subspace_rows(6, seed=0)
    sent = code.encode(Z)
    assert 1 not in sent[:, 0]
    for name in (1, K, 255):
        sent[2, 0] = name
        with pytest.raises(RatemeshError, match="sample 2 was refused: it names a class"):
            code.decode(sent)
