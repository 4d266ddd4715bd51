"""The idx format of MNIST: four bytes of magic, a big-endian length per axis, then the values."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ratemesh.data.cache import Array
from ratemesh.errors import InputError

UNSIGNED_BYTE = 8
MOST_AXES = 4


def decode_idx(raw: bytes, what: str) -> Array:
    """Return the uint8 array of an idx file's content; `what` names the file in messages.

    >>> decode_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two.idx").tolist()
    [7, 9]
    """
    magic = raw[:4]
    if len(magic) < 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTE]) or not 1 <= magic[3] <= MOST_AXES:
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


def read_mnist(paths: list[Path], most: int = 48_000_000) -> tuple[Array, Array, Array, Array]:
    """Read training images, training labels, test images and test labels; images come out as (m, 1, 28, 28)."""
    X_train, y_train, X_test, y_test = (read_idx(path, most) for path in paths)
    for X, y, path in ((X_train, y_train, paths[0]), (X_test, y_test, paths[2])):
        if X.ndim != 3 or y.ndim != 1 or len(X) != len(y):
            raise InputError(f"'{path}' must hold one image for every label; got shapes {X.shape} and {y.shape}.")
    return X_train[:, None], y_train, X_test[:, None], y_test
