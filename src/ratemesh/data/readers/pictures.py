"""Picture files (PNG, JPEG, …) to one array; headers first, so that nothing is unpacked that does not fit."""

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from ratemesh.data.cache import Array
from ratemesh.data.readers.arrays import bounded
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
    headers = [_opened(source, lambda image: (image.size, image.mode)) for source in sources]
    for (name, _), (_, mode) in zip(sources, headers, strict=True):
        if mode not in GREY | COLOUR:
            raise InputError(f"{name} must be a picture of 8 bits a channel; got mode {mode}. Convert it.")
    width, height = (size, size) if size else headers[0][0]
    for (name, _), (found, _) in zip(sources, headers, strict=True):
        if not size and found != (width, height):
            raise InputError(
                f"{name} must be as large as the first picture, {width}×{height}; got {found[0]}×{found[1]}. "
                f"Scale all of them with data.size, e.g. --set data.size={min(width, height)}"
            )
    mode = "L" if all(mode in GREY for _, mode in headers) else "RGB"
    shape = (len(sources), len(mode) if mode == "RGB" else 1, height, width)
    bounded(shape, 1, "pictures")
    X = np.empty(shape, np.uint8)
    for row, source in zip(X, sources, strict=True):
        row[:] = _opened(source, lambda image: _pixels(image, mode, (width, height)))
    return X


def _pixels(image: Image.Image, mode: str, size: tuple[int, int]) -> Array:
    """Return the pixels as (C, H, W)."""
    if "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert(mode)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


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
