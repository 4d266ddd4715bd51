"""Features of an encoder that was trained elsewhere, with labels and samples: numpy archives and parquet tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ratemesh.data.arrays import as_labels, as_samples, read_npz
from ratemesh.data.columns import TEST_NAMES
from ratemesh.data.files import Array
from ratemesh.data.parquet import read_columns
from ratemesh.errors import InputError

Samples = Tensor | Sequence[str]
"""Images (m, C, H, W), vectors (m, p) or texts."""


@dataclass(frozen=True)
class Labelled:
    """Features Z (m, d) float32 with the names of their classes (m,), and by a finer labelling where there is one."""

    Z: Tensor
    words: Array
    fine: Array | None = None


@dataclass(frozen=True)
class FeatureFile:
    """What a file holds: training features, the samples they are features of, and held-out features."""

    train: Labelled
    X: Samples | None
    test: Labelled | None


def read_features(path: Path) -> FeatureFile:
    """Read a file of features; nothing in it is executed.

    An .npz holds z_train (m, d) and y_train (m,), and perhaps x_train (samples, for a sketch), z_test, y_test and
    fine_test. A .parquet table has columns z and y, and perhaps x, fine, and split with "train" and "test".
    """
    if not path.is_file():
        raise InputError(f"'{path}' must be a file; there is none. Check the spelling, and where you started from.")
    if path.suffix == ".npz":
        found = read_npz(path, ("z_train", "y_train"), ("x_train", "z_test", "y_test", "fine_test"))
    elif path.suffix == ".parquet":
        found = _parts(read_columns(path, ("z", "y"), ("x", "fine", "split")), path)
    else:
        raise InputError(f"'{path}' must end in .npz or .parquet; got '{path.suffix}'. Save features as one of these.")
    if ("z_test" in found) != ("y_test" in found):
        raise InputError(f"'{path}' must hold z_test and y_test, or neither; got one. Add the other.")
    train = _labelled(found, "train", path)
    test = _labelled(found, "test", path) if "z_test" in found else None
    if test is not None and test.Z.shape[1] != train.Z.shape[1]:
        raise InputError(
            f"'{path}' must hold features of one encoder; z_train has {train.Z.shape[1]} columns, z_test "
            f"{test.Z.shape[1]}."
        )
    X = found.get("x_train")
    if X is not None and len(X) != len(train.Z):
        raise InputError(f"x_train of '{path}' must hold a sample for every feature, {len(train.Z)}; got {len(X)}.")
    return FeatureFile(train, None if X is None else samples_of(X, f"x_train of '{path}'"), test)


def samples_of(X: Array, what: str) -> Samples:
    """Return samples as sketches take them: words (m,) are texts, numbers images or vectors."""
    if X.dtype.kind == "U" and X.ndim == 1:
        texts: list[str] = X.tolist()
        return texts
    return torch.from_numpy(as_samples(X, what))


def features_of(Z: Array, what: str) -> Tensor:
    """Return features (m, d) as a float32 tensor; refuse what is none."""
    if Z.dtype.kind != "f" or Z.ndim != 2 or 0 in Z.shape:
        raise InputError(f"{what} must be floats of shape (m, d), neither 0; got {Z.dtype} of shape {Z.shape}.")
    with np.errstate(over="ignore"):
        Z = np.array(Z, dtype=np.float32)
    bad = ~np.isfinite(Z).all(1)
    if bad.any():
        raise InputError(f"{what} must be finite float32 numbers; row {int(bad.argmax())} is not. Leave it out.")
    return torch.from_numpy(Z)


def words_of(y: Array, rows: int, what: str) -> Array:
    """Return the names (m,) that labels, whole numbers or words, stand for."""
    if y.shape != (rows,):
        raise InputError(f"{what} must hold a label for every feature, shape ({rows},); got shape {y.shape}.")
    codes, classes = as_labels(y, what)
    return np.array(classes)[codes]


def _labelled(found: dict[str, Array], part: str, path: Path) -> Labelled:
    Z = features_of(found[f"z_{part}"], f"z_{part} of '{path}'")
    words = words_of(found[f"y_{part}"], len(Z), f"y_{part} of '{path}'")
    fine = found.get(f"fine_{part}")
    return Labelled(Z, words, None if fine is None else words_of(fine, len(Z), f"fine_{part} of '{path}'"))


def _parts(columns: dict[str, Array], path: Path) -> dict[str, Array]:
    """Return the columns of a table by the names that an archive would have."""
    split = columns.pop("split", None)
    train = np.full(len(columns["y"]), True) if split is None else split == "train"
    test = np.isin(split, TEST_NAMES) if split is not None else ~train
    if not (train | test).all() or not train.any():
        got = sorted(set(np.asarray(split).tolist()))
        raise InputError(f"split of '{path}' must be 'train' or one of {', '.join(TEST_NAMES)}; got {got}.")
    parts = {"train": train} | ({"test": test} if test.any() else {})
    return {f"{key}_{part}": A[rows] for key, A in columns.items() for part, rows in parts.items()}
