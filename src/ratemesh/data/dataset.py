"""What a data set is: tensors with labels, and the settings that say which."""

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ratemesh.seeds import generator
from ratemesh.specs import NamedSpec


@dataclass(frozen=True)
class Dataset:
    """Training and held-out samples with labels 0..num_classes-1, int64.

    X has shape (m, C, H, W) for images or (m, p) for vectors, float32 as it is, or uint8, which the encoder turns
    into 0..1; uint8 samples may be mapped from a file, so take rows only of what is needed. `classes` (K) are the names
    of the classes, "0".."K-1" where there are no better ones; the digest leaves them out. `ranks` (K,) are the true
    class ranks where they are known, `bases` (K, p, r) the true class subspaces.
    """

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    num_classes: int
    ranks: Tensor | None = None
    bases: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.classes:
            object.__setattr__(self, "classes", tuple(map(str, range(self.num_classes))))

    def digest(self) -> str:
        """Return a fingerprint of all samples and labels; it reads them once."""
        found = hashlib.blake2b(digest_size=16)
        for part in (self.X_train, self.y_train, self.X_test, self.y_test):
            found.update(f"{tuple(part.shape)} {part.dtype}".encode())
            found.update(part.contiguous().numpy().data)
        return found.hexdigest()


class DatasetSpec(NamedSpec):
    """Settings of a data set."""

    kind: ClassVar[str] = "data set"

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the data; anything random comes from `seed`."""


def split(X: Tensor, y: Tensor, test_fraction: float, num_classes: int, seed: int) -> Dataset:
    """Hold out `test_fraction` of every class, to within one sample."""
    shuffled = torch.randperm(len(y), generator=generator(seed, "data", "split"))
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    passed = torch.floor(torch.arange(len(y) + 1, dtype=torch.float64) * test_fraction)
    held_out = passed.diff() > 0  # evenly spaced along the sorted classes
    train, test = by_class[~held_out].sort().values, by_class[held_out].sort().values
    return Dataset(X[train], y[train], X[test], y[test], num_classes)


def some_rows(y: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """Choose `most` of the samples with labels `y` (m,), every class in proportion; ascending positions.

    >>> some_rows(torch.tensor([0, 1, 0, 1, 0, 1]), 2, torch.Generator()).shape
    torch.Size([2])
    """
    shuffled = torch.randperm(len(y), generator=draw)
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    passed = torch.arange(len(y) + 1) * most // len(y)
    return by_class[passed.diff() > 0].sort().values
