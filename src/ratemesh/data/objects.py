"""Samples and labels out of the objects that people hold them in: arrays, tensors, frames, data sets, loaders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from ratemesh.data.columns import LABEL_COLUMNS, SAMPLE_COLUMNS, usual_column
from ratemesh.data.files import Array
from ratemesh.errors import InputError


@dataclass(frozen=True)
class Labelled:
    """Samples with labels as they were given.

    Attributes:
        X: (m, ...) samples.
        y: (m,) labels, numbers or words.
        columns: names of what a sample of a frame holds, in order; empty elsewhere.
    """

    X: Tensor
    y: Array
    columns: tuple[str, ...] = ()


def labelled(X: Any, y: Any, what: str) -> Labelled:
    """Return samples and labels out of whatever holds them.

    Args:
        X: an array or tensor (m, ...) with `y` (m,); a pandas frame with `y` a column's name, or labels; a Hugging Face
            data set with `y` a column's name, or a usual one; a torch Dataset or DataLoader of pairs, without `y`.
        what: whose they are, for messages.
    """
    if isinstance(X, DataLoader):
        found = _pairs(list(X), what, torch.cat)
    elif isinstance(X, TorchDataset) and not hasattr(X, "column_names"):
        found = _tensors(X, what) if _is_pair(X) else _pairs(_items(X), what, torch.stack)
    elif hasattr(X, "column_names") and hasattr(X, "features"):
        found = _hugging_face(X, y, what)
    elif hasattr(X, "columns") and hasattr(X, "to_numpy"):
        found = _frame(X, y, what)
    else:
        if y is None:
            raise InputError(f"{what}: y must be given with samples that are arrays or tensors; got None.")
        found = Labelled(as_tensor(X, what), _as_labels(y, what))
    if len(found.X) != len(found.y):
        raise InputError(f"{what}: y must hold a label a sample; got {len(found.y)} labels for {len(found.X)} samples.")
    if not len(found.y):
        raise InputError(f"{what}: X must hold samples; it is empty.")
    return found


def as_tensor(X: Any, what: str) -> Tensor:
    """Return an array or tensor of numbers as a tensor: float32 or uint8; whole numbers of other kinds as int64."""
    if isinstance(X, Tensor):
        samples = X.detach().cpu()
    else:
        array = np.asarray(X)
        if array.dtype.kind not in "fiub":
            raise InputError(f"{what}: X must hold numbers; got {array.dtype}. Encode words and missing values first.")
        samples = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if samples.dtype == torch.uint8:
        return samples
    samples = samples.to(torch.float32 if samples.is_floating_point() else torch.int64)
    finite = torch.isfinite(samples).reshape(len(samples), -1).all(1)
    if not bool(finite.all()):
        raise InputError(f"{what}: X must be finite; row {int((~finite).nonzero()[0])} is not. Clean the data.")
    return samples


def _as_labels(y: Any, what: str) -> Array:
    """Return labels (m,) as int64 or words."""
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else np.atleast_1d(labels)
    if labels.dtype.kind not in "iubfU" and all(isinstance(value, str) for value in labels.tolist()):
        labels = labels.astype(str)  # words as Python objects, as pandas holds them
    whole = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((labels == np.floor(labels)).all()))
    if labels.ndim != 1 or not (whole or labels.dtype.kind == "U"):
        raise InputError(
            f"{what}: y must hold whole numbers or words, one a sample; got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.int64) if whole else labels


def _is_pair(X: Any) -> bool:
    return isinstance(X, TensorDataset) and len(X.tensors) == 2


def _tensors(X: Any, what: str) -> Labelled:
    return Labelled(as_tensor(X.tensors[0], what), _as_labels(X.tensors[1], what))


def _items(X: Any) -> list[Any]:
    try:
        return [X[i] for i in range(len(X))]
    except (TypeError, NotImplementedError):  # one that can only be gone through
        return list(X)


def _pairs(found: Sequence[Any], what: str, join: Any) -> Labelled:
    """Return pairs of samples and labels, or of batches of them, joined."""
    try:
        X = join([torch.as_tensor(pair[0]) for pair in found])
        y = [_as_labels(pair[1], what) for pair in found]
    except (TypeError, IndexError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what}: a data set must give pairs of a sample and a label, samples of one shape ({error})."
        ) from None
    return Labelled(as_tensor(X, what), np.concatenate(y))


def _frame(X: Any, y: Any, what: str) -> Labelled:
    """Return the columns of a pandas frame: one that holds labels, all others numbers."""
    labels = y
    if isinstance(y, str) or y is None:
        name = usual_column(list(map(str, X.columns)), y, LABEL_COLUMNS, f"{what}: y must name a column")
        labels, X = X[name], X.drop(columns=name)
    words = [str(name) for name, kind in X.dtypes.items() if getattr(kind, "kind", "O") not in "fiub"]
    if words:
        raise InputError(f"{what}: X must hold numbers; columns {', '.join(words)} do not. Encode or drop them.")
    return Labelled(as_tensor(X.to_numpy(np.float32), what), _as_labels(labels, what), tuple(map(str, X.columns)))


def _hugging_face(X: Any, y: Any, what: str) -> Labelled:
    """Return two columns of a Hugging Face data set; labels have the names that its features give them."""
    names = list(X.column_names)
    label = usual_column(names, y, LABEL_COLUMNS, f"{what}: y must name a column")
    others = [name for name in names if name != label]
    sample = usual_column(others, None, SAMPLE_COLUMNS, f"{what}: X must have a column of samples")
    codes = _as_labels(X[label][:], what)
    words = getattr(X.features[label], "names", None)
    samples = [np.asarray(entry) for entry in X[sample][:]]
    if len({entry.shape for entry in samples}) > 1:
        raise InputError(f"{what}: samples of column '{sample}' must have one shape. Resize them first.")
    stacked = np.stack(samples)
    pictures = stacked.dtype == np.uint8 and stacked.ndim in (3, 4)
    if pictures:
        stacked = stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    return Labelled(as_tensor(stacked, what), np.asarray(words)[codes] if words else codes)


def coded(y: Array, classes: Sequence[Any], what: str) -> Tensor:
    """Return labels (m,) as their places among the classes; whole numbers may also be the places themselves.

    >>> coded(np.array(["b", "a"]), ["a", "b"], "node 0").tolist()
    [1, 0]
    >>> coded(np.array([1, 0]), ["a", "b"], "node 0").tolist()
    [1, 0]
    """
    places = {label: place for place, label in enumerate(classes)}
    values = y.tolist()
    unknown = next((value for value in values if value not in places), None)
    if unknown is None:
        return torch.tensor([places[value] for value in values])
    if all(isinstance(value, int) and 0 <= value < len(classes) for value in values):
        return torch.tensor(values)
    known = ", ".join(map(str, classes[:20])) + (", …" if len(classes) > 20 else "")
    raise InputError(f"{what}: y must hold labels of the mesh; got {unknown!r}. Known: {known}. Name it in classes=.")


def all_classes(labels: Sequence[Array]) -> list[Any]:
    """Return every label that occurs, ordered: numbers by size, words by the alphabet."""
    if len({y.dtype.kind for y in labels}) > 1:
        raise InputError("y must hold labels of one kind at every node, whole numbers or words; got both.")
    return sorted({value for y in labels for value in y.tolist()})
