"""People's own files: npz, folders of pictures, parquet; in every shape they come in, and broken ones."""

import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from ratemesh.data import DATASETS, arrays
from ratemesh.data.arrays import Npz
from ratemesh.data.parquet import Parquet
from ratemesh.data.pictures import Folder
from ratemesh.data.published import Mnist
from ratemesh.errors import InputError
from ratemesh.experiment.config import load_config
from ratemesh.experiment.plan import Plan

DRAW = np.random.default_rng(0)
HWC = DRAW.integers(0, 256, (30, 8, 6, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def npz(path, x=HWC, y=LABELS, **changes):
    held = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9], **changes}
    np.savez_compressed(path, **{key: value for key, value in held.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (HWC, (3, 8, 6), torch.uint8),
        (HWC.transpose(0, 3, 1, 2), (3, 8, 6), torch.uint8),
        (HWC[..., 0], (1, 8, 6), torch.uint8),
        (HWC[..., :1], (1, 8, 6), torch.uint8),
        (HWC[..., 0].astype(">f8") / 255, (1, 8, 6), torch.float32),
        (HWC[:, 0, :, 0].astype(np.float16), (6,), torch.float32),
    ],
    ids=["HWC", "CHW", "HW", "HW1", "float HW", "vectors"],
)
def test_npz_in_every_shape(tmp_path, x, shape, dtype):
    data = Npz(path=npz(tmp_path / "a.npz", x)).load(0)
    assert (tuple(data.X_train.shape), data.X_train.dtype) == ((30, *shape), dtype)
    assert (len(data.X_test), data.num_classes, data.classes) == (9, 3, ("0", "1", "2"))
    expected = HWC.transpose(0, 3, 1, 2)[:, : shape[0]] if dtype is torch.uint8 else x.reshape(30, *shape)
    assert np.array_equal(data.X_train.numpy(), expected.astype(data.X_train.numpy().dtype))


def test_channels_can_be_said(tmp_path):
    path = npz(tmp_path / "a.npz", HWC[:, :2])  # (m, 2, 6, 3): the first axis is the shorter
    assert [tuple(Npz(path=path, channels=c).load(0).X_train.shape[1:]) for c in ("auto", "first", "last")] == [
        (2, 6, 3),
        (2, 6, 3),
        (3, 2, 6),
    ]


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (LABELS + 4, ("4", "5", "6")),
        (LABELS * 5, ("0", "5", "10")),
        (np.array(["b", "a", "c"])[LABELS], ("a", "b", "c")),
        (LABELS[:, None].astype(float), ("0", "1", "2")),
        (LABELS > 0, ("False", "True")),
        (LABELS - 1, ("-1", "0", "1")),
    ],
    ids=["shifted", "gaps", "words", "floats (m, 1)", "truth", "negative"],
)
def test_labels_are_mapped_and_names_kept(tmp_path, y, names):
    data = Npz(path=npz(tmp_path / "a.npz", y=y)).load(0)
    assert data.classes == names
    assert [data.classes[code] for code in data.y_train] == [
        str(int(v) if isinstance(v, float) else v) for v in y.ravel().tolist()
    ]
    assert data.y_train.dtype == torch.int64


