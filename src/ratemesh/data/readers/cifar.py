"""CIFAR: binary records, and Python pickles read by an unpickler that can build nothing but bytes and numbers."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ratemesh.data.cache import Array
from ratemesh.errors import InputError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def decode_bin(raw: bytes, what: str) -> tuple[Array, Array]:
    """Return images (m, 3, 32, 32) and labels (m,) of records of one label byte and 3,072 pixels."""
    record = 1 + PIXELS
    if not raw or len(raw) % record:
        raise InputError(f"{what} must hold records of {record} bytes; it has {len(raw):,} bytes. Get it again.")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0]


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


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _Pixels,
    ("numpy._core.multiarray", "_reconstruct"): _Pixels,
    ("numpy", "ndarray"): _Pixels,
    ("numpy", "dtype"): _Kind,
}
"""The names that CIFAR's pickles use, each with our stand-in: no function of any other module is ever called."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


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


def read_batch(path: Path, labels: bytes) -> tuple[Array, Array]:
    """Return images (m, 3, 32, 32) and the labels (m,) kept under `labels` of a pickled batch."""
    content = read_pickle(path)
    pixels, y = content.get(b"data"), content.get(labels)
    if not isinstance(y, list) or not all(isinstance(label, int) and 0 <= label < 256 for label in y):
        y = []
    if not y or not isinstance(pixels, _Pixels) or pixels.array.shape != (len(y), PIXELS):
        raise InputError(f"'{path}' must hold data (m, {PIXELS}) and {labels.decode()} (m). Get it again.")
    return pixels.array.reshape(-1, *SHAPE), np.asarray(y, dtype=np.int64)


def read_names(path: Path, key: bytes) -> tuple[str, ...]:
    """Return the class names of CIFAR-100's meta file."""
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise InputError(f"'{path}' must hold a list of {key.decode()}. Get it again.")
    return tuple(name.decode("ascii", "replace") for name in names)


def read_bin_batches(paths: list[Path]) -> tuple[Array, Array]:
    """Read binary batches one after another."""
    return _joined([decode_bin(path.read_bytes(), f"'{path}'") for path in paths])


def read_batches(paths: list[Path], labels: bytes) -> tuple[Array, Array]:
    """Read pickled batches one after another."""
    return _joined([read_batch(path, labels) for path in paths])


def _joined(batches: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([X for X, _ in batches]), np.concatenate([y for _, y in batches])
