"""Small data files in the formats of the well-known sets, and the checksums that go with them."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from ratemesh.data import known
from ratemesh.data.known import KnownFile, Layout

DRAW = np.random.default_rng(0)
X_TRAIN = DRAW.integers(0, 256, (40, 28, 28), dtype=np.uint8)
X_TEST = DRAW.integers(0, 256, (20, 28, 28), dtype=np.uint8)
Y_TRAIN, Y_TEST = (np.arange(m, dtype=np.uint8) % 10 for m in (40, 20))
COLOUR = DRAW.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 10


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def bin_bytes(X: np.ndarray, y: np.ndarray) -> bytes:
    return np.concatenate([y[:, None], X.reshape(len(X), -1)], axis=1).tobytes()


def _word(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _numbers(values: np.ndarray) -> bytes:
    return b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"


def old_pickle(X: np.ndarray, **labels: np.ndarray) -> bytes:
    """Write a batch as Python 2 did, opcode by opcode: strings that are bytes, numpy's old module names."""
    raw = X.tobytes()
    kind = (
        b"cnumpy\ndtype\n"
        + _word(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + _word(b"|")
        + b"NNN"
        + _number(-1) * 2
        + b"K\x00tb"
    )
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _word(b"b") + b"\x87R"
    state = b"(K\x01" + _number(len(X)) + _number(raw.__len__() // len(X)) + b"\x86" + kind + b"\x89T"
    data = _word(b"data") + made + state + struct.pack("<i", len(raw)) + raw + b"tb"
    return b"\x80\x02}(" + b"".join(_word(k.encode()) + _numbers(v) for k, v in labels.items()) + data + b"u."


def contents(name: str) -> dict[str, bytes]:
    """Return small stand-ins for the files of a layout, by file name."""
    if name in ("mnist", "mnist-gz"):
        arrays = [("train", X_TRAIN, Y_TRAIN), ("t10k", X_TEST, Y_TEST)]
        raw = {f"{part}-images-idx3-ubyte": idx_bytes(X) for part, X, _ in arrays}
        raw |= {f"{part}-labels-idx1-ubyte": idx_bytes(y) for part, _, y in arrays}
        return {f"{k}.gz": gzip.compress(v, mtime=0) for k, v in raw.items()} if name == "mnist-gz" else raw
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    if name == "cifar10-bin":
        return {f"{b}.bin": bin_bytes(COLOUR + i, LABELS) for i, b in enumerate(batches)}
    if name == "cifar10-py":
        return {b: old_pickle(COLOUR + i, labels=LABELS) for i, b in enumerate(batches)}
    batch = old_pickle(COLOUR, fine_labels=LABELS + 10, coarse_labels=LABELS // 5)
    meta = {b"fine_label_names": [b"fine%d" % i for i in range(20)], b"coarse_label_names": [b"a", b"b"]}
    return {"train": batch, "test": batch, "meta": pickle.dumps(meta, protocol=3)}


LAYOUTS = {
    "mnist": known.MNIST_RAW,
    "mnist-gz": known.MNIST_GZ,
    "cifar10-bin": known.CIFAR10_BIN,
    "cifar10-py": known.CIFAR10_PY,
    "cifar100": known.CIFAR100_PY,
}


def toy_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Layout, dict[str, bytes]]:
    """Make the product take the stand-ins for the real files: their checksums are put in the place of the true ones."""
    held = contents(name)
    real = LAYOUTS[name]
    fake = tuple(KnownFile(f.name, hashlib.md5(held[f.name]).hexdigest(), len(held[f.name])) for f in real.files)
    layout = Layout(real.folder, fake)
    key = name.split("-", maxsplit=1)[0]
    monkeypatch.setitem(known.KNOWN, key, (layout,))
    return layout, held


def lay_out(root: Path, layout: Layout, held: dict[str, bytes]) -> None:
    for path in layout.at(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held[path.name])
