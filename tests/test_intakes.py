"""New pictures become what encoders were trained on; whole numbers in arrays do too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ratemesh.data.arrays import Npz
from ratemesh.data.parquet import Parquet
from ratemesh.data.pictures import Folder, Pictures
from ratemesh.errors import InputError

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (20, 6, 8), dtype=np.uint8)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twenty grey pictures, 8 wide and 6 high, of two classes."""
    for i, picture in enumerate(PIXELS):
        (folder := tmp_path / "tree" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{i:02d}.png")
    return tmp_path / "tree"


def test_pictures_are_read_as_for_training(tree: Path) -> None:
    data = Folder(path=tree).load(0)
    again = Folder(path=tree).load(0)  # from the cache
    intake = again.intake
    assert intake == data.intake == Pictures(name="pictures", shape=(1, 6, 8))
    found = intake.read(tree)
    assert found.names[:2] == ("a/00.png", "a/02.png")
    assert torch.equal(found.X[0, 0], torch.from_numpy(PIXELS[0]))
    assert torch.equal(intake.read(tree / "b" / "01.png").X[0, 0], torch.from_numpy(PIXELS[1]))
    assert torch.equal(intake.prepare(PIXELS[:, None]), torch.from_numpy(PIXELS[:, None]))


def test_other_sizes_are_scaled_only_if_they_were_for_training(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    Image.fromarray(DRAW.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(tmp_path / "new" / "c.png")
    whole, scaled = Folder(path=tree).load(0).intake, Folder(path=tree, size=4).load(0).intake
    assert whole is not None
    assert scaled is not None
    assert tuple(scaled.read(tmp_path / "new").X.shape) == (1, 1, 4, 4)  # grey, as training was
    with pytest.raises(InputError, match=r"c\.png' must be 8×6, as in training; got 9×9"):
        whole.read(tmp_path / "new")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"none' must hold pictures; it holds none"):
        whole.read(tmp_path / "none")


def test_pictures_in_a_table(tree: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    blobs = [path.read_bytes() for path in sorted(tree.rglob("*.png"))]
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(arrow.table({"photo": blobs, "label": ["a"] * 10 + ["b"] * 10}), path)
    intake = Parquet(path=path, column="photo").load(0).intake
    assert isinstance(intake, Pictures)
    assert torch.equal(intake.read(path).X[0, 0], torch.from_numpy(PIXELS[0]))


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint16, np.int64])
def test_whole_numbers_become_floats(tmp_path: Path, kind: type) -> None:
    X, y = DRAW.integers(0, 100, (12, 3)).astype(kind), np.arange(12) % 2
    np.savez(tmp_path / "a.npz", x_train=X, y_train=y, x_test=X, y_test=y)
    data = Npz(path=tmp_path / "a.npz").load(0)
    assert data.X_train.dtype == torch.float32
    assert np.array_equal(data.X_train, X.astype(np.float32))


def test_whole_numbers_that_floats_cannot_hold_are_refused(tmp_path: Path) -> None:
    X, y = np.full((12, 3), 2**24 + 1), np.arange(12) % 2
    np.savez(tmp_path / "a.npz", x_train=X, y_train=y, x_test=X, y_test=y)
    with pytest.raises(InputError, match=r"float32 holds exactly, within ±16,777,216; got 16777217"):
        Npz(path=tmp_path / "a.npz").load(0)
