"""A second, finer labelling: coarse classes of well-known sets, own files that bring both, and the cache of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ratemesh.data import files
from ratemesh.data.arrays import Npz
from ratemesh.data.dataset import Digits, Subspaces, by_fine_labels
from ratemesh.data.parquet import Parquet
from ratemesh.data.published import Cifar100, Mnist
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from test_data_own import DRAW, HWC, LABELS, npz, table
from toy_files import COLOUR, Y_TRAIN, lay_out, toy_layout
from toy_files import LABELS as CIFAR

FINE = np.array(["a", "b", "c", "d", "e"])[np.arange(30) % 5]  # crosses the three coarse classes
VECTORS = DRAW.normal(size=(30, 5)).astype(np.float32)
PAIRS = ("0/1", "2/3", "4/5", "6/7", "8/9")


def told(data, part="train"):
    """Return the names of every sample's coarse and fine label."""
    y, fine = getattr(data, f"y_{part}"), getattr(data, f"fine_{part}")
    return [(data.classes[k], data.fine_classes[f]) for k, f in zip(y.tolist(), fine.tolist(), strict=True)]


def test_coarse_digits_are_pairs_of_the_same_digits():
    coarse, plain = Digits(coarse=True).load(3), Digits().load(3)
    assert (coarse.num_classes, coarse.classes, coarse.fine_classes) == (5, PAIRS, tuple("0123456789"))
    for part in ("train", "test"):
        assert torch.equal(getattr(coarse, f"X_{part}"), getattr(plain, f"X_{part}"))
        assert torch.equal(getattr(coarse, f"fine_{part}"), getattr(plain, f"y_{part}"))
        assert all(digit in pair.split("/") for pair, digit in told(coarse, part))
    assert (plain.fine_train, plain.fine_test, plain.fine_classes) == (None, None, ())
    assert by_fine_labels(coarse).digest() == plain.digest()


