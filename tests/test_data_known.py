"""Well-known data sets from small stand-ins: decoded right, checked once, mapped; broken files refused in words."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.data import DATASETS, files, known
from ratemesh.data.dataset import some_rows
from ratemesh.data.fetch import state
from ratemesh.data.published import (
    Cifar10,
    Cifar100,
    Mnist,
    decode_bin,
    decode_idx,
    read_batch,
    read_idx,
    read_names,
    read_pickle,
)
from ratemesh.encoders.encoder import as_float
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.seeds import generator
from toy_files import (
    COLOUR,
    LABELS,
    X_TEST,
    X_TRAIN,
    Y_TEST,
    Y_TRAIN,
    bin_bytes,
    idx_bytes,
    lay_out,
    old_pickle,
    toy_layout,
)

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


@given(shapes, st.randoms(use_true_random=False))
def test_idx_comes_back(shape, random):
    array = np.frombuffer(random.randbytes(int(np.prod(shape))), np.uint8).reshape(shape)
    assert np.array_equal(decode_idx(idx_bytes(array), "toy"), array)


@given(shapes, st.data())
def test_idx_cut_short_or_too_long_is_refused(shape, data):
    raw = idx_bytes(np.zeros(shape, np.uint8))
    cut = data.draw(st.integers(0, len(raw) - 1))
    for wrong in (raw[:cut], raw + b"x"):
        with pytest.raises(InputError, match="toy must"):
            decode_idx(wrong, "toy")


def test_idx_of_another_kind_says_how_it_begins():
    with pytest.raises(InputError, match=r"magic 00 00 08 nn\); it begins 00 00 0d 01"):
        decode_idx(b"\x00\x00\x0d\x01\x00\x00\x00\x00", "floats")


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(InputError, match="at most 1,000 bytes"):
        read_idx(path, 1000)


@pytest.mark.parametrize("raw", [b"", b"not gzip at all", gzip.compress(bytes(500))[:-9]], ids=["empty", "text", "cut"])
def test_broken_gzip_is_refused(tmp_path, raw):
    path = tmp_path / "broken.gz"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"broken\.gz' must be"):
        read_idx(path, 1000)


@pytest.mark.parametrize("name", ["mnist", "mnist-gz"])
def test_mnist(tmp_path, monkeypatch, name):
    lay_out(tmp_path, *toy_layout(name, monkeypatch))
    data = Mnist(dir=tmp_path).load(0)
    assert (data.X_train.dtype, data.y_train.dtype, data.num_classes) == (torch.uint8, torch.int64, 10)
    assert np.array_equal(data.X_train[:, 0].numpy(), X_TRAIN)
    assert np.array_equal(data.X_test[:, 0].numpy(), X_TEST)
    assert data.y_train.tolist() == Y_TRAIN.tolist()
    assert data.y_test.tolist() == Y_TEST.tolist()
    assert data.classes == tuple("0123456789")


@pytest.mark.parametrize("name", ["cifar10-bin", "cifar10-py"])
def test_cifar10_binary_and_pickled_are_the_same(tmp_path, monkeypatch, name):
    lay_out(tmp_path, *toy_layout(name, monkeypatch))
    data = Cifar10(dir=tmp_path).load(0)
    assert data.X_train.shape == (100, 3, 32, 32)
    assert np.array_equal(data.X_train[20:40].numpy(), COLOUR + 1)
    assert np.array_equal(data.X_test.numpy(), COLOUR + 5)
    assert data.y_train.tolist() == LABELS.tolist() * 5
    assert data.classes[:2] == ("airplane", "automobile")


@pytest.mark.parametrize(("coarse", "K", "names"), [(False, 20, "fine0"), (True, 2, "a")])
def test_cifar100_fine_and_coarse(tmp_path, monkeypatch, coarse, K, names):
    lay_out(tmp_path, *toy_layout("cifar100", monkeypatch))
    data = Cifar100(dir=tmp_path, coarse=coarse).load(0)
    assert (data.num_classes, data.classes[0]) == (K, names)
    assert data.y_train.tolist() == (LABELS // 5 if coarse else LABELS + 10).tolist()
    assert np.array_equal(data.X_test.numpy(), COLOUR)


def test_files_are_checked_once_and_then_mapped(tmp_path, monkeypatch):
    layout, held = toy_layout("mnist", monkeypatch)
    lay_out(tmp_path, layout, held)
    looked = []
    real = known.md5_of
    monkeypatch.setattr(known, "md5_of", lambda path: looked.append(path.name) or real(path))
    first, again = (Mnist(dir=tmp_path).decoded() for _ in range(2))
    assert sorted(looked) == sorted(held)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert any(line.endswith("X_train.npy") for line in mapped)
    assert torch.equal(first.X_train, again.X_train)
    os.utime(next(iter(layout.at(tmp_path))))  # touched: another file, for all one knows
    Mnist(dir=tmp_path).decoded()
    assert len(looked) == 2 * len(held)
    assert len(list((tmp_path / files.FOLDER).iterdir())) == 1


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist-gz", monkeypatch))
    (tmp_path / files.FOLDER).write_text("in the way")  # as good as read-only, and so for root too
    data = Mnist(dir=tmp_path).load(0)
    assert np.array_equal(data.X_train[:, 0].numpy(), X_TRAIN)


def test_a_broken_cache_is_made_again(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist", monkeypatch))
    Mnist(dir=tmp_path).load(0)
    (entry,) = (tmp_path / files.FOLDER).iterdir()
    (entry / "X_train.npy").write_bytes(b"cut")
    (entry.parent / f".{entry.name}.left-by-a-crash").mkdir()
    assert np.array_equal(Mnist(dir=tmp_path).load(0).X_train[:, 0].numpy(), X_TRAIN)
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_what_a_process_writes_stays_its_own(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist", monkeypatch))
    Mnist(dir=tmp_path).load(0).X_train.zero_()
    assert np.array_equal(Mnist(dir=tmp_path).load(0).X_train[:, 0].numpy(), X_TRAIN)


@pytest.mark.parametrize("wrong", ["cut", "changed"])
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, monkeypatch, wrong):
    layout, held = toy_layout("mnist", monkeypatch)
    lay_out(tmp_path, layout, held)
    path = list(layout.at(tmp_path))[2]
    path.write_bytes(held[path.name][:-1] + (b"" if wrong == "cut" else b"!"))
    expected = rf"{path.name}' must be the original file \({layout.files[2].in_words()}\); got [\d,]+ bytes"
    with pytest.raises(InputError, match=expected):
        Mnist(dir=tmp_path).load(0)


def test_absent_files_say_what_belongs_where_and_which_command(tmp_path, monkeypatch):
    monkeypatch.setenv(known.VARIABLE, str(tmp_path / "there"))
    with pytest.raises(InputError) as found:
        Mnist().load(0)
    for word in ("ratemesh data get mnist", str(tmp_path / "there/MNIST/raw/t10k-labels-idx1-ubyte.gz"), "ec29112dd5"):
        assert word in str(found.value)
    lay_out(tmp_path / "there", *toy_layout("mnist", monkeypatch))
    assert len(Mnist().load(0).y_train) == 40


def test_a_cut_file_of_one_layout_does_not_hide_a_whole_other(tmp_path, monkeypatch):
    packed, held = toy_layout("mnist-gz", monkeypatch)
    plain, raw = toy_layout("mnist", monkeypatch)
    lay_out(tmp_path, packed, {**held, "t10k-labels-idx1-ubyte.gz": b"cut"})
    lay_out(tmp_path, plain, raw)
    monkeypatch.setitem(known.KNOWN, "mnist", (packed, plain))
    assert state("mnist", tmp_path).layout == plain
    assert len(Mnist(dir=tmp_path).load(0).y_train) == 40


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path, protocol):
    path = tmp_path / "evil"
    path.write_bytes(pickle.dumps({"data": Evil(tmp_path / "executed")}, protocol=protocol))
    with pytest.raises(InputError, match=r"evil' must be a CIFAR file of plain arrays; .* asks for posix\.mkdir"):
        read_pickle(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1]),
        pickle.dumps({b"data": 1, b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}, protocol=3),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["a"]}, protocol=3),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, protocol=3),
        pickle.dumps({b"data": np.zeros((1, 3072), object), b"labels": [1]}, protocol=3),
        old_pickle(COLOUR, labels=LABELS)[:5000],
        b"\x80\x02}(U\x04datacnumpy\nndarray\n)RU\x06labels](K\x01eu.",
        b"",
    ],
)
def test_pickles_that_are_not_batches_are_refused(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(InputError, match="batch' must"):
        read_batch(path, b"labels")


def test_names_must_be_names(tmp_path):
    path = tmp_path / "meta"
    path.write_bytes(pickle.dumps({b"fine_label_names": [1]}))
    with pytest.raises(InputError, match="meta' must hold a list of fine_label_names"):
        read_names(path, b"fine_label_names")


def test_binary_batches_must_be_whole_records():
    with pytest.raises(InputError, match="records of 3073 bytes; it has 61,459 bytes"):
        decode_bin(bin_bytes(COLOUR, LABELS)[:-1], "batch")


def test_limits_keep_classes_in_proportion_and_depend_on_the_seed(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist", monkeypatch))
    a, b, c = (Mnist(dir=tmp_path, train_limit=20, test_limit=10).load(seed) for seed in (0, 0, 1))
    assert torch.bincount(a.y_train).tolist() == [2] * 10
    assert torch.bincount(a.y_test).tolist() == [1] * 10
    assert torch.equal(a.X_train, b.X_train)
    assert not torch.equal(a.X_train, c.X_train)
    assert len(Mnist(dir=tmp_path, train_limit=1000).load(0).y_train) == 40


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_some_rows_are_as_many_as_asked_for_and_stratified(labels, data):
    y = torch.tensor(labels)
    most = data.draw(st.integers(1, len(labels)))
    rows = some_rows(y, most, generator(0))
    assert len(set(rows.tolist())) == most
    kept, given_ = torch.bincount(y[rows], minlength=5), torch.bincount(y, minlength=5)
    assert (kept - given_ * most / len(labels)).abs().max() < 1


def test_bytes_become_floats_in_one_place():
    X = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert as_float(X)[0].tolist() == pytest.approx([0, 0.2, 1])
    floats = torch.rand(2, 3)
    assert as_float(floats) is floats


def test_where_data_are_does_not_change_a_runs_fingerprint():
    here, there, other = (
        make_config({"data": {"name": "mnist", **table}}).digest() for table in ({}, {"dir": "/x"}, {"path": "a.npz"})
    )
    assert here == there != other


def test_coarse_is_for_the_real_set_only():
    with pytest.raises(InputError, match=r"data\.coarse must be false when data\.path is given"):
        make_config({"data": {"name": "cifar100", "coarse": True, "path": "a.npz"}})


@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "mean"),
    [
        ("mnist", 60_000, 10_000, 10, 0.1307),
        ("cifar10", 50_000, 10_000, 10, 0.4734),
        ("cifar100", 50_000, 10_000, 100, 0.4782),
    ],
)
def test_the_real_sets(name, train, test, classes, mean):
    if not os.environ.get(known.VARIABLE):
        pytest.skip(f"{known.VARIABLE} is not set")
    try:
        data = DATASETS[name]().load(0)
    except InputError as error:
        if "not all of its files are there" not in str(error):
            raise
        pytest.skip(f"{name} is not there")
    assert (len(data.X_train), len(data.X_test), data.num_classes) == (train, test, classes)
    assert data.X_train.float().mean().item() / 255 == pytest.approx(mean, abs=1e-4)
    assert len(torch.bincount(data.y_test)) == classes
