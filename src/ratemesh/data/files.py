"""Data sets that are read from files: the well-known ones, and people's own."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator

from ratemesh.data.cache import Array, Decoded, cached
from ratemesh.data.dataset import Dataset, DatasetSpec, some_rows
from ratemesh.data.known import CIFAR10_BIN, Layout, data_dir, find, verify
from ratemesh.data.readers import cifar, idx
from ratemesh.data.readers.arrays import Channels
from ratemesh.data.readers.folder import pictures, read_folder, trees
from ratemesh.data.readers.npz import read_npz
from ratemesh.data.readers.parquet import parquet_files, read_parquet
from ratemesh.errors import InputError
from ratemesh.seeds import generator


class FileSpec(DatasetSpec):
    """A data set decoded from files once, then mapped."""

    train_limit: int | None = Field(
        None, ge=1, description="at most so many training samples, drawn from the seed, classes in proportion"
    )
    test_limit: int | None = Field(None, ge=1, description="the same for held-out samples")

    @abstractmethod
    def decoded(self) -> Decoded:
        """Return all samples, from the cache if they were decoded before."""

    def load(self, seed: int) -> Dataset:
        """Map the samples; a limit takes some rows of them into memory."""
        found = self.decoded()
        train = _limited(found.X_train, found.y_train, self.train_limit, seed, "train")
        test = _limited(found.X_test, found.y_test, self.test_limit, seed, "test")
        return Dataset(*train, *test, len(found.classes), classes=found.classes)


def _limited(X: Array, y: Array, most: int | None, seed: int, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    samples, labels = (torch.from_numpy(np.require(A, requirements=["C", "W"])) for A in (X, y))
    if most is None or most >= len(labels):
        return samples, labels
    rows = some_rows(labels, most, generator(seed, "data", "limit", part))
    return samples[rows], labels[rows]


class KnownSpec(FileSpec):
    """A well-known data set, or a file of one's own that takes its place."""

    known: ClassVar[str]
    dir: Path | None = Field(None, description="folder of data sets; else RATEMESH_DATA, else data")
    path: Path | None = Field(None, description="an .npz or .parquet file or a folder of pictures to read instead")

    def decoded(self) -> Decoded:
        """Find the files, check them, decode them; or do so with the file that takes their place."""
        if self.path is not None:
            return own_files(self.path).decoded()
        root = data_dir(self.dir)
        layout = find(self.known, root)
        return cached(root, self.known, self.options(), layout.paths(root), lambda: self._checked(layout, root))

    def _checked(self, layout: Layout, root: Path) -> Decoded:
        paths = layout.paths(root)
        for path, file in zip(paths, layout.files, strict=True):
            verify(path, file)
        return self.decode(layout, paths)

    def options(self) -> str:
        """Return the settings that decide what is decoded, as text."""
        return ""

    @abstractmethod
    def decode(self, layout: Layout, paths: list[Path]) -> Decoded:
        """Decode files that are known to be the real ones."""


class Mnist(KnownSpec):
    """MNIST: 60,000 + 10,000 grey images of 28×28, ten classes; `ratemesh data get mnist`."""

    known: ClassVar[str] = "mnist"

    def decode(self, layout: Layout, paths: list[Path]) -> Decoded:  # noqa: ARG002
        """Decode idx files, packed or not."""
        X_train, y_train, X_test, y_test = idx.read_mnist(paths)
        return _whole(X_train, y_train, X_test, y_test, tuple("0123456789"))


class Cifar10(KnownSpec):
    """CIFAR-10: 50,000 + 10,000 colour images of 32×32, ten classes; `ratemesh data get cifar10`."""

    known: ClassVar[str] = "cifar10"

    def decode(self, layout: Layout, paths: list[Path]) -> Decoded:
        """Decode five training batches and the test batch, binary or pickled."""
        if layout.folder == CIFAR10_BIN.folder:
            train, test = cifar.read_bin_batches(paths[:-1]), cifar.read_bin_batches(paths[-1:])
        else:
            train, test = cifar.read_batches(paths[:-1], b"labels"), cifar.read_batches(paths[-1:], b"labels")
        return _whole(*train, *test, cifar.CIFAR10_NAMES)


