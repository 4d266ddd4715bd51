"""numpy archives with x_train, y_train, x_test and y_test."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from ratemesh.data.cache import Array, Decoded
from ratemesh.data.readers.arrays import Channels, bounded, parts
from ratemesh.errors import InputError

KEYS = ("x_train", "x_test", "y_train", "y_test")


def read_npz(path: Path, channels: Channels) -> Decoded:
    """Read samples and labels; nothing in the file is executed, nothing is unpacked that its header does not announce.

    Samples are uint8 or float, (m, p), (m, H, W), (m, H, W, C) or (m, C, H, W); labels are numbers or words, (m,).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            x_train, x_test, y_train, y_test = (_member(archive, key, path) for key in KEYS)
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{path}' must be a readable .npz file ({error}). Write it with numpy.savez.") from None
    return parts((x_train, x_test), (y_train, y_test), f"'{path}'", channels)


def _member(archive: zipfile.ZipFile, key: str, path: Path) -> Array:
    """Read one array, after a look at its header."""
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if key not in names:
        raise InputError(f"'{path}' must hold {', '.join(KEYS)}; it holds {', '.join(names) or 'nothing'}.")
    what = f"{key} of '{path}'"
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as file:
        shape, dtype = _header(file, what)
        announced = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or announced > info.file_size:
            raise InputError(f"{what} must be whole; its header announces {announced:,} bytes. Write it again.")
    bounded(shape, dtype.itemsize, what)
    with archive.open(info) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()  # to the end, so that the archive's own checksum is looked at
    return array


def _header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise InputError(f"{what} must be in .npy format 1 or 2; got {version}. Save plain arrays.")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(f"{what} must hold plain numbers or words; got Python objects, which are never loaded.")
    return shape, dtype
