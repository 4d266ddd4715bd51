"""Data sets: nothing lost, nothing twice, known truth where it is promised."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.data import DATASETS, DatasetSpec
from ratemesh.data.dataset import Digits, Subspaces, split
from ratemesh.errors import InputError
from ratemesh.seeds import child_seed, generator, seeded
from ratemesh.specs import resolve
from test_partition import is_partition

seeds = st.integers(0, 10_000)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.floats(0.05, 0.95), seeds)
def test_split_holds_out_its_part_of_every_class_and_loses_nothing(counts, fraction, seed):
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    data = split(torch.arange(float(len(y)))[:, None], y, fraction, len(counts), seed)
    kept, held_out = data.X_train[:, 0].long(), data.X_test[:, 0].long()
    assert is_partition([kept, held_out], len(y))
    assert torch.equal(data.y_train, y[kept])
    assert torch.equal(data.y_test, y[held_out])
    per_class = torch.bincount(data.y_test, minlength=len(counts)).tolist()
    assert all(abs(n - fraction * m) < 1 + 1e-9 for n, m in zip(per_class, counts, strict=True))


def test_digits_are_the_embedded_set():
    data = Digits().load(0)
    assert (data.X_train.shape[1:], data.X_train.dtype, data.y_train.dtype) == ((1, 8, 8), torch.float32, torch.int64)
    assert len(data.y_train) + len(data.y_test) == 1797
    assert len(data.y_test) == pytest.approx(0.2 * 1797, abs=1)
    assert (data.num_classes, data.classes) == (10, tuple("0123456789"))
    pixels = torch.cat([data.X_train, data.X_test])
    assert (pixels.min().item(), pixels.max().item()) == (0, 1)
    counts = torch.bincount(data.y_train) + torch.bincount(data.y_test)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_split_of_digits_depends_on_the_seed_only():
    a, b, c = (Digits().load(seed) for seed in (0, 0, 1))
    assert torch.equal(a.X_train, b.X_train)
    assert torch.equal(a.X_test, b.X_test)
    assert not torch.equal(a.X_test, c.X_test)


def test_held_out_part_is_what_is_asked_for():
    data = Digits(test_fraction=0.5).load(0)
    per_class = torch.bincount(data.y_test) / (torch.bincount(data.y_train) + torch.bincount(data.y_test))
    assert (per_class - 0.5).abs().max() < 1 / 170


def test_names_of_classes_do_not_change_the_digest():
    data = Subspaces(classes=3).load(0)
    assert data.classes == ("0", "1", "2")
    assert replace(data, classes=("ant", "bee", "cow")).digest() == data.digest()


@pytest.mark.parametrize("spec", [Subspaces(noise=0), Subspaces(classes=3, ambient=10, rank=2, per_class=8, noise=0)])
def test_subspaces_lie_where_the_truth_says(spec):
    data = spec.load(3)
    assert data.X_train.shape == (spec.classes * spec.per_class, spec.ambient)
    assert torch.bincount(data.y_train).tolist() == [spec.per_class] * spec.classes
    assert data.ranks.tolist() == [spec.rank] * spec.classes
    for X, y in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        B = data.bases[y]  # (m, p, r)
        inside = torch.einsum("mpr,mqr,mq->mp", B, B, X)
        torch.testing.assert_close(inside, X, rtol=0, atol=1e-5)
        torch.testing.assert_close(X.norm(dim=1), torch.ones(len(X)), rtol=0, atol=1e-5)
    for k in range(spec.classes):
        assert torch.linalg.matrix_rank(data.X_train[data.y_train == k], atol=1e-3) == spec.rank


def test_noise_has_the_length_asked_for():
    clean, noisy = (Subspaces(noise=noise).load(0) for noise in (0.0, 0.3))
    length = (noisy.X_train - clean.X_train).norm(dim=1)
    assert length.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.02)


def test_rank_must_fit():
    with pytest.raises(InputError, match=r"data\.rank must not exceed data\.ambient = 4; got 5"):
        Subspaces(ambient=4, rank=5).load(0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("digit", r"data\.name must be a known data set; got 'digit'\. Did you mean 'digits'\?"),
        ({"name": "digits", "test_fraction": 1.0}, r"data\.test_fraction: .*less than 1; got 1\.0"),
        ({"name": "subspaces", "noise": -1}, r"data\.noise: .*got -1"),
        ({"name": "subspaces", "clases": 3}, r"data\.clases is not a setting\. Did you mean 'classes'\?"),
    ],
)
def test_bad_settings_name_key_value_and_remedy(table, message):
    with pytest.raises(InputError, match=message):
        resolve(table, DATASETS, DatasetSpec, "data")


@given(seeds, st.lists(st.one_of(st.integers(0, 99), st.text("abc", max_size=3)), max_size=3))
def test_child_generators_are_named(seed, names):
    first, again = (torch.rand(3, generator=generator(seed, *names)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(3, generator=generator(seed, *names, "other")))
    assert 0 <= child_seed(seed, *names) < 2**63


def test_seeding_a_block_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(0, "block"):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    assert not torch.equal(inside, expected)
