"""What a mesh says of the samples of a file, a row a sample, and files that hold it: CSV, Parquet, npz, safetensors."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from ratemesh.data import Incoming
from ratemesh.data.arrow import pyarrow
from ratemesh.data.files import Array
from ratemesh.errors import InputError
from ratemesh.experiment.card import Fusion
from ratemesh.experiment.storage import write_bytes
from ratemesh.mesh.mesh import Mesh
from ratemesh.specs import nearest
from ratemesh.training.local import ENCODE_BATCH

Columns = Mapping[str, Array]
"""Columns of a table in order, (m,) words or numbers, or (m, d) features."""
OnRows = Callable[[int], None]
"""Told how many rows were just done."""


def _parts(given: Incoming, batch: int, done: OnRows) -> Iterator[Incoming]:
    """Yield the samples in batches, and tell when each is done."""
    for part in given.X.split(batch):
        yield Incoming(part)
        done(len(part))


def predicted(
    mesh: Mesh,
    given: Incoming,
    *,
    node: int | str | None = None,
    judge: int | str | None = None,
    fusion: Fusion | None = None,
    batch: int = ENCODE_BATCH,
    done: OnRows = lambda _: None,
) -> Tensor:
    """Return scores (m, K) of all samples, batch by batch; see `Mesh.predict`."""
    judging = mesh.judge(node, judge=judge, fusion=fusion)
    return torch.cat([judging(mesh.features(part, node, batch)) for part in _parts(given, batch, done)])


def embedded(
    mesh: Mesh,
    given: Incoming,
    *,
    node: int | str | None = None,
    batch: int = ENCODE_BATCH,
    done: OnRows = lambda _: None,
) -> Tensor:
    """Return features (m, d) of all samples in the common space, batch by batch; see `Mesh.encode`."""
    return torch.cat([mesh.features(part, node, batch).mean(0) for part in _parts(given, batch, done)])


def label_table(mesh: Mesh, given: Incoming, scores: Tensor, with_scores: bool) -> Columns:
    """Return names or numbers of samples, their labels and, if wanted, a column of scores (m, K) a class."""
    labels = mesh.classes[scores.argmax(-1).numpy()]
    told = {f"score_{name}": scores[:, k].numpy() for k, name in enumerate(mesh.saved.card.classes)}
    return {**_named(given, len(scores)), "label": labels, **(told if with_scores else {})}


def feature_table(mesh: Mesh, given: Incoming, Z: Tensor) -> Columns:
    """Return names or numbers of samples, the labels that the file itself has, and features (m, d)."""
    labels = known_labels(mesh, given)
    return {**_named(given, len(Z)), **({"label": np.array(labels)} if labels else {}), "z": Z.numpy()}


def _named(given: Incoming, m: int) -> Columns:
    """Return the column that says which sample a row is of; rows without names are counted from 1."""
    return {"name": np.array(given.names)} if given.names else {"row": np.arange(1, m + 1)}


def known_labels(mesh: Mesh, given: Incoming) -> tuple[str, ...]:
    """Return the labels (m,) that a file itself has, pictures by the folders that they are in; empty where none."""
    if given.labels or not given.names:
        return given.labels
    folders = tuple(PurePath(name).parts[0] for name in given.names)
    return folders if set(folders) <= set(mesh.saved.card.classes) else ()


def agreement(mesh: Mesh, given: Incoming, scores: Tensor) -> str:
    """Say how many labels are as the file itself has them; nothing where it has none."""
    classes = mesh.saved.card.classes
    pairs = zip(known_labels(mesh, given), scores.argmax(-1).tolist(), strict=False)
    judged = [(label, classes[k]) for label, k in pairs if label]
    if not judged:
        return ""
    right = sum(label == found for label, found in judged)
    strange = sorted({label for label, _ in judged} - set(classes))
    words = f"Accuracy by the labels in the file: {100 * right / len(judged):.1f} % ({right:,} of {len(judged):,})."
    return words + (f" Labels that the mesh does not know: {', '.join(strange[:5])}." if strange else "")


def check_form(path: Path | None, known: Sequence[str], source: Path) -> None:
    """Refuse a file whose name does not say in which form to write it, or that is the one to read."""
    if path is None:
        return
    if path.suffix.lower() not in known:
        raise InputError(f"--out must end in {' or '.join(known)}; got '{path}'. {nearest(path.suffix, known)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--out must be in a folder that exists; got '{path}'. Make it first.")
    if path.exists() and source.exists() and path.samefile(source):
        raise InputError(f"--out must be another file than the one that is read; got '{path}' for both.")


def write_table(path: Path, columns: Columns) -> None:
    """Write columns in the form that the file's name says, whole or not at all."""
    write_bytes(path, FORMS[path.suffix.lower()](columns))


def as_csv(columns: Columns) -> bytes:
    """Return a CSV file; features take a column a dimension, z0, z1 and so on."""
    flat: dict[str, Array] = {}
    for name, values in columns.items():
        flat |= {name: values} if values.ndim == 1 else {f"{name}{i}": part for i, part in enumerate(values.T)}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(flat)
    # Numbers of an array as words are the shortest that read back as the same float32.
    writer.writerows(zip(*(values.astype(str).tolist() for values in flat.values()), strict=True))
    return out.getvalue().encode()


def _parquet(columns: Columns) -> bytes:
    arrow = pyarrow()

    def column(values: Array) -> object:
        if values.ndim == 1:
            return arrow.array(values.tolist() if values.dtype.kind == "U" else values)
        ends = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        return arrow.ListArray.from_arrays(ends, arrow.array(values.ravel()))

    out = io.BytesIO()
    arrow.parquet.write_table(arrow.table({name: column(values) for name, values in columns.items()}), out)
    return out.getvalue()


def _npz(columns: Columns) -> bytes:
    out = io.BytesIO()
    np.savez(out, **dict[str, Any](columns))
    return out.getvalue()


def _safetensors(columns: Columns) -> bytes:
    """Return tensors; columns of words, which are none, stand in the metadata as JSON."""
    words = {name: json.dumps(values.tolist()) for name, values in columns.items() if values.dtype.kind == "U"}
    tensors = {name: np.ascontiguousarray(values) for name, values in columns.items() if name not in words}
    return save(tensors, metadata=words)


FORMS: dict[str, Callable[[Columns], bytes]] = {
    ".csv": as_csv,
    ".parquet": _parquet,
    ".npz": _npz,
    ".safetensors": _safetensors,
}
