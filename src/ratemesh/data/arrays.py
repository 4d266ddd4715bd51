"""What people's own files hold, brought into one form: images or vectors, labels as 0..K-1; and numpy archives."""

import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ratemesh.data.dataset import Dataset, split
from ratemesh.data.files import Array, OwnFilesSpec
from ratemesh.data.intake import Incoming, IntakeSpec
from ratemesh.errors import InputError

Channels = Literal["auto", "first", "last"]
KEYS = ("x_train", "x_test", "y_train", "y_test")
FINE_KEYS = ("fine_train", "fine_test")
EXACT = 2**24
"""Up to here float32 holds every whole number."""


def as_dataset(
    X: Sequence[Array],
    y: Sequence[Array],
    where: str,
    channels: Channels,
    test_fraction: float = 0.0,
    fine: Sequence[Array] = (),
) -> Dataset:
    """Return the training and the test part, or the only part with `test_fraction` held out, the same for every seed.

    Args:
        X: samples of each part.
        y: labels of each part, one a sample, (m,) or (m, 1).
        where: the file, for messages.
        fine: labels of each part by a finer labelling, as `y`; empty where there is none.
    """
    names = ("training ", "test ") if len(X) == 2 else ("",)
    samples = [as_samples(A, f"{name}samples of {where}", channels) for A, name in zip(X, names, strict=True)]
    return labelled([torch.from_numpy(A) for A in samples], y, where, test_fraction, fine)


def labelled(
    X: Sequence[Tensor], y: Sequence[Array], where: str, test_fraction: float = 0.0, fine: Sequence[Array] = ()
) -> Dataset:
    """Return the same for samples that are as they should be; see `as_dataset`."""
    names = ("training ", "test ") if len(X) == 2 else ("",)
    sizes = {f"{name}sample": len(A) for A, name in zip(X, names, strict=True)}
    targets, classes = _coded(y, sizes, "label", where)
    finer, fine_classes = _coded(fine, sizes, "fine label", where) if fine else ((None,) * len(X), ())
    if len(X) == 1:
        data = split(X[0], targets[0], test_fraction, len(classes), 0, finer[0])
        if not len(data.y_test):
            raise InputError(f"data.test_fraction must hold out a sample of {where}; got {test_fraction}. Raise it.")
        return replace(data, classes=classes, fine_classes=fine_classes)
    kinds = [f"{tuple(A.shape[1:])} {str(A.dtype).removeprefix('torch.')}" for A in X]
    if kinds[0] != kinds[1]:
        got = " and ".join(kinds)
        raise InputError(f"{where} must hold training and test samples of one shape and kind; got {got}.")
    return Dataset(
        *(X[0], targets[0], X[1], targets[1]),
        num_classes=len(classes),
        classes=classes,
        fine_train=finer[0],
        fine_test=finer[1],
        fine_classes=fine_classes,
    )


def _coded(
    y: Sequence[Array], sizes: Mapping[str, int], what: str, where: str
) -> tuple[Sequence[Tensor], tuple[str, ...]]:
    """Return the labels of each part as codes (m,), and the names that the codes of all parts stand for.

    Args:
        y: labels of each part.
        sizes: how many samples each part has, by what they are called.
        what: what the labels are called.
        where: the file.
    """
    labels = [A[:, 0] if A.ndim == 2 and A.shape[1] == 1 else A for A in y]
    if any(A.ndim != 1 for A in labels):
        shapes = " and ".join(str(A.shape) for A in y)
        raise InputError(f"{what}s of {where} must be one a sample, (m,); got shapes {shapes}.")
    codes, classes = as_labels(np.concatenate(labels), f"{what}s of {where}")
    for (sample, size), A in zip(sizes.items(), labels, strict=True):
        if size != len(A):
            raise InputError(f"{where} must hold a {what} for every {sample}; got {size} samples and {len(A)} {what}s.")
    return torch.from_numpy(codes).split([len(A) for A in labels]), classes