def test_mnist_by_pairs(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist", monkeypatch))
    data = Mnist(dir=tmp_path, coarse=True).load(0)
    assert (data.classes, data.num_classes) == (PAIRS, 5)
    assert data.y_train.tolist() == (Y_TRAIN // 2).tolist()
    assert data.fine_train.tolist() == Y_TRAIN.tolist()
    assert Mnist(dir=tmp_path).load(0).fine_train is None


def test_cifar100_trains_on_superclasses_and_keeps_its_classes(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("cifar100", monkeypatch))
    data = Cifar100(dir=tmp_path, coarse=True).load(0)
    for part in ("train", "test"):
        assert told(data, part) == [("ab"[k // 5], f"fine{10 + k}") for k in CIFAR.tolist()]
    plain = Cifar100(dir=tmp_path).load(0)
    assert (plain.fine_train, plain.fine_test, plain.fine_classes) == (None, None, ())
    assert np.array_equal(plain.X_train.numpy(), COLOUR)


@pytest.mark.parametrize(("name", "spec"), [("mnist", Mnist), ("cifar100", Cifar100)])
def test_both_labellings_are_decoded_once(tmp_path, monkeypatch, name, spec):
    lay_out(tmp_path, *toy_layout(name, monkeypatch))
    decoded = []
    real = spec.decode
    monkeypatch.setattr(spec, "decode", lambda self, paths: decoded.append(name) or real(self, paths))
    for coarse in (True, False, True):
        spec(dir=tmp_path, coarse=coarse).load(0)
    assert decoded == [name]
    assert len(list((tmp_path / files.FOLDER).iterdir())) == 1


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_own_files_are_not_made_coarse(name):
    with pytest.raises(InputError, match=r"data\.coarse must be false when data\.path is given"):
        make_config({"data": {"name": name, "coarse": True, "path": "a.npz"}})


def test_npz_brings_fine_labels_through_cache_and_limits(tmp_path):
    path = npz(tmp_path / "a.npz", VECTORS, fine_train=FINE, fine_test=FINE[:9])
    expected = list(zip(map(str, LABELS.tolist()), FINE.tolist(), strict=True))
    for _ in range(2):  # decoded, then mapped
        data = Npz(path=path).load(0)
        assert (told(data), told(data, "test")) == (expected, expected[:9])
    assert Mnist(path=path).load(0).digest() == data.digest()
    some = Npz(path=path, train_limit=12, test_limit=5).load(0)
    assert (len(some.fine_train), len(some.fine_test)) == (12, 5)
    by_sample = {x.tobytes(): names for x, names in zip(VECTORS, expected, strict=True)}
    assert told(some) == [by_sample[x.numpy().tobytes()] for x in some.X_train]
    assert told(some, "test") == [by_sample[x.numpy().tobytes()] for x in some.X_test]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_train": FINE}, "must hold .*fine_train, fine_test; it holds x_train, .*fine_train"),
        ({"fine_test": FINE[:9]}, "must hold .*fine_train, fine_test; it holds x_train, .*fine_test"),
        (
            {"fine_train": FINE[:8], "fine_test": FINE[:9]},
            "a fine label for every training sample; got 30 samples and 8 fine labels",
        ),
        ({"fine_train": np.eye(30), "fine_test": FINE[:9]}, r"fine labels of .* must be one a sample, \(m,\)"),
        ({"fine_train": LABELS + 0.5, "fine_test": LABELS[:9]}, "fine labels of .* whole numbers or words"),
    ],
)
def test_fine_labels_that_cannot_be_used_say_why(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        Npz(path=npz(tmp_path / "a.npz", **changes)).load(0)


@pytest.mark.parametrize(("column", "given"), [("fine", None), ("species", "species")])
def test_a_parquet_table_split_in_two_keeps_fine_labels_with_their_rows(tmp_path, column, given):
    path = table(tmp_path / "v.parquet", 30, x=list(VECTORS), label=LABELS, **{column: FINE})
    names = zip([("ant", "bee", "cow")[k] for k in LABELS], FINE.tolist(), strict=True)
    by_sample = {x.tobytes(): pair for x, pair in zip(VECTORS, names, strict=True)}
    for _ in range(2):
        data = Parquet(path=path, fine=given, test_fraction=0.4).load(0)
        for part in ("train", "test"):
            assert told(data, part) == [by_sample[x.numpy().tobytes()] for x in getattr(data, f"X_{part}")]
    if given:
        assert Parquet(path=path).load(0).fine_train is None
    by_one = Parquet(path=path, label=column).load(0)  # trained on, it is not asked for again
    assert (by_one.classes, by_one.fine_train) == (tuple("abcde"), None)


def test_parquet_without_the_column_asked_for_and_with_half_of_it(tmp_path):
    path = table(tmp_path / "v.parquet", 30, x=list(VECTORS), label=LABELS)
    with pytest.raises(InputError, match=r"data\.fine must name a column of .*got 'kind'.*Known: x, label"):
        Parquet(path=path, fine="kind").load(0)
    table(tmp_path / "t" / "train.parquet", 30, x=list(VECTORS), label=LABELS, fine=FINE)
    table(tmp_path / "t" / "test.parquet", 9, x=list(VECTORS), label=LABELS)
    with pytest.raises(InputError, match="fine labels of training and test samples, or of neither"):
        Parquet(path=tmp_path / "t").load(0)


def test_fine_labels_are_part_of_the_digest():
    data = Subspaces(classes=3, per_class=8).load(0)
    fine = replace(data, fine_train=data.y_train, fine_test=data.y_test, fine_classes=data.classes)
    other = replace(fine, fine_test=2 - data.y_test)
    assert len({data.digest(), fine.digest(), other.digest()}) == 3


def test_pictures_without_fine_labels_have_none(tmp_path):
    data = Npz(path=npz(tmp_path / "a.npz", HWC)).load(0)
    assert (data.fine_train, data.fine_test, data.fine_classes) == (None, None, ())
