"""The well-known data sets and their formats: idx, binary records, and pickles that can build nothing but bytes."""

import gzip
import math
import pickle
import struct
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from ratemesh.data.arrays import Npz
from ratemesh.data.dataset import Dataset, by_fine_labels, coarsened, in_pairs
from ratemesh.data.files import Array, FileSpec, OwnFilesSpec, cached
from ratemesh.data.known import data_dir, find, verified
from ratemesh.data.parquet import Parquet
from ratemesh.data.pictures import Folder
from ratemesh.data.tables import Csv
from ratemesh.errors import InputError

MNIST_MOST = 48_000_000
"""Bytes that the largest file of MNIST unpacks to, and some."""
SHAPE = (3, 32, 32)
PIXELS = math.prod(SHAPE)
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class KnownSpec(FileSpec):
    """A well-known data set, or a file of one's own that takes its place."""

    known: ClassVar[str]
    dir: Path | None = Field(None, description="folder of data sets; else RATEMESH_DATA, else data")
    path: Path | None = Field(None, description="an .npz, .parquet or .csv file, or a folder of pictures, instead")

    def decoded(self) -> Dataset:
        """Find the files, check them, decode them; or do so with the file that takes their place."""
        if self.path is not None:
            return own_files(self.path).decoded()
        root = data_dir(self.dir)
        files = find(self.known, root).at(root)
        return cached(root, self.known, "", list(files), lambda: self.decode(verified(files)))

    @abstractmethod
    def decode(self, paths: list[Path]) -> Dataset:
        """Decode files that are known to be the real ones."""


class TwiceLabelledSpec(KnownSpec):
    """A well-known data set with a coarse and a fine labelling, decoded with both; the setting chooses."""

    coarse: bool = Field(False, description="train on the coarse classes; fine labels are for evaluation only")

    @model_validator(mode="after")
    def _coarse_is_for_the_real_set(self) -> "TwiceLabelledSpec":
        if self.coarse and self.path is not None:
            raise InputError(f"data.coarse must be false when data.path is given; got '{self.path}'. Leave one out.")
        return self

    def decoded(self) -> Dataset:
        """Return the labelling that is asked for; without `coarse` training has the fine one, and none is left."""
        found = super().decoded()
        return found if self.coarse or self.path is not None else by_fine_labels(found)


class Mnist(TwiceLabelledSpec):
    """MNIST: 60,000 + 10,000 grey images of 28×28, ten classes or five pairs; `ratemesh data get mnist`."""

    known: ClassVar[str] = "mnist"

    def decode(self, paths: list[Path]) -> Dataset:
        """Decode idx files, packed or not: training images and labels, test images and labels."""
        X_train, y_train, X_test, y_test = (read_idx(path, MNIST_MOST) for path in paths)
        return in_pairs(_whole((X_train[:, None], y_train), (X_test[:, None], y_test), tuple("0123456789")))


class Cifar10(KnownSpec):
    """CIFAR-10: 50,000 + 10,000 colour images of 32×32, ten classes; `ratemesh data get cifar10`."""

    known: ClassVar[str] = "cifar10"

    def decode(self, paths: list[Path]) -> Dataset:
        """Decode five training batches and the test batch, binary or pickled."""
        *train, test = (read_batch(path, b"labels") for path in paths)
        X, y = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
        return _whole((X, y), test, CIFAR10_NAMES)


class Cifar100(TwiceLabelledSpec):
    """CIFAR-100: 50,000 + 10,000 colour images of 32×32, 100 classes or 20; `ratemesh data get cifar100`."""

    known: ClassVar[str] = "cifar100"

    def decode(self, paths: list[Path]) -> Dataset:
        """Decode the pickled training and test batch; the names, and which class is in which, are in the files too."""
        X_train, fine, coarse = read_batch(paths[0], b"fine_labels", b"coarse_labels")
        fine_names, coarse_names = (read_names(paths[2], kind + b"_label_names") for kind in (b"fine", b"coarse"))
        parents = torch.zeros(len(fine_names), dtype=torch.int64)
        parents[torch.from_numpy(fine)] = torch.from_numpy(coarse)
        X_test, fine_test = read_batch(paths[1], b"fine_labels")
        return coarsened(_whole((X_train, fine), (X_test, fine_test), fine_names), parents, coarse_names)


def _whole(train: Sequence[Array], test: Sequence[Array], classes: Sequence[str]) -> Dataset:
    """Return the parts as tensors, labels as int64."""
    X_train, X_test = (torch.from_numpy(np.require(X, requirements=["C", "W"])) for X, _ in (train, test))
    y_train, y_test = (torch.from_numpy(y.astype(np.int64)) for _, y in (train, test))
    return Dataset(X_train, y_train, X_test, y_test, len(classes), classes=tuple(classes))


