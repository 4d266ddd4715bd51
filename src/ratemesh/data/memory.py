"""Samples that nodes are given in Python, as data and a partition like those of a file."""

from collections.abc import Sequence

import torch
from pydantic import Field, PrivateAttr
from torch import Generator, Tensor

from ratemesh.data.dataset import Dataset, DatasetSpec
from ratemesh.data.partition import PartitionSpec
from ratemesh.errors import InputError


class Memory(DatasetSpec):
    """What nodes were given in Python; only the objects themselves hold it."""

    _data: Dataset | None = PrivateAttr(None)

    @classmethod
    def of(cls, data: Dataset, validation: float | None) -> "Memory":
        """Return the settings that stand for these samples."""
        found = cls(validation=validation)
        found._data = data
        return found

    def load(self, seed: int) -> Dataset:  # noqa: ARG002 - nothing is drawn
        """Return the samples."""
        if self._data is None:
            raise InputError(
                "data must be settings that a file can hold; these samples were given as objects, in Python. Go on "
                "where the objects are: mesh.fit(out=…, resume=True)."
            )
        return self._data


class Given(PartitionSpec):
    """Every node holds what it was given, one block of rows after the other."""

    sizes: tuple[int, ...] = Field(description="samples of every node, in order")

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:  # noqa: ARG002
        """Cut the rows where one node's end."""
        cut: Sequence[Tensor] = torch.arange(len(y)).split(list(self.sizes))
        return cut
