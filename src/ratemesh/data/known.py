"""Well-known data sets on disk: which files, where, and how to tell that they are the real ones."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratemesh.errors import InputError

VARIABLE = "RATEMESH_DATA"
"""Environment variable that names the folder of data sets."""


@dataclass(frozen=True)
class KnownFile:
    """A file and its MD5 checksum; `size` in bytes where it is at hand, for a quick and clear refusal."""

    name: str
    md5: str
    size: int | None = None

    def in_words(self) -> str:
        """Return what is expected of the file."""
        return f"{f'{self.size:,} bytes, ' if self.size else ''}MD5 {self.md5}"


@dataclass(frozen=True)
class Layout:
    """Files that together are a data set, in their folder below the data folder."""

    folder: str
    files: tuple[KnownFile, ...]

    def at(self, root: Path) -> dict[Path, KnownFile]:
        """Return the files by where they are to be."""
        return {root / self.folder / file.name: file for file in self.files}

    def sizes_fit(self, root: Path) -> bool:
        """Whether the files have the right sizes, as far as these are at hand."""
        return all(file.size in (None, path.stat().st_size) for path, file in self.at(root).items())


def _layout(folder: str, *files: KnownFile) -> Layout:
    return Layout(folder, files)


MNIST_GZ = _layout(
    "MNIST/raw",
    KnownFile("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    KnownFile("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    KnownFile("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    KnownFile("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
)
MNIST_RAW = _layout(
    "MNIST/raw",
    KnownFile("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb", 47_040_016),
    KnownFile("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624", 60_008),
    KnownFile("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea", 7_840_016),
    KnownFile("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637", 10_008),
)
CIFAR10_BIN = _layout(
    "cifar-10-batches-bin",
    KnownFile("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25", 30_730_000),
    KnownFile("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692", 30_730_000),
    KnownFile("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421", 30_730_000),
    KnownFile("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb", 30_730_000),
    KnownFile("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d", 30_730_000),
    KnownFile("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d", 30_730_000),
)
CIFAR10_PY = _layout(
    "cifar-10-batches-py",
    KnownFile("data_batch_1", "c99cafc152244af753f735de768cd75f"),
    KnownFile("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
    KnownFile("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
    KnownFile("data_batch_4", "634d18415352ddfa80567beed471001a"),
    KnownFile("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
    KnownFile("test_batch", "40351d587109b95175f43aff81a1287e"),
)
CIFAR100_PY = _layout(
    "cifar-100-python",
    KnownFile("train", "16019d7e3df5f24257cddd939b257f8d", 155_249_918),
    KnownFile("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", 31_049_707),
    KnownFile("meta", "7973b15100ade9c7d40fb424638fde48", 1_473),
)

KNOWN: dict[str, tuple[Layout, ...]] = {
    "mnist": (MNIST_GZ, MNIST_RAW),
    "cifar10": (CIFAR10_BIN, CIFAR10_PY),
    "cifar100": (CIFAR100_PY,),
}
"""Layouts that a reader understands, the published one first; either will do."""


def data_dir(given: Path | None = None) -> Path:
    """Return the folder of data sets: the one given, else RATEMESH_DATA, else `data`."""
    return (given or Path(os.environ.get(VARIABLE) or "data")).expanduser()


def find(name: str, root: Path) -> Layout:
    """Return the layout whose files are all there, of the right sizes if there is one, or say what belongs where."""
    complete = [layout for layout in KNOWN[name] if all(path.is_file() for path in layout.at(root))]
    if complete:
        return max(complete, key=lambda layout: layout.sizes_fit(root))
    raise InputError(
        f"data set '{name}' must be in '{root}'; not all of its files are there. Get it with:\n"
        f"  ratemesh data get {name} --data-dir {root}\n"
        f"or say where it is with data.dir, --data-dir or {VARIABLE}, or {by_hand(name, root)}"
    )


def by_hand(name: str, root: Path) -> str:
    """Return what to put where, as text."""
    layout = nearest_layout(name, root)
    lines = [f"  {path}  ({file.in_words()})" for path, file in layout.at(root).items()]
    other = [f"  ({other.folder} as {other.files[0].name}, … will do too)" for other in KNOWN[name] if other != layout]
    return "\n".join(["put these files there:", *lines, *other])


def nearest_layout(name: str, root: Path) -> Layout:
    """Return the layout with the most files there, the published one in doubt."""
    return max(KNOWN[name], key=lambda layout: sum(path.is_file() for path in layout.at(root)))


def verified(files: Mapping[Path, KnownFile]) -> list[Path]:
    """Return where the files are, or say which is not the well-known one."""
    for path, file in files.items():
        if fault := fault_of(path, file):
            raise InputError(
                f"'{path}' must be the original file ({file.in_words()}); got {fault}. "
                "Delete it and get it again: ratemesh data get"
            )
    return list(files)


def fault_of(path: Path, file: KnownFile) -> str:
    """Return what is wrong with a file, in words; nothing if it is the well-known one."""
    try:
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            return f"{size:,} bytes"
        found = md5_of(path)
    except OSError as error:
        return f"no readable file ({error.strerror})"
    return "" if found == file.md5 else f"{size:,} bytes, MD5 {found}"


def md5_of(path: Path) -> str:
    """Return the MD5 checksum: it tells files apart, it keeps no one out."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
