"""Decoded samples on disk: decoded and checked once, then mapped, so that processes share the pages."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FOLDER = ".ratemesh-cache"
FORMAT = 1
"""Part of every entry's name; a new number makes all older entries unused."""
ARRAYS = ("X_train", "y_train", "X_test", "y_test")


@dataclass(frozen=True)
class Decoded:
    """Samples (m, ...) uint8 or float32, labels (m,) int64 in 0..K-1, and the names of the K classes."""

    X_train: Array
    y_train: Array
    X_test: Array
    y_test: Array
    classes: tuple[str, ...]


def cached(home: Path, name: str, options: str, sources: Sequence[Path], decode: Callable[[], Decoded]) -> Decoded:
    """Return what `decode` makes of the source files, from the cache if they are still the same files.

    An entry carries a fingerprint of names, sizes and times of the sources: finding it says that these files were
    decoded, and so checked, before. Where nothing can be written the samples stay in this process's memory.

    Args:
        home: folder beside the sources that gets the cache.
        name: readable part of the entry's name.
        options: settings that decide what is decoded.
        sources: files that are read.
        decode: reads and checks the files.
    """
    family = f"{name}-{_digest(options)[:8]}"
    entry = home / FOLDER / f"{family}-{_fingerprint(sources, home)}"
    found = _open(entry)
    if found is not None:
        return found
    decoded = decode()
    _write(entry, family, decoded)
    return _open(entry) or decoded


def _fingerprint(sources: Sequence[Path], home: Path) -> str:
    stats = [(os.path.relpath(path, home), path.stat()) for path in sources]
    return _digest(json.dumps([(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]))[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(f"{FORMAT} {text}".encode()).hexdigest()


def _open(entry: Path) -> Decoded | None:
    """Map an entry; None if it is absent or broken. Private pages: what anyone writes stays theirs."""
    try:
        X_train, y_train, X_test, y_test = (
            np.load(entry / f"{key}.npy", mmap_mode="c", allow_pickle=False) for key in ARRAYS
        )
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        return Decoded(X_train, y_train, X_test, y_test, tuple(about["classes"]))
    except (OSError, ValueError, KeyError):
        return None


def _write(entry: Path, family: str, decoded: Decoded) -> None:
    """Make the entry appear whole or not at all; a folder that takes no files is no fault."""
    temporary = entry.with_name(f".{entry.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        for key in ARRAYS:
            with (temporary / f"{key}.npy").open("wb") as file:
                np.save(file, getattr(decoded, key), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        (temporary / "about.json").write_text(json.dumps({"classes": decoded.classes}), encoding="utf-8")
        for old in [*entry.parent.glob(f"{family}-*"), *entry.parent.glob(f".{family}-*")]:
            if old != temporary:  # made from files that have changed since, or left by a crash
                shutil.rmtree(old, ignore_errors=True)
        temporary.rename(entry)
    except OSError:  # read-only, full, or another process was first
        shutil.rmtree(temporary, ignore_errors=True)
