"""Data sets that are read from files: decoded and checked once, then mapped, so that processes share the pages."""

import hashlib
import json
import os
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from ratemesh.data.dataset import Dataset, DatasetSpec, in_order, some_rows
from ratemesh.data.intake import IntakeSpec
from ratemesh.errors import InputError
from ratemesh.seeds import generator
from ratemesh.specs import resolve

Array = NDArray[Any]

FOLDER = ".ratemesh-cache"
FORMAT = 3
"""Part of every entry's name; a new number makes all older entries unused."""
ARRAYS = ("X_train", "y_train", "X_test", "y_test")
FINE = ("fine_train", "fine_test")
"""Arrays that an entry has only where there is a finer labelling."""


Intakes = Mapping[str, type[IntakeSpec]]


def cached(
    home: Path,
    name: str,
    options: str,
    sources: Sequence[Path],
    decode: Callable[[], Dataset],
    intakes: Intakes = MappingProxyType({}),
) -> Dataset:
    """Return what `decode` makes of the source files, from the cache if they are still the same files.

    An entry carries a fingerprint of names, sizes and times of the sources: finding it says that these files were
    decoded, and so checked, before. Where nothing can be written the samples stay in this process's memory.

    Args:
        home: folder beside the sources that gets the cache.
        name: readable part of the entry's name.
        options: settings that decide what is decoded.
        sources: files that are read.
        decode: reads and checks the files.
        intakes: kinds of intakes that such data may have, by name.
    """
    stats = [(os.path.relpath(path, home), path.stat()) for path in sources]
    fingerprint = json.dumps([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats])
    family = f"{name}-{_digest(options)[:8]}"
    entry = home / FOLDER / f"{family}-{_digest(fingerprint)[:16]}"
    if found := _open(entry, intakes):
        return found
    decoded = decode()
    _write(entry, family, decoded)
    return _open(entry, intakes) or decoded


def _digest(text: str) -> str:
    return hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()


def _open(entry: Path, intakes: Intakes) -> Dataset | None:
    """Map an entry; None if it is absent or broken. Private pages: what anyone writes stays theirs."""
    try:
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        classes, fine_classes = (tuple(about[key]) for key in ("classes", "fine_classes"))
        keys = ARRAYS + FINE if fine_classes else ARRAYS
        held: dict[str, Any] = {
            key: torch.from_numpy(np.load(entry / f"{key}.npy", mmap_mode="c", allow_pickle=False)) for key in keys
        }
        base: type[Any] = IntakeSpec
        intake = about["intake"] and resolve(about["intake"], intakes, base, "intake")
        return Dataset(**held, num_classes=len(classes), classes=classes, fine_classes=fine_classes, intake=intake)
    except (OSError, ValueError, KeyError, InputError):
        return None


def _write(entry: Path, family: str, decoded: Dataset) -> None:
    """Make the entry appear whole or not at all; a folder that takes no files is no fault."""
    temporary = entry.with_name(f".{entry.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        for key in ARRAYS + FINE if decoded.fine_classes else ARRAYS:
            with (temporary / f"{key}.npy").open("wb") as file:
                np.save(file, getattr(decoded, key).numpy(), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        intake = decoded.intake and decoded.intake.model_dump(mode="json")
        about = {"classes": decoded.classes, "fine_classes": decoded.fine_classes, "intake": intake}
        (temporary / "about.json").write_text(json.dumps(about), encoding="utf-8")
        for old in [*entry.parent.glob(f"{family}-*"), *entry.parent.glob(f".{family}-*")]:
            if old != temporary:  # made from files that have changed since, or left by a crash
                shutil.rmtree(old, ignore_errors=True)
        temporary.rename(entry)
    except OSError:  # read-only, full, or another process was first
        shutil.rmtree(temporary, ignore_errors=True)


class FileSpec(DatasetSpec):
    """A data set decoded from files once, then mapped."""

    train_limit: int | None = Field(
        None, ge=1, description="at most so many training samples, drawn from the seed, classes in proportion"
    )
    test_limit: int | None = Field(None, ge=1, description="the same for held-out samples")

    @abstractmethod
    def decoded(self) -> Dataset:
        """Return all samples, from the cache if they were decoded before."""

    def load(self, seed: int) -> Dataset:
        """Map the samples; a limit takes some rows of them into memory."""
        found = self.decoded()
        for part, most in (("train", self.train_limit), ("test", self.test_limit)):
            y = getattr(found, f"y_{part}")
            if most is not None and most < len(y):
                found = found.rows(part, some_rows(y, most, generator(seed, "data", "limit", part)))
        return found


Word = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]
"""A label as a file or a configuration writes it: a word or a whole number."""


def _elsewhere(path: Path) -> str:
    """Say what else a path that leads nowhere may have meant."""
    here = Path(path.name).absolute()
    if here != path.absolute() and here.exists():
        return (
            f"; there is '{here}', but a path in a file is relative to that file (--set data.path={path.name} is not)"
        )
    return "; a path in a file is relative to that file, one given with --set to the current folder"


class OwnFilesSpec(FileSpec):
    """A file or a folder of one's own."""

    intakes: ClassVar[Intakes] = {}
    path: Path = Field(description="what to read; relative to the file that says so, or with --set to where you are")
    classes: tuple[Word, ...] | None = Field(
        None, min_length=2, description="all labels in their order; left out: those that are found, sorted"
    )

    def decoded(self) -> Dataset:
        """Decode the file, or map what was decoded before."""
        path = self.path.expanduser()
        if not path.exists():
            raise InputError(f"data.path must exist; got '{self.path}'. Check the spelling{_elsewhere(path)}.")
        options = self.model_dump_json(exclude={"name", "path", "train_limit", "test_limit", "validation", "classes"})
        home = path if path.is_dir() else path.parent
        name, decode = path.stem or "files", lambda: self.decode(path)
        try:
            found = cached(home, name, options, self.sources(path), decode, self.intakes)
            return in_order(found, self.classes, f"'{path}'") if self.classes else found
        except OSError as error:
            raise InputError(
                f"data.path must be readable; got '{self.path}' ({error}). Check its permissions."
            ) from None

    def sources(self, path: Path) -> list[Path]:
        """Return all files that are read."""
        return [path]

    @abstractmethod
    def decode(self, path: Path) -> Dataset:
        """Read all samples."""
