"""What people's own files hold, brought into one form: samples as images or vectors, labels as 0..K-1."""

import math
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from ratemesh.data.cache import Array, Decoded
from ratemesh.data.dataset import split
from ratemesh.errors import InputError

Channels = Literal["auto", "first", "last"]


def parts(X: Sequence[Array], y: Sequence[Array], where: str, channels: Channels = "auto") -> Decoded:
    """Return training and test parts (two of X, two of y) in one form; `where` names the file in messages."""
    X_train, X_test = (as_samples(A, f"{name} of {where}", channels) for A, name in zip(X, NAMES, strict=True))
    labels = [flat(A) for A in y]
    if any(A.ndim != 1 for A in labels):
        raise InputError(f"labels of {where} must be one a sample, (m,); got shapes {y[0].shape} and {y[1].shape}.")
    codes, classes = as_labels(np.concatenate(labels), f"labels of {where}")
    y_train, y_test = codes[: len(labels[0])], codes[len(labels[0]) :]
    for m, n, name in ((len(X_train), len(y_train), "training"), (len(X_test), len(y_test), "test")):
        if m != n:
            raise InputError(f"{where} must hold a label for every {name} sample; got {m} samples and {n} labels.")
    if X_train.shape[1:] != X_test.shape[1:] or X_train.dtype != X_test.dtype:
        got = f"{X_train.shape[1:]} {X_train.dtype} and {X_test.shape[1:]} {X_test.dtype}"
        raise InputError(f"{where} must hold training and test samples of one shape and kind; got {got}.")
    return Decoded(X_train, y_train, X_test, y_test, classes)


NAMES = ("training samples", "test samples")


def one_part(X: Array, y: Array, test_fraction: float, where: str) -> Decoded:
    """Return samples (m, ...) with labels (m,), a part held out that is the same for every seed."""
    samples = as_samples(X, f"samples of {where}")
    codes, classes = as_labels(y, f"labels of {where}")
    if len(samples) != len(codes):
        m, n = len(samples), len(codes)
        raise InputError(f"{where} must hold a label for every sample; got {m} samples and {n} labels.")
    data = split(torch.from_numpy(samples), torch.from_numpy(codes), test_fraction, len(classes), seed=0)
    if not len(data.y_test):
        raise InputError(f"data.test_fraction must hold out a sample of {where}; got {test_fraction}. Raise it.")
    X_train, y_train, X_test, y_test = (A.numpy() for A in (data.X_train, data.y_train, data.X_test, data.y_test))
    return Decoded(X_train, y_train, X_test, y_test, classes)


def as_samples(X: Array, what: str, channels: Channels = "auto") -> Array:
    """Return vectors as (m, p) and images as (m, C, H, W), uint8 or float32.

    Of four axes (m, a, b, c) the shorter of a and c counts the channels, a in doubt, unless `channels` says it.
    """
    if X.dtype != np.uint8 and X.dtype.kind != "f":
        raise InputError(f"{what} must be uint8 (0..255) or float; got {X.dtype}. Save them as one of these.")
    if not 2 <= X.ndim <= 4 or 0 in X.shape:
        shapes = "(m, p), (m, H, W), (m, H, W, C) or (m, C, H, W)"
        raise InputError(f"{what} must have shape {shapes}, no axis empty; got {X.shape}.")
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4 and (channels == "last" or (channels == "auto" and X.shape[3] < X.shape[1])):
        X = X.transpose(0, 3, 1, 2)
    if X.dtype != np.uint8:
        X = X.astype(np.float32)
        bad = ~np.isfinite(X.reshape(len(X), -1)).all(1)
        if bad.any():
            raise InputError(f"{what} must be finite float32 numbers; row {int(bad.argmax())} is not. Clean the data.")
    return np.require(X, requirements=["C", "W"])


def as_labels(y: Array, what: str) -> tuple[Array, tuple[str, ...]]:
    """Return labels as int64 codes 0..K-1, and the names of the K classes that the codes stand for.

    >>> as_labels(np.array(["cat", "dog", "cat"]), "labels")
    (array([0, 1, 0]), ('cat', 'dog'))
    """
    y = flat(y)
    if y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()):
        y = y.astype(np.int64)
    if y.ndim != 1 or y.dtype.kind not in "iubU" or not len(y):
        raise InputError(f"{what} must be whole numbers or words, one a sample; got {y.dtype} of shape {y.shape}.")
    values, found = np.unique(y, return_inverse=True)
    words = [str(value) for value in values.tolist()]
    order = sorted(range(len(words)), key=lambda i: _rank(words[i]))  # "10" after "9"
    code_of = np.empty(len(order), np.int64)
    code_of[order] = np.arange(len(order))
    return code_of[found], tuple(words[i] for i in order)


def flat(y: Array) -> Array:
    """Return labels (m, 1) as (m,)."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _rank(word: str) -> tuple[bool, int, str]:
    number = word.removeprefix("-")
    whole = number.isascii() and number.isdigit()
    return not whole, int(word) if whole else 0, word


def bounded(shape: Sequence[int], itemsize: int, what: str) -> None:
    """Raise before anything is allocated if samples of this shape would fill half of the machine's memory."""
    wanted = math.prod(shape) * itemsize
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if wanted > most:
        raise InputError(
            f"{what} must fit into half of this machine's memory, {most / 1e9:.1f} GB; it would take "
            f"{wanted / 1e9:.1f} GB. Make the samples fewer or smaller."
        )
