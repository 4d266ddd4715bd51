"""Pictures in folders named after their classes."""

from pathlib import Path

import numpy as np

from ratemesh.data.cache import Decoded
from ratemesh.data.readers.arrays import one_part, parts
from ratemesh.data.readers.pictures import SUFFIXES, decode_pictures
from ratemesh.errors import InputError

TEST_NAMES = ("test", "val", "valid", "validation")


def trees(path: Path) -> list[Path]:
    """Return the folders that hold class folders: train and test, or the one that there is."""
    train = path / "train"
    if not train.is_dir():
        return [path]
    return [train, *[path / name for name in TEST_NAMES if (path / name).is_dir()][:1]]


def pictures(tree: Path) -> list[Path]:
    """Return the picture files below the class folders of a tree, in order; hidden ones are passed over."""
    if not tree.is_dir():
        raise InputError(f"data.path must be a folder; got '{tree}'. Check the spelling.")
    found = [
        file
        for folder in sorted(tree.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    ]
    if not found:
        raise InputError(
            f"'{tree}' must hold a folder of pictures for every class (CLASS/*.png, or train/CLASS/*.png and "
            f"test/CLASS/*.png); it holds none. Known: {', '.join(sorted(SUFFIXES))}."
        )
    return found


def read_folder(path: Path, size: int | None, test_fraction: float) -> Decoded:
    """Read train/CLASS/* and test/CLASS/*, or CLASS/* with a part held out; sub-folders belong to their class."""
    where = [(tree, pictures(tree)) for tree in trees(path)]
    every = [(f"'{file}'", file) for _, files in where for file in files]
    X = decode_pictures(every, size)  # together, for one size and one number of channels
    y = np.array([file.relative_to(tree).parts[0] for tree, files in where for file in files])
    if len(where) == 1:
        return one_part(X, y, test_fraction, f"'{path}'")
    m = len(where[0][1])
    return parts((X[:m], X[m:]), (y[:m], y[m:]), f"'{path}'", "first")
