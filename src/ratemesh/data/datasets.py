"""The data sets that a configuration can name; embedded ones first, so that everything runs offline."""

import torch
from pydantic import Field

from ratemesh.data.dataset import Dataset, DatasetSpec, split
from ratemesh.data.files import Cifar10, Cifar100, Folder, Mnist, Npz, Parquet
from ratemesh.errors import InputError
from ratemesh.seeds import generator


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


DATASETS: dict[str, type[DatasetSpec]] = {
    "digits": Digits,
    "subspaces": Subspaces,
    "mnist": Mnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "npz": Npz,
    "folder": Folder,
    "parquet": Parquet,
}
