"""Partitions that draw how unevenly nodes get labels or amounts of data."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Generator, Tensor

from ratemesh.data.dataset import sorted_by_label
from ratemesh.data.partition import FEWEST, PartitionSpec, class_counts
from ratemesh.errors import InputError

ATTEMPTS = 1000
"""How many Dirichlet draws are made before we say that nodes come out too small."""


class _Drawn(PartitionSpec):
    """What partitions that draw proportions share: again, until no node comes out too small."""

    too_uneven: ClassVar[str] = ""
    alpha: float = Field(0.5, ge=1e-3, le=1e6, description="concentration α of the Dirichlet; smaller is more uneven")
    min_samples: int = Field(10, ge=FEWEST, description="samples every node has at least; drawn again until it has")

    @abstractmethod
    def shares(self, rng: np.random.Generator, nodes: int, num_classes: int) -> NDArray[Any]:
        """Draw which part of every class each node gets, (K, N)."""

    def accepts(self, counts: Tensor) -> bool:
        """Whether every node has at least `min_samples`, given samples per node and class, (N, K)."""
        return bool((counts.sum(1) >= self.min_samples).all())

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Cut every class by its shares, drawn anew until they are accepted."""
        # torch's own Dirichlet takes no generator
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=draw)))
        if nodes * self.min_samples > len(y):
            raise InputError(
                f"partition.min_samples must fit the data; got {self.min_samples} for {nodes} nodes and {len(y)} "
                f"samples. Take at most {len(y) // nodes}."
            )
        by_class = sorted_by_label(y, draw).split(torch.bincount(y, minlength=num_classes).tolist())
        for _ in range(ATTEMPTS):
            shares = self.shares(rng, nodes, num_classes)
            cut = [_cut(samples, share) for samples, share in zip(by_class, shares, strict=True)]
            parts = [torch.cat(hand) for hand in zip(*cut, strict=True)]
            if self.accepts(class_counts(y, parts, num_classes)):
                return parts
        raise InputError(
            f"partition.alpha must leave every node enough samples; got {self.alpha:g} for {nodes} nodes, and "
            f"{ATTEMPTS} draws all left a node with fewer than {self.min_samples}{self.too_uneven}. Raise "
            "partition.alpha, lower partition.min_samples, or take fewer nodes."
        )


def _cut(samples: Tensor, share: NDArray[Any]) -> list[Tensor]:
    """Cut samples in the proportions `share`; every size is off by less than one."""
    ends = np.rint(np.cumsum(share) * len(samples)).astype(int)
    ends[-1] = len(samples)  # whatever the rounding of the sum was
    return [samples[a:b] for a, b in pairwise([0, *ends.tolist()])]


class Dirichlet(_Drawn):
    """Label skew: every class is shared out in proportions drawn from a Dirichlet over the nodes."""

    def shares(self, rng: np.random.Generator, nodes: int, num_classes: int) -> NDArray[Any]:
        """Draw proportions per class."""
        return rng.dirichlet(np.full(nodes, self.alpha), size=num_classes)


class Quantity(_Drawn):
    """Quantity skew: sizes of the nodes are drawn from a Dirichlet; all have the same class proportions."""

    too_uneven: ClassVar[str] = " or without a class"

    def shares(self, rng: np.random.Generator, nodes: int, num_classes: int) -> NDArray[Any]:
        """Draw one set of proportions for all classes."""
        return np.tile(rng.dirichlet(np.full(nodes, self.alpha)), (num_classes, 1))

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Refuse a class that has too few samples for every node to get one; then draw."""
        for k, m_k in enumerate(torch.bincount(y, minlength=num_classes).tolist()):
            if 0 < m_k < nodes:
                raise InputError(
                    f"data must have a sample of every class for every node; got {m_k} of class {k} for {nodes} "
                    "nodes. Take fewer nodes, more data, or another partition."
                )
        return super().deal(y, nodes, num_classes, draw)

    def accepts(self, counts: Tensor) -> bool:
        """Whether every node has `min_samples`, every class, and each in proportion to within whole samples.

        A class's count is off by 1 at most and a node's size by 1 a class, hence 1 + K m_k/m.
        """
        m_i, m_k, m = counts.sum(1, keepdim=True), counts.sum(0), counts.sum()
        off = (counts - m_i * m_k / m).abs()
        everywhere = bool((counts[:, m_k > 0] > 0).all())
        return super().accepts(counts) and everywhere and bool((off <= 1 + len(m_k) * m_k / m).all())


class Shards(PartitionSpec):
    """Samples sorted by label are cut into equal shards; every node gets the same number of them at random."""

    per_node: int = Field(2, ge=1, description="shards a node gets; fewer is more uneven")

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:  # noqa: ARG002
        """Cut and deal."""
        total = nodes * self.per_node
        if total > len(y):
            raise InputError(
                f"partition.per_node must leave a sample a shard; got {self.per_node} for {nodes} nodes and {len(y)} "
                f"samples. Take at most {len(y) // nodes}."
            )
        shards = sorted_by_label(y, draw).tensor_split(total)
        order = torch.randperm(total, generator=draw).view(nodes, self.per_node).tolist()
        return [torch.cat([shards[s] for s in mine]) for mine in order]