def own_files(path: Path) -> OwnFilesSpec:
    """Return the reader that a path's kind calls for, with its usual settings."""
    here = path.expanduser()
    if here.is_dir():
        tables = [reader for kind, reader in (("parquet", Parquet), ("csv", Csv)) if any(here.glob(f"*.{kind}"))]
        return (tables[0] if tables else Folder)(path=path)
    readers: dict[str, type[OwnFilesSpec]] = {".npz": Npz, ".parquet": Parquet, ".csv": Csv}
    if here.suffix.lower() not in readers:
        raise InputError(f"data.path must be an .npz, .parquet or .csv file, or a folder of pictures; got '{path}'.")
    return readers[here.suffix.lower()](path=path)


def decode_idx(raw: bytes, what: str) -> Array:
    """Return the uint8 array of an idx file's content; `what` names the file in messages.

    Four bytes of magic, a big-endian length per axis, then the values.

    >>> decode_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two.idx").tolist()
    [7, 9]
    """
    magic = raw[:4]
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise InputError(f"{what} must be an idx file of bytes (magic 00 00 08 nn); it begins {magic.hex(' ')}.")
    start = 4 + 4 * magic[3]
    if len(raw) < start:
        raise InputError(f"{what} must have {start} bytes of header; it ends after {len(raw)}. Get the file again.")
    shape = struct.unpack(f">{magic[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        got = len(raw) - start
        raise InputError(f"{what} must hold {shape} = {math.prod(shape):,} values; it holds {got:,}. Get it again.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_idx(path: Path, most: int) -> Array:
    """Read an idx file, packed with gzip or not; not more than `most` bytes of it are ever unpacked."""
    try:
        with path.open("rb") as packed, gzip.open(packed) if path.suffix == ".gz" else packed as file:
            raw = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"'{path}' must be a readable idx file ({error}). Get it again.") from None
    if len(raw) > most:
        raise InputError(f"'{path}' must unpack to at most {most:,} bytes; there are more. Get the original file.")
    return decode_idx(raw, f"'{path}'")


def read_batch(path: Path, *labels: bytes) -> tuple[Array, ...]:
    """Return images (m, 3, 32, 32) and labels (m,) of a binary batch, or those under each of `labels` of a pickle."""
    if path.suffix == ".bin":
        return decode_bin(path.read_bytes(), f"'{path}'")
    content = read_pickle(path)
    pixels, targets = content.get(b"data"), [content.get(key) for key in labels]
    if not isinstance(pixels, _Pixels) or not all(_fits(pixels.array, y) for y in targets):
        wanted = " and ".join(key.decode() for key in labels)
        raise InputError(f"'{path}' must hold data (m, {PIXELS}) and {wanted} (m). Get it again.")
    return pixels.array.reshape(-1, *SHAPE), *map(np.asarray, targets)


def _fits(pixels: Array, y: object) -> bool:
    """Whether y is a list of labels, one byte each, for rows of pixels."""
    numbers = isinstance(y, list) and all(isinstance(label, int) and 0 <= label < 256 for label in y)
    return isinstance(y, list) and numbers and len(y) > 0 and pixels.shape == (len(y), PIXELS)


def decode_bin(raw: bytes, what: str) -> tuple[Array, Array]:
    """Return images (m, 3, 32, 32) and labels (m,) of records of one label byte and 3,072 pixels."""
    record = 1 + PIXELS
    if not raw or len(raw) % record:
        raise InputError(f"{what} must hold records of {record} bytes; it has {len(raw):,} bytes. Get it again.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0]


def read_names(path: Path, key: bytes) -> tuple[str, ...]:
    """Return the class names of CIFAR-100's meta file."""
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise InputError(f"'{path}' must hold a list of {key.decode()}. Get it again.")
    return tuple(name.decode("ascii", "replace") for name in names)


def read_pickle(path: Path) -> dict[bytes, Any]:
    """Read a pickled dictionary of bytes, numbers, lists and byte arrays; anything else is refused, not executed."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except Exception as error:  # a broken pickle raises nearly anything
        raise InputError(
            f"'{path}' must be a CIFAR file of plain arrays; got one that cannot be read so ({error}). Get it again."
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"'{path}' must hold a dictionary; got {type(content).__name__}. Get it again.")
    return content


class _Pixels:
    """Stands in for a pickled numpy array: keeps raw bytes, and takes nothing but bytes."""

    array: Array = np.empty(0, np.uint8)

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or fortran or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not plain bytes")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


class _Kind:
    """Stands in for numpy's dtype, of which these files need one."""

    def __init__(self, code: bytes, *_: object) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"values of kind {code!r}")

    def __setstate__(self, _: object) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Gives a stand-in for each name that CIFAR's pickles use; no function of any other module is ever called."""

    admitted: ClassVar[dict[tuple[str, str], type]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Pixels,
        ("numpy._core.multiarray", "_reconstruct"): _Pixels,
        ("numpy", "ndarray"): _Pixels,
        ("numpy", "dtype"): _Kind,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.admitted[module, name]
