"""Data sets as tensors; embedded ones first, so that everything runs offline."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.seeds import generator
from ratemesh.specs import NamedSpec


@dataclass(frozen=True)
class Dataset:
    """Training and held-out samples, float32, labels 0..num_classes-1.

    X has shape (m, C, H, W) for images or (m, p) for vectors. `ranks` (K,) are the true class ranks
    where they are known, `bases` (K, p, r) the true class subspaces.
    """

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    num_classes: int
    ranks: Tensor | None = None
    bases: Tensor | None = None


class DatasetSpec(NamedSpec):
    """Settings of a data set."""

    kind: ClassVar[str] = "data set"

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the data; anything random comes from `seed`."""


class Digits(DatasetSpec):
    """Handwritten digits, 1,797 grey images of 8×8, ten classes; comes with scikit-learn."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out, equal for every class")

    def load(self, seed: int) -> Dataset:
        """Read the embedded file; the split depends on the seed."""
        from sklearn.datasets import load_digits  # slow to import, and only needed here

        pixels, labels = load_digits(return_X_y=True)
        X = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        return split(X, torch.as_tensor(labels, dtype=torch.int64), self.test_fraction, 10, seed)


class Subspaces(DatasetSpec):
    """Synthetic union of random subspaces with known truth: unit vectors in K subspaces, plus noise."""

    classes: int = Field(5, ge=1, description="number of classes K")
    ambient: int = Field(64, ge=2, description="dimension p of a sample")
    rank: int = Field(4, ge=1, description="dimension of each class's subspace")
    per_class: int = Field(200, ge=4, description="training samples per class")
    noise: float = Field(0.02, ge=0, description="standard deviation of the noise, per vector")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="held-out samples, in addition, as a part")

    def load(self, seed: int) -> Dataset:
        """Draw bases, then samples."""
        if self.rank > self.ambient:
            raise InputError(f"data.rank must not exceed data.ambient = {self.ambient}; got {self.rank}.")
        draw = generator(seed, "data", "subspaces")
        total = round(self.per_class / (1 - self.test_fraction))
        bases = torch.linalg.qr(torch.randn(self.classes, self.ambient, self.rank, generator=draw))[0]
        inside = torch.randn(self.classes, total, self.rank, generator=draw)
        X = torch.nn.functional.normalize(inside, dim=-1) @ bases.mT
        X = X + self.noise / self.ambient**0.5 * torch.randn(X.shape, generator=draw)
        y = torch.arange(self.classes).repeat_interleave(total)
        data = split(X.reshape(-1, self.ambient), y, self.test_fraction, self.classes, seed)
        ranks = torch.full((self.classes,), float(self.rank))
        return Dataset(data.X_train, data.y_train, data.X_test, data.y_test, self.classes, ranks, bases)


def split(X: Tensor, y: Tensor, test_fraction: float, num_classes: int, seed: int) -> Dataset:
    """Hold out `test_fraction` of every class, to within one sample."""
    shuffled = torch.randperm(len(y), generator=generator(seed, "data", "split"))
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    passed = torch.floor(torch.arange(len(y) + 1, dtype=torch.float64) * test_fraction)
    held_out = passed.diff() > 0  # evenly spaced along the sorted classes
    train, test = by_class[~held_out].sort().values, by_class[held_out].sort().values
    return Dataset(X[train], y[train], X[test], y[test], num_classes)


DATASETS: dict[str, type[DatasetSpec]] = {"digits": Digits, "subspaces": Subspaces}