NAN = np.where(LABELS[:, None] == 2, np.nan, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "must hold x_train, x_test, y_train, y_test; it holds x_train, y_train, y_test"),
        ({"x": HWC.astype(int) * 10**6}, r"float32 holds exactly, within ±16,777,216; got 255000000"),
        ({"x": HWC[None, 0]}, r"must hold a label for every training sample; got 1 samples and 30 labels"),
        ({"x": HWC[:, :, 0, 0, None, None, None]}, r"must have shape \(m, p\)"),
        ({"x_test": HWC[:9, :4]}, "must hold training and test samples of one shape and kind"),
        ({"x": NAN}, "must be finite float32 numbers; row 2 is not"),
        ({"y": np.eye(30)}, r"one a sample, \(m,\); got shapes \(30, 30\)"),
        ({"y": LABELS + 0.5}, "whole numbers or words"),
        ({"y": np.array([None] * 30)}, "never loaded"),
        ({"x_test": np.float32(3), "y_test": np.int64(1)}, "must have shape"),
    ],
)
def test_npz_that_cannot_be_used_says_why(tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as found:
        Npz(path=npz(tmp_path / "a.npz", **changes)).load(0)
    assert "a.npz" in str(found.value)


def test_a_zip_file_of_other_things_is_no_npz(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train", b"plain bytes, not .npy")
    with pytest.raises(InputError, match=r"must hold x_train, .* it holds nothing"):
        Npz(path=tmp_path / "a.npz").load(0)


def test_npz_cut_short_or_lying(tmp_path, monkeypatch):
    path = npz(tmp_path / "a.npz")
    whole = path.read_bytes()
    for wrong in (b"", b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=r"a\.npz' must be a readable \.npz"):
            Npz(path=path).load(0)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 2)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", header.getvalue())
        for key in ("y_train", "x_test", "y_test"):
            archive.writestr(f"{key}.npy", b"")
    with pytest.raises(InputError, match="header announces 2,000,000,000,000 bytes"):
        Npz(path=path).load(0)
    monkeypatch.setattr(arrays.os, "sysconf", lambda _: 10)
    with pytest.raises(InputError, match="half of this machine's memory"):
        Npz(path=npz(path)).load(0)


def picture(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def tree(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for k, name in enumerate(("2", "10", "cat")):
            for i in range(count):
                picture(tmp_path / "pics" / part / name / f"{i}.png", HWC[3 * i + k])
    return tmp_path / "pics"


def test_folders_of_pictures(tree):
    (tree / "train" / "cat" / "notes.txt").write_text("not a picture")
    data = Folder(path=tree).load(0)
    assert (tuple(data.X_train.shape), tuple(data.X_test.shape)) == ((12, 3, 8, 6), (6, 3, 8, 6))
    assert data.classes == ("2", "10", "cat")
    first_cat = data.X_train[data.y_train == 2][0]
    assert np.array_equal(first_cat.numpy(), HWC[2].transpose(2, 0, 1))
    again = Folder(path=tree).load(0)
    assert torch.equal(again.X_train, data.X_train)


def test_one_tree_holds_a_part_out_the_same_for_every_seed(tree):
    a, b = (Folder(path=tree / "train", test_fraction=0.25).load(seed) for seed in (0, 1))
    assert torch.bincount(a.y_test).tolist() == [1, 1, 1]
    assert torch.equal(a.X_test, b.X_test)
    assert len(a.y_train) == 9


def test_grey_pictures_have_one_channel_and_mixed_ones_three(tmp_path):
    for i in range(4):
        picture(tmp_path / "grey" / f"c{i % 2}" / f"{i}.png", HWC[i, ..., 0])
    assert Folder(path=tmp_path / "grey", test_fraction=0.5).load(0).X_train.shape == (2, 1, 8, 6)
    palette = Image.fromarray(HWC[0]).convert("P")
    palette.save(tmp_path / "grey" / "c0" / "palette.png", transparency=bytes([0, 255]))
    assert Folder(path=tmp_path / "grey", test_fraction=0.5).load(0).X_train.shape[1:] == (3, 8, 6)


def test_pictures_narrower_than_their_channels_stay_upright(tmp_path):
    for i in range(4):
        picture(tmp_path / "narrow" / f"c{i % 2}" / f"{i}.png", HWC[i, :, :2])
    assert Folder(path=tmp_path / "narrow", test_fraction=0.5).load(0).X_train.shape == (2, 3, 8, 2)


def test_pictures_of_other_sizes_need_a_size(tree):
    picture(tree / "train" / "cat" / "big.png", DRAW.integers(0, 256, (20, 20, 3), dtype=np.uint8))
    with pytest.raises(
        InputError, match=r"big\.png' must be as large as the first picture, 6×8; got 20×20.*data\.size=6"
    ):
        Folder(path=tree).load(0)
    assert Folder(path=tree, size=5).load(0).X_train.shape == (13, 3, 5, 5)


def test_pictures_that_cannot_be_used(tree, monkeypatch):
    bad = tree / "train" / "cat" / "bad.png"
    bad.write_bytes((tree / "train" / "cat" / "0.png").read_bytes()[:60])
    with pytest.raises(InputError, match=r"bad\.png' must be a picture that can be read"):
        Folder(path=tree).load(0)
    picture(bad, HWC[0, ..., 0].astype(np.uint16))
    with pytest.raises(InputError, match=r"bad\.png' must be a picture of 8 bits a channel; got mode I"):
        Folder(path=tree).load(0)
    bad.unlink()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(InputError, match=r"0\.png' must be a picture that can be read \(Image size"):
        Folder(path=tree).load(0)


def test_folders_without_pictures_and_absent_ones(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="must hold a folder of pictures for every class"):
        Folder(path=tmp_path / "empty").load(0)
    with pytest.raises(InputError, match=r"data\.path must exist; got .*nowhere"):
        Folder(path=tmp_path / "nowhere").load(0)


def png(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def table(path, rows, **columns):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    made = arrow.table({key: values[:rows] for key, values in columns.items()})
    names = {"info": {"features": {"label": {"names": ["ant", "bee", "cow"], "_type": "ClassLabel"}}}}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made.replace_schema_metadata({"huggingface": json.dumps(names)}), path)
    return path


BLOBS = [png(pixels) for pixels in HWC]


@pytest.mark.parametrize("column", [BLOBS, [{"bytes": blob, "path": None} for blob in BLOBS]], ids=["bytes", "struct"])
def test_parquet_of_pictures(tmp_path, column):
    table(tmp_path / "t" / "train-0.parquet", 15, img=column, label=LABELS)
    table(tmp_path / "t" / "train-1.parquet", 15, img=column[15:], label=LABELS[15:])
    table(tmp_path / "t" / "test-0.parquet", 6, img=column, label=LABELS)
    data = Parquet(path=tmp_path / "t").load(0)
    assert np.array_equal(data.X_train.numpy(), HWC.transpose(0, 3, 1, 2))
    assert (data.y_train.tolist(), len(data.y_test)) == (LABELS.tolist(), 6)
    assert data.classes == ("ant", "bee", "cow")
    assert torch.equal(Mnist(path=tmp_path / "t").load(0).X_test, data.X_test)


def test_parquet_of_vectors_and_words(tmp_path):
    vectors = DRAW.normal(size=(30, 5)).astype(np.float32)
    path = table(tmp_path / "v.parquet", 30, emb=list(vectors), kind=np.array(["p", "q", "r"])[LABELS])
    data = Parquet(path=path, column="emb", label="kind", test_fraction=0.5).load(0)
    assert (tuple(data.X_train.shape), data.classes) == ((15, 5), ("p", "q", "r"))
    together = np.concatenate([data.X_train.numpy(), data.X_test.numpy()])
    assert np.array_equal(np.sort(together, axis=0), np.sort(vectors, axis=0))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"pixels": BLOBS, "label": LABELS}, r"data\.column must name a column.*Known: pixels, label"),
        ({"image": BLOBS, "what": LABELS}, r"data\.label must name a column"),
        ({"image": [*BLOBS[:5], None, *BLOBS[6:]], "label": LABELS}, "row 5 has none"),
        ({"image": [b"no", *BLOBS[1:]], "label": LABELS}, "row 0 of .* must be a picture"),
        ({"image": ["a"] * 30, "label": LABELS}, "column 'image' of .* must hold numbers; got string"),
        ({"x": [[1.0]] * 29 + [[1.0, 2.0]], "label": LABELS}, "one length and no gaps"),
        ({"x": [[1.0]] * 30, "label": [None, *LABELS[1:].tolist()]}, "1 are missing"),
        ({"x": [], "label": []}, "it has no rows"),
    ],
)
def test_parquet_that_cannot_be_used_says_why(tmp_path, columns, message):
    path = table(tmp_path / "t.parquet", 30, **columns)
    with pytest.raises(InputError, match=message):
        Parquet(path=path).load(0)


def test_parquet_needs_its_extra(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'ratemesh\[parquet\]'"):
        Parquet(path=path).load(0)


def test_parquet_that_is_none(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"t\.parquet' must be a readable parquet file"):
        Parquet(path=path).load(0)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_a_path_takes_the_place_of_a_well_known_set(tmp_path, tree, name):
    config = tmp_path / "a.toml"
    config.write_text(f'data = "{name}"\nd = 8\n[graph]\nname = "ring"\nnodes = 3\n[local]\nepochs = 1\n')
    for path, K in ((npz(tmp_path / "other.npz"), 3), (tree, 3)):
        settings = load_config(config, [f"data.path={path}"])
        resolved = tmp_path / "resolved.toml"
        resolved.write_text(settings.to_toml())
        plan = Plan(load_config(resolved))
        assert (plan.data.num_classes, tuple(plan.data.X_train.shape[1:])) == (K, (3, 8, 6))
        assert plan.node(1).X.dtype == torch.uint8
    with pytest.raises(InputError, match=r"data\.path must be an \.npz, \.parquet or \.csv file, or a folder"):
        DATASETS[name](path=config).load(0)
