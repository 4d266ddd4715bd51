"""What a data set is: tensors with labels, and the settings that say which; and the two that need no files."""

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from ratemesh.data.intake import IntakeSpec
from ratemesh.errors import InputError
from ratemesh.seeds import generator
from ratemesh.specs import NamedSpec


@dataclass(frozen=True)
class Dataset:
    """Training and held-out samples with labels 0..num_classes-1, int64.

    X has shape (m, C, H, W) for images or (m, p) for vectors, float32 as it is, or uint8, which the encoder turns
    into 0..1; uint8 samples may be mapped from a file, so take rows only of what is needed. `classes` (K) are the names
    of the classes, "0".."K-1" where there are no better ones; the digest leaves them out. `ranks` (K,) are the true
    class ranks where they are known, `bases` (K, p, r) the true class subspaces. `fine_train` and `fine_test` (m,) are
    labels 0..len(fine_classes)-1 of a finer labelling, which training never sees and evaluation asks for. `intake` says
    how new raw samples become such X; None: they come as X are.
    """

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    num_classes: int
    ranks: Tensor | None = None
    bases: Tensor | None = None
    classes: tuple[str, ...] = ()
    fine_train: Tensor | None = None
    fine_test: Tensor | None = None
    fine_classes: tuple[str, ...] = ()
    intake: IntakeSpec | None = None

    def __post_init__(self) -> None:
        if not self.classes:
            object.__setattr__(self, "classes", tuple(map(str, range(self.num_classes))))

    def digest(self) -> str:
        """Return a fingerprint of all samples and labels; it reads them once."""
        found = hashlib.blake2b(digest_size=16)
        for part in (self.X_train, self.y_train, self.X_test, self.y_test, self.fine_train, self.fine_test):
            if part is not None:
                found.update(f"{tuple(part.shape)} {part.dtype}".encode())
                found.update(part.contiguous().numpy().data)
        return found.hexdigest()

    def rows(self, part: str, rows: Tensor) -> "Dataset":
        """Return the data with these rows only of a part, "train" or "test"; fine labels go with their samples."""
        keys = (f"X_{part}", f"y_{part}", f"fine_{part}")
        return replace(self, **{key: held[rows] for key in keys if (held := getattr(self, key)) is not None})


def coarsened(data: Dataset, parents: Tensor, names: tuple[str, ...]) -> Dataset:
    """Return the data labelled by `parents[y]` for training, with the labels that they had as the fine ones.

    Args:
        data: labelled 0..F-1.
        parents: (F,) the coarse label of every label.
        names: of the coarse classes.
    """
    return replace(
        data,
        y_train=parents[data.y_train],
        y_test=parents[data.y_test],
        num_classes=len(names),
        classes=names,
        fine_train=data.y_train,
        fine_test=data.y_test,
        fine_classes=data.classes,
    )


def in_pairs(data: Dataset) -> Dataset:
    """Return digits labelled by pairs, 0/1 to 8/9, with the digits as fine labels."""
    return coarsened(data, torch.arange(10) // 2, ("0/1", "2/3", "4/5", "6/7", "8/9"))


def by_fine_labels(data: Dataset) -> Dataset:
    """Return coarsened data as they were: fine labels for training, and none finer."""
    assert data.fine_train is not None
    assert data.fine_test is not None
    return replace(
        data,
        y_train=data.fine_train,
        y_test=data.fine_test,
        num_classes=len(data.fine_classes),
        classes=data.fine_classes,
        fine_train=None,
        fine_test=None,
        fine_classes=(),
    )


def in_order(data: Dataset, classes: tuple[str, ...], where: str) -> Dataset:
    """Return the data with these classes, in this order; one of them may have no samples, as at a site of a mesh."""
    if len(set(classes)) < len(classes):
        raise InputError(f"data.classes must name every class once; got {list(classes)}. Drop repeats.")
    if unknown := [name for name in data.classes if name not in classes]:
        raise InputError(
            f"labels of {where} must be among data.classes = {list(classes)}; got '{unknown[0]}'. Add it there, or "
            "correct the file."
        )
    place = torch.tensor([classes.index(name) for name in data.classes])
    y_train, y_test = place[data.y_train], place[data.y_test]
    return replace(data, y_train=y_train, y_test=y_test, num_classes=len(classes), classes=classes)


class DatasetSpec(NamedSpec):
    """Settings of a data set."""

    kind: ClassVar[str] = "data set"
    validation: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="part of every node's samples held out of training, to choose settings by; left out: 0.1 at nodes "
        "with at least 50 samples of every class they hold, else 0",
    )

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Return the data; anything random comes from `seed`."""


def sorted_by_label(y: Tensor, draw: Generator) -> Tensor:
    """Return the positions of labels `y` (m,) in order of the labels, shuffled inside a label."""
    shuffled = torch.randperm(len(y), generator=draw)
    return shuffled[torch.argsort(y[shuffled], stable=True)]


def split(
    X: Tensor, y: Tensor, test_fraction: float, num_classes: int, seed: int, fine: Tensor | None = None
) -> Dataset:
    """Hold out `test_fraction` of every class, to within one sample; `fine` (m,) are labels by a finer labelling."""
    by_class = sorted_by_label(y, generator(seed, "data", "split"))
    passed = torch.floor(torch.arange(len(y) + 1, dtype=torch.float64) * test_fraction)
    held_out = passed.diff() > 0  # evenly spaced along the sorted classes
    train, test = by_class[~held_out].sort().values, by_class[held_out].sort().values
    every = Dataset(X, y, X, y, num_classes, fine_train=fine, fine_test=fine)
    return every.rows("train", train).rows("test", test)


def some_rows(y: Tensor, most: int, draw: Generator) -> Tensor:
    """Choose `most` of the samples with labels `y` (m,), every class in proportion; ascending positions.

    >>> some_rows(torch.tensor([0, 1, 0, 1, 0, 1]), 2, torch.Generator()).shape
    torch.Size([2])
    """
    passed = torch.arange(len(y) + 1) * most // len(y)
    return sorted_by_label(y, draw)[passed.diff() > 0].sort().values


class Digits(DatasetSpec):
    """Handwritten digits, 1,797 grey images of 8×8, ten classes; comes with scikit-learn."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out, equal for every class")
    coarse: bool = Field(False, description="train on five pairs of digits, 0/1 to 8/9; digits are the fine labels")

    def load(self, seed: int) -> Dataset:
        """Read the embedded file; the split depends on the seed."""
        from sklearn.datasets import load_digits  # slow to import, and only needed here

        pixels, labels = load_digits(return_X_y=True)
        X = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        data = split(X, torch.as_tensor(labels, dtype=torch.int64), self.test_fraction, 10, seed)
        return in_pairs(data) if self.coarse else data


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
        return replace(data, ranks=torch.full((self.classes,), float(self.rank)), bases=bases)
