"""Pictures in folders of their classes; headers are read first, so that nothing is unpacked that does not fit."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from ratemesh.data.arrays import Samples, as_dataset, bounded
from ratemesh.data.arrow import read_parquet
from ratemesh.data.columns import TEST_NAMES, column_named
from ratemesh.data.dataset import Dataset
from ratemesh.data.files import Array, Intakes, OwnFilesSpec
from ratemesh.data.intake import Incoming
from ratemesh.errors import InputError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})

Source = tuple[str, Path | bytes]
"""A picture: its name for messages, and its file or its bytes."""
ResultT = TypeVar("ResultT")


def decode_pictures(sources: Sequence[Source], size: int | None) -> Array:
    """Return pictures as uint8 (m, C, H, W): C = 1 if all are grey, else 3; scaled to size×size if that is given."""
    headers = _headers(sources)
    width, height = (size, size) if size else headers[0][0]
    for (name, _), (found, _) in zip(sources, headers, strict=True):
        if not size and found != (width, height):
            raise InputError(
                f"{name} must be as large as the first picture, {width}×{height}; got {found[0]}×{found[1]}. "
                f"Scale all of them with data.size, e.g. --set data.size={min(width, height)}"
            )
    channels = 1 if all(mode in GREY for _, mode in headers) else 3
    return _decoded(sources, (channels, height, width))


def _headers(sources: Sequence[Source]) -> list[tuple[tuple[int, int], str]]:
    """Return sizes (width, height) and modes; refuse modes that do not become bytes."""
    headers = [_opened(source, lambda image: (image.size, image.mode)) for source in sources]
    for (name, _), (_, mode) in zip(sources, headers, strict=True):
        if mode not in GREY | COLOUR:
            raise InputError(f"{name} must be a picture of 8 bits a channel; got mode {mode}. Convert it.")
    return headers


def _decoded(sources: Sequence[Source], shape: tuple[int, ...]) -> Array:
    """Return pictures as uint8 (m, *shape), scaled where they are not as large."""
    channels, height, width = shape
    bounded((len(sources), *shape), 1, "pictures")
    X = np.empty((len(sources), *shape), np.uint8)
    for row, source in zip(X, sources, strict=True):
        row[:] = _opened(source, lambda image: _pixels(image, "L" if channels == 1 else "RGB", (width, height)))
    return X


def _pixels(image: Image.Image, mode: str, size: tuple[int, int]) -> Array:
    """Return the pixels as (C, H, W)."""
    if "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


def _opened(source: Source, look: Callable[[Image.Image], ResultT]) -> ResultT:
    """Open a picture, look at it, close it."""
    name, content = source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            file = io.BytesIO(content) if isinstance(content, bytes) else content
            with Image.open(file, formats=FORMATS) as image:
                return look(image)
    except Exception as error:  # broken pictures raise nearly anything
        raise InputError(f"{name} must be a picture that can be read ({error}). Replace or remove it.") from None


class Pictures(Samples):
    """Pictures as files, in folders or in a .parquet table; arrays as encoders take them."""

    dtype: str = "uint8"
    scaled: bool = Field(False, description="whether pictures of other sizes are scaled, as they were for training")
    column: str | None = Field(None, description="column of the pictures in a .parquet table")

    def read(self, path: Path) -> Incoming:
        """Read a picture, all pictures below a folder, or those of a .parquet table or of x in an .npz file."""
        if path.suffix.lower() == ".npz":
            return super().read(path)
        if path.suffix.lower() == ".parquet":
            return Incoming(self._decoded(_stored(path, self.column or "image")))
        files = _below(path) if path.is_dir() else [path]
        names = tuple(str(file.relative_to(path)) if file != path else file.name for file in files)
        return Incoming(self._decoded([(f"'{file}'", file) for file in files]), names)

    def _decoded(self, sources: Sequence[Source]) -> Tensor:
        """Return pictures (m, C, H, W): in colours or grey as for training, and as large."""
        _, height, width = self.shape
        for (name, _), (found, _) in zip(sources, _headers(sources), strict=True):
            if not self.scaled and found != (width, height):
                raise InputError(
                    f"{name} must be {width}×{height}, as in training; got {found[0]}×{found[1]}. Scale it."
                )
        return torch.from_numpy(_decoded(sources, self.shape))


def _below(folder: Path) -> list[Path]:
    """Return the picture files below a folder, in order; hidden ones are passed over."""
    files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]
    found = [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    if not found:
        raise InputError(f"'{folder}' must hold pictures; it holds none. Known: {', '.join(sorted(SUFFIXES))}.")
    return found


def _stored(path: Path, column: str) -> list[Source]:
    """Return the pictures of a .parquet table."""
    table = read_parquet([path], lambda names, _: [column_named(names, "column", column, path)])
    values = table.column(0).to_pylist()
    blobs: list[Any] = [value.get("bytes") if isinstance(value, dict) else value for value in values]
    for row, blob in enumerate(blobs):
        if not isinstance(blob, bytes):
            raise InputError(f"'{path}' must hold every picture as bytes; row {row} has none.")
    return [(f"row {row} of '{path}'", blob) for row, blob in enumerate(blobs)]


class Folder(OwnFilesSpec):
    """Your pictures in train/CLASS/* and test/CLASS/*, or in CLASS/* with a part held out."""

    intakes: ClassVar[Intakes] = {"pictures": Pictures}
    size: int | None = Field(None, ge=1, le=4096, description="scale pictures to size×size")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if there is no test folder")

    def sources(self, path: Path) -> list[Path]:
        """Return all pictures."""
        return [file for tree in _trees(path) for file in _pictures(tree)]

    def decode(self, path: Path) -> Dataset:
        """Read all pictures together, for one size and one number of channels; sub-folders belong to their class."""
        parts = [(tree, _pictures(tree)) for tree in _trees(path)]
        X = decode_pictures([(f"'{file}'", file) for _, files in parts for file in files], self.size)
        y = [np.array([file.relative_to(tree).parts[0] for file in files]) for tree, files in parts]
        ends = [len(files) for _, files in parts[:-1]]
        data = as_dataset(np.split(X, ends), y, f"'{path}'", "first", self.test_fraction)
        return replace(data, intake=Pictures(name="pictures", shape=X.shape[1:], scaled=self.size is not None))


def _trees(path: Path) -> list[Path]:
    """Return the folders that hold class folders: train and test, or the one that there is."""
    train = path / "train"
    if not train.is_dir():
        return [path]
    return [train, *[path / name for name in TEST_NAMES if (path / name).is_dir()][:1]]


def _pictures(tree: Path) -> list[Path]:
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