class Cifar100(KnownSpec):
    """CIFAR-100: 50,000 + 10,000 colour images of 32×32, 100 classes or 20; `ratemesh data get cifar100`."""

    known: ClassVar[str] = "cifar100"
    coarse: bool = Field(False, description="the 20 superclasses instead of the 100 classes")

    @model_validator(mode="after")
    def _coarse_is_for_cifar(self) -> "Cifar100":
        if self.coarse and self.path is not None:
            raise InputError(f"data.coarse must be false when data.path is given; got '{self.path}'. Leave one out.")
        return self

    def options(self) -> str:
        """Return which labels."""
        return "coarse" if self.coarse else "fine"

    def decode(self, layout: Layout, paths: list[Path]) -> Decoded:  # noqa: ARG002
        """Decode the pickled training and test batch; the names come from the meta file."""
        kind = self.options().encode()
        train, test = (cifar.read_batch(path, kind + b"_labels") for path in paths[:2])
        names = cifar.read_names(paths[2], kind + b"_label_names")
        return _whole(*train, *test, names)


def _whole(X_train: Array, y_train: Array, X_test: Array, y_test: Array, classes: tuple[str, ...]) -> Decoded:
    """Return the parts with labels as int64."""
    return Decoded(X_train, y_train.astype("int64"), X_test, y_test.astype("int64"), classes)


class OwnFilesSpec(FileSpec):
    """A file or a folder of one's own."""

    path: Path = Field(description="what to read")

    def decoded(self) -> Decoded:
        """Decode the file, or map what was decoded before."""
        path = self.path.expanduser()
        if not path.exists():
            raise InputError(
                f"data.path must exist; got '{self.path}'. Check the spelling, and where you started from."
            )
        options = self.model_dump_json(exclude={"name", "path", "train_limit", "test_limit"})
        home = path if path.is_dir() else path.parent
        try:
            return cached(home, path.stem or "files", options, self.sources(path), lambda: self.decode(path))
        except OSError as error:
            raise InputError(
                f"data.path must be readable; got '{self.path}' ({error}). Check its permissions."
            ) from None

    def sources(self, path: Path) -> list[Path]:
        """Return all files that are read."""
        return [path]

    @abstractmethod
    def decode(self, path: Path) -> Decoded:
        """Read all samples."""


class Npz(OwnFilesSpec):
    """Your numpy archive with x_train, y_train, x_test, y_test: images or vectors, uint8 or float."""

    channels: Channels = Field("auto", description="where (m, a, b, c) has its channels: first, last or auto (shorter)")

    def decode(self, path: Path) -> Decoded:
        """Read the archive."""
        return read_npz(path, self.channels)


class Folder(OwnFilesSpec):
    """Your pictures in train/CLASS/* and test/CLASS/*, or in CLASS/* with a part held out."""

    size: int | None = Field(None, ge=1, le=4096, description="scale pictures to size×size")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if there is no test folder")

    def sources(self, path: Path) -> list[Path]:
        """Return all pictures."""
        return [file for tree in trees(path) for file in pictures(tree)]

    def decode(self, path: Path) -> Decoded:
        """Read the pictures."""
        return read_folder(path, self.size, self.test_fraction)


class Parquet(OwnFilesSpec):
    """Your parquet table, or folder of train*.parquet and test*.parquet: pictures or vectors, and labels."""

    column: str | None = Field(None, description="column of the samples; else image, img, x, vector, …")
    label: str | None = Field(None, description="column of the labels; else label, labels, fine_label, …")
    size: int | None = Field(None, ge=1, le=4096, description="scale pictures to size×size")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if there is no test file")

    def sources(self, path: Path) -> list[Path]:
        """Return all tables."""
        return [file for files in parquet_files(path) for file in files]

    def decode(self, path: Path) -> Decoded:
        """Read the tables."""
        return read_parquet(path, self.column, self.label, self.size, self.test_fraction)


def own_files(path: Path) -> OwnFilesSpec:
    """Return the reader that a path's kind calls for, with its usual settings."""
    here = path.expanduser()
    if here.is_dir():
        return Parquet(path=path) if any(here.glob("*.parquet")) else Folder(path=path)
    readers: dict[str, type[OwnFilesSpec]] = {".npz": Npz, ".parquet": Parquet}
    if here.suffix.lower() not in readers:
        raise InputError(f"data.path must be an .npz or .parquet file, or a folder of pictures; got '{path}'.")
    return readers[here.suffix.lower()](path=path)