def as_samples(X: Array, what: str, channels: Channels = "auto") -> Array:
    """Return vectors as (m, p) and images as (m, C, H, W), uint8 or float32.

    Of four axes (m, a, b, c) the shorter of a and c counts the channels, a in doubt, unless `channels` says it. Other
    whole numbers, and yes and no, become float32, which must hold them exactly.
    """
    if X.dtype != np.uint8 and X.dtype.kind not in "fiub":
        raise InputError(
            f"{what} must be numbers; got {X.dtype}. Save them as uint8 (0..255), other integers or floats."
        )
    if not 2 <= X.ndim <= 4 or 0 in X.shape:
        shapes = "(m, p), (m, H, W), (m, H, W, C) or (m, C, H, W)"
        raise InputError(f"{what} must have shape {shapes}, no axis empty; got {X.shape}.")
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4 and (channels == "last" or (channels == "auto" and X.shape[3] < X.shape[1])):
        X = X.transpose(0, 3, 1, 2)
    if X.dtype.kind in "iu" and X.dtype.itemsize > 2 and (X.min() < -EXACT or X.max() > EXACT):
        worst = max(X.min(), X.max(), key=lambda value: abs(int(value)))
        raise InputError(
            f"{what} must be whole numbers that float32 holds exactly, within ±{EXACT:,}; got {worst}. Scale them, or "
            "save them as floats."
        )
    if X.dtype != np.uint8:
        X = X.astype(np.float32)
        bad = ~np.isfinite(X.reshape(len(X), -1)).all(1)
        if bad.any():
            raise InputError(f"{what} must be finite float32 numbers; row {int(bad.argmax())} is not. Clean the data.")
    return np.require(X, requirements=["C", "W"])


def as_labels(y: Array, what: str) -> tuple[Array, tuple[str, ...]]:
    """Return labels (m,) as int64 codes 0..K-1, and the names of the K classes that the codes stand for.

    >>> as_labels(np.array(["cat", "dog", "cat"]), "labels")
    (array([0, 1, 0]), ('cat', 'dog'))
    """
    if y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()):
        y = y.astype(np.int64)
    if y.dtype.kind not in "iubU" or not len(y):
        raise InputError(f"{what} must be whole numbers or words, one a sample; got {y.dtype} of shape {y.shape}.")
    values, found = np.unique(y, return_inverse=True)
    words = [str(value) for value in values.tolist()]
    order = sorted(range(len(words)), key=lambda i: _rank(words[i]))  # "10" after "9"
    return np.argsort(order)[found], tuple(words[i] for i in order)


def _rank(word: str) -> tuple[bool, int, str]:
    number = word.removeprefix("-")
    whole = number.isascii() and number.isdigit()
    return not whole, int(word) if whole else 0, word


def bounded(shape: Sequence[int], itemsize: int, what: str) -> None:
    """Raise before anything is allocated if samples of this shape would fill half of the machine's memory."""
    wanted = math.prod(shape) * itemsize
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if wanted > most:
        raise InputError(
            f"{what} must fit into half of this machine's memory, {most / 1e9:.1f} GB; it would take "
            f"{wanted / 1e9:.1f} GB. Make the samples fewer or smaller."
        )


