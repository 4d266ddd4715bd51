"""Data at the edges: formats that are nearly right, files that cannot be read, package clients that fail, shares."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.data import PARTITIONS, fetch
from ratemesh.data.arrays import Npz, as_dataset, as_labels, as_samples
from ratemesh.data.dataset import Dataset, some_rows, split
from ratemesh.data.download import FetchError
from ratemesh.data.files import cached
from ratemesh.data.parquet import Parquet
from ratemesh.data.partition import FEWEST
from ratemesh.data.pictures import decode_pictures
from ratemesh.data.published import decode_bin, decode_idx, own_files, read_pickle
from ratemesh.errors import InputError

X, Y = np.arange(48, dtype=np.uint8).reshape(12, 4), np.arange(12) % 3


def test_a_part_held_out_must_have_a_sample():
    message = r"data\.test_fraction must hold out a sample of 'a'; got 0\.05\. Raise it"
    with pytest.raises(InputError, match=message):
        as_dataset([X], [Y], "'a'", "auto", 0.05)
    data = as_dataset([X], [Y], "'a'", "auto", 0.25)
    assert (len(data.y_train), len(data.y_test)) == (9, 3)


def test_an_archive_in_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    np.lib.format.write_array(header, np.zeros(2, np.uint8), version=(3, 0))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
    with pytest.raises(InputError, match=r"x_train of '.*a\.npz' must be in \.npy format 1 or 2; got \(3, 0\)"):
        Npz(path=path).load(0)


@given(st.lists(st.sampled_from(["10", "9", "-3", "cat", "Cat", "٣", "-", "0"]), min_size=1, max_size=12))
def test_labels_come_back_by_their_names_numbers_first(words):
    codes, names = as_labels(np.array(words), "labels")
    assert [names[code] for code in codes] == words
    assert sorted(set(codes.tolist())) == list(range(len(names)))
    whole = [int(name) for name in names if name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()]
    assert whole == sorted(whole)
    assert [str(n) for n in whole] == list(names[: len(whole)])


@given(st.tuples(*[st.integers(1, 5)] * 4), st.sampled_from(["auto", "first", "last"]))
def test_images_keep_their_pixels_wherever_the_channels_are(shape, channels):
    A = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    found = as_samples(A, "samples", channels)
    last = channels == "last" or (channels == "auto" and shape[3] < shape[1])
    assert np.array_equal(found, np.moveaxis(A, 3, 1) if last else A)
    assert found.flags["C_CONTIGUOUS"]
    assert found.flags["WRITEABLE"]


def test_a_table_whose_path_is_a_broken_link_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "gone.parquet").symlink_to(tmp_path / "nowhere")
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(
        InputError, match=r"data\.path must be readable; got '.*' \(.*gone\.parquet'\)\. Check its perm"
    ):
        Parquet(path=tmp_path).load(0)
    (tmp_path / "gone.parquet").unlink()
    with pytest.raises(InputError, match=r"data\.path must be a \.parquet file or a folder of some; '.*' holds none"):
        Parquet(path=tmp_path).load(0)


def test_a_path_is_read_by_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.parquet").write_bytes(b"")
    kinds = {"tables": "Parquet", "A.NPZ": "Npz", "b.parquet": "Parquet", "c.csv": "Csv", ".": "Folder"}
    assert {name: type(own_files(tmp_path / name)).__name__ for name in kinds} == kinds
    with pytest.raises(
        InputError, match=r"must be an \.npz, \.parquet or \.csv file, or a folder of pictures; got '.*a\.txt'"
    ):
        own_files(tmp_path / "a.txt")


def test_a_training_and_a_test_table_of_other_types_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, rows in (("train", [[1.0, 2.0]] * 4), ("test", [[1, 2]] * 4)):
        parquet.write_table(arrow.table({"x": rows, "y": [0, 1, 0, 1]}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match="must hold training and test samples of one type; got"):
        Parquet(path=tmp_path).load(0)


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_held_out_tables_may_have_any_usual_name(tmp_path: Path, name: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for part, rows in ((f"{name}-0", 3), ("train-0", 4), ("train-1", 2)):
        table = arrow.table({"vector": [[float(i), rows] for i in range(rows)], "class": ["a", "b", "a", "b"][:rows]})
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    data = Parquet(path=tmp_path).load(0)
    assert data.X_train[:, 1].tolist() == [4.0] * 4 + [2.0] * 2
    assert data.X_test[:, 1].tolist() == [3.0] * 3
    assert data.classes == ("a", "b")


@given(st.binary(max_size=12), st.sampled_from([b"", bytes([0, 0, 8, 1, 0, 0, 0]), bytes([0, 0, 8, 2])]))
def test_no_bytes_break_the_reader_of_idx_files(tail, head):
    """Either an array of all the bytes behind the header, or a refusal in words."""
    raw = head + tail
    try:
        found = decode_idx(raw, "it")
    except InputError as refusal:
        assert str(refusal).startswith("it must ")
    else:
        assert found.tobytes() == raw[4 + 4 * raw[3] :]
    with pytest.raises(InputError, match=rf"it must hold records of 3073 bytes; it has {len(raw)} bytes"):
        decode_bin(raw, "it")


def test_a_pickled_array_of_objects_is_not_taken(tmp_path: Path) -> None:
    for content, word in (
        (np.zeros(3, np.float32), "values of kind"),
        (np.zeros((2, 2), np.uint8, order="F"), "plain"),
    ):
        (tmp_path / "batch").write_bytes(pickle.dumps({b"data": content}, protocol=3))
        with pytest.raises(InputError, match=f"must be a CIFAR file of plain arrays; got one .*{word}"):
            read_pickle(tmp_path / "batch")
    (tmp_path / "batch").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match=r"must hold a dictionary; got list\. Get it again"):
        read_pickle(tmp_path / "batch")


def test_pictures_given_as_bytes_are_named_by_their_row():
    with pytest.raises(InputError, match=r"row 3 must be a picture that can be read .*Replace or remove it"):
        decode_pictures([("row 3", b"GIF89a")], None)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'registry is down' >&2; exit 3", "pack toys: registry is down"),
        ("exit 0", "pack toys: exit code 0"),
        ("exit 4", "pack toys: exit code 4"),
    ],
)
def test_a_package_client_that_fails_says_its_first_words(tmp_path, monkeypatch, script, message):
    client = tmp_path / "client"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o755)
    monkeypatch.setattr(fetch, "CLIENT", str(client))
    (tmp_path / "work").mkdir()
    with pytest.raises(FetchError, match=message):
        fetch._pack("toys", tmp_path / "work")


def test_a_package_client_that_hangs_is_given_up(tmp_path, monkeypatch):
    client = tmp_path / "client"
    client.write_text("#!/bin/sh\nexec sleep 60\n")
    client.chmod(0o755)
    monkeypatch.setattr(fetch, "CLIENT", str(client))
    monkeypatch.setattr(fetch, "PATIENCE", 0.1)
    with pytest.raises(FetchError, match=r"pack toys: .*timed out after 0\.1 seconds"):
        fetch._pack("toys", tmp_path)
    monkeypatch.setattr(fetch, "CLIENT", "no-such-client")
    with pytest.raises(FetchError, match="no-such-client is not installed"):
        fetch._pack("toys", tmp_path)


def test_a_changed_source_makes_the_older_entry_go(tmp_path: Path) -> None:
    """The cache is keyed by size and time; what was decoded from an older file does not stay."""
    source, made = tmp_path / "a.bin", []

    def decode() -> Dataset:
        made.append(source.read_bytes())
        part = torch.tensor([[float(len(made))]])
        return Dataset(part, torch.tensor([0]), part, torch.tensor([0]), 1, classes=("only",))

    def load() -> float:
        return float(cached(tmp_path, "toy", "", [source], decode).X_train)

    source.write_bytes(b"1")
    assert [load(), load()] == [1, 1]
    source.write_bytes(b"22")
    assert [load(), load()] == [2, 2]
    assert made == [b"1", b"22"]
    assert len(list((tmp_path / ".ratemesh-cache").iterdir())) == 1
    assert float(cached(tmp_path, "toy", "other settings", [source], decode).X_train) == 3


@given(st.integers(1, 40), st.integers(1, 5), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_split_loses_no_sample_and_keeps_labels_with_them(m, K, fraction, seed):
    y = torch.randint(0, K, (m,), generator=torch.Generator().manual_seed(seed))
    data = split(torch.arange(m)[:, None], y, fraction, K, seed)
    rows = torch.cat([data.X_train, data.X_test]).flatten()
    assert sorted(rows.tolist()) == list(range(m))
    assert torch.equal(y[rows], torch.cat([data.y_train, data.y_test]))
    assert abs(len(data.y_test) - fraction * m) < 1
    most = 1 + (m - 1) // 2
    assert len(some_rows(y, most, torch.Generator())) == most


@pytest.mark.parametrize("name", ["iid", "stratified", "shards", "dirichlet", "quantity"])
def test_one_node_gets_everything(name):
    y = torch.arange(24) % 3
    (part,) = PARTITIONS[name](name=name).split(y, 1, 3, torch.Generator())
    assert part.tolist() == list(range(24))
    with pytest.raises(InputError, match=rf"nodes must leave at least {FEWEST} samples each; got 13 nodes for 24"):
        PARTITIONS[name](name=name).split(y, 13, 3, torch.Generator())