class Npz(OwnFilesSpec):
    """Your numpy archive with x_train, y_train, x_test, y_test (fine_train, fine_test): images or vectors."""

    channels: Channels = Field("auto", description="where (m, a, b, c) has its channels: first, last or auto (shorter)")

    def decode(self, path: Path) -> Dataset:
        """Read samples and labels; nothing in the file is executed, nothing unpacked that its header does not announce.

        Samples are numbers, (m, p), (m, H, W), (m, H, W, C) or (m, C, H, W); labels are numbers or words, (m,),
        and so are labels by a finer labelling, where there is one.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                held = {name.removesuffix(".npy") for name in archive.namelist()}
                wanted = KEYS + FINE_KEYS if held.intersection(FINE_KEYS) else KEYS
                x_train, x_test, y_train, y_test, *fine = (_member(archive, key, wanted, path) for key in wanted)
        except InputError:
            raise
        except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"'{path}' must be a readable .npz file ({error}). Write it with numpy.savez.") from None
        return as_dataset((x_train, x_test), (y_train, y_test), f"'{path}'", self.channels, fine=fine)


def _member(archive: zipfile.ZipFile, key: str, wanted: Sequence[str], path: Path) -> Array:
    """Read one array of those that are wanted, after a look at its header."""
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if key not in names:
        raise InputError(f"'{path}' must hold {', '.join(wanted)}; it holds {', '.join(names) or 'nothing'}.")
    what = f"{key} of '{path}'"
    info = archive.getinfo(f"{key}.npy")
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise InputError(f"{what} must be in .npy format 1 or 2; got {version}. Save plain arrays.")
        shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(f"{what} must hold plain numbers or words; got Python objects, which are never loaded.")
    announced = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or announced > info.file_size:
        raise InputError(f"{what} must be whole; its header announces {announced:,} bytes. Write it again.")
    bounded(shape, dtype.itemsize, what)
    with archive.open(info) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # to the end, so that the archive's own checksum is looked at
    return array


def read_npz(path: Path, must: Sequence[str], may: Sequence[str] = ()) -> dict[str, Array]:
    """Read arrays of these names, those that may be left out only where they are there; see `Npz.decode`."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = [key for key in may if f"{key}.npy" in archive.namelist()]
            return {key: _member(archive, key, must, path) for key in [*must, *there]}
    except InputError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"'{path}' must be a readable .npz file ({error}). Write it with numpy.savez.") from None


class Samples(IntakeSpec):
    """Samples that come as encoders take them: arrays and tensors, or x of an .npz file."""

    dtype: str = Field("float32", description="of the samples that encoders were trained on")

    def prepare(self, raw: Any) -> Tensor:
        """Return arrays or tensors (m, *shape) in the type that encoders were trained on."""
        X = raw if isinstance(raw, Tensor) else torch.from_numpy(np.require(np.asarray(raw), requirements=["C", "W"]))
        if tuple(X.shape[1:]) != self.shape:
            shape = ", ".join(map(str, self.shape))
            raise InputError(f"X must have shape (m, {shape}), as in training; got {tuple(X.shape)}.")
        wanted: torch.dtype = getattr(torch, self.dtype)
        if X.dtype == torch.uint8 and wanted != torch.uint8:
            raise InputError(f"X must be {self.dtype}, as in training; got uint8. Convert it as you did then.")
        if wanted == torch.uint8 and X.dtype != torch.uint8:
            raise InputError(f"X must be uint8 (0..255), as in training; got {X.dtype}. Convert it.")
        return X.to(wanted)

    def read(self, path: Path) -> Incoming:
        """Read `x` and, if they are there, its labels `y`; or x_test and y_test; of an .npz file."""
        if path.suffix.lower() != ".npz":
            raise InputError(
                f"'{path}' must be an .npz file with x: the mesh was trained on arrays. Write it with "
                "numpy.savez(…, x=X), or train on a frame or a CSV file, whose columns have names."
            )
        found = read_npz(path, (), ("x", "x_test", "y", "y_test"))
        if not {"x", "x_test"} & set(found):
            raise InputError(f"'{path}' must hold x, samples to classify; it does not. Write it with numpy.savez(x=…).")
        key = "x" if "x" in found else "x_test"
        X = found[key]
        if X.dtype.kind not in "iu" or X.dtype == np.uint8:  # other whole numbers are no pixels
            asis = X.ndim == 3 and X.shape[1:] == self.shape  # not pictures without a channel, where none were
            X = X if asis else as_samples(X, f"{key} of '{path}'", "first")
        y = found.get(key.replace("x", "y", 1), np.empty(0)).ravel()
        if len(y) not in (0, len(X)):
            raise InputError(f"'{path}' must hold a label for every sample, or none; got {len(y)} for {len(X)}.")
        return Incoming(self.prepare(X), labels=tuple(y.astype(str).tolist()))
