"""Who gets which samples: what all partitions share, those that deal evenly, and those that draw."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Generator, Tensor

from ratemesh.data.dataset import sorted_by_label
from ratemesh.errors import InputError
from ratemesh.specs import NamedSpec

FEWEST = 2
"""Samples a node needs: a batch of one row has no covariance, and batch normalisation refuses it."""


class PartitionSpec(NamedSpec):
    """Settings of a partition."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Return one index tensor a node, in any order; all that is random comes from `draw`."""

    def deal_named(self, y: Tensor, nodes: int, classes: Sequence[str], draw: Generator) -> Sequence[Tensor]:
        """Return the same where settings may speak of classes by their names."""
        return self.deal(y, nodes, len(classes), draw)

    def split(
        self, y: Tensor, nodes: int, num_classes: int, draw: Generator, classes: Sequence[str] = ()
    ) -> list[Tensor]:
        """Return one ascending index tensor a node: disjoint, complete, at least FEWEST samples each.

        Args:
            classes: names of the classes, as the data have them; none: their numbers.
        """
        check_sample_labels(y, num_classes)
        if nodes < 1:
            raise InputError(f"nodes must be at least 1; got {nodes}.")
        if nodes * FEWEST > len(y):
            raise InputError(
                f"nodes must leave at least {FEWEST} samples each; got {nodes} nodes for {len(y)} samples. "
                "Take fewer nodes or more data."
            )
        names = classes or tuple(map(str, range(num_classes)))
        parts = [part.sort().values for part in self.deal_named(y, nodes, names, draw)]
        for node, part in enumerate(parts):
            if len(part) < FEWEST:
                raise InputError(
                    f"partition must leave every node at least {FEWEST} samples; '{self.name}' gives node {node} "
                    f"{len(part)} of {len(y)}. Take fewer nodes, more data, or another partition."
                )
        return parts


def check_sample_labels(y: Tensor, num_classes: int) -> None:
    """Refuse labels that are not whole numbers in 0..K-1."""
    if y.ndim != 1 or y.is_floating_point():
        raise InputError(f"y must be a row of whole numbers; got shape {tuple(y.shape)}, {y.dtype}.")
    wrong = y[(y < 0) | (y >= num_classes)]
    if len(wrong):
        raise InputError(
            f"y must hold labels in 0..{num_classes - 1}; got {int(wrong[0])}. Number the classes from 0, or raise "
            "the data's number of classes."
        )


def class_counts(y: Tensor, parts: Sequence[Tensor], num_classes: int) -> Tensor:
    """Return samples per node and class, (N, K)."""
    return torch.stack([torch.bincount(y[part], minlength=num_classes) for part in parts])


VALIDATION, ENOUGH = 0.1, 50
"""The part held out for validation where nothing else is set, and samples of every class held that it takes."""


def hold_out(
    y: Tensor, parts: Sequence[Tensor], num_classes: int, fraction: float | None, draw: Generator
) -> tuple[list[Tensor], Tensor]:
    """Return what is left of the parts for training, and the rows held out of all of them; ascending.

    A node keeps a sample of every class it holds: of m samples of a class, ⌊m · fraction⌋ are held out.

    Args:
        y: (m,) labels of all samples.
        parts: rows that each node holds.
        num_classes: K.
        fraction: of every node and class; None is VALIDATION at nodes with ENOUGH samples of every class they hold.
        draw: source of all that is random.
    """
    kept, held_out = [], []
    for node, (part, counts) in enumerate(zip(parts, class_counts(y, parts, num_classes), strict=True)):
        usual = VALIDATION if int(counts[counts > 0].min()) >= ENOUGH else 0.0
        most = torch.floor(counts.double() * (usual if fraction is None else fraction))
        rows = part[sorted_by_label(y[part], draw)]
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[y[rows]]  # of a sample inside its class
        chosen = place < most[y[rows]]
        kept.append(rows[~chosen].sort().values)
        held_out.append(rows[chosen])
        if len(kept[node]) < FEWEST:
            raise InputError(
                f"data.validation must leave every node at least {FEWEST} samples to train on; got {fraction}, and "
                f"node {node} keeps {len(kept[node])} of {len(part)}. Lower it, or take fewer nodes or more data."
            )
    if fraction and not any(map(len, held_out)):
        raise InputError(
            f"data.validation must hold out a sample; got {fraction}, less than one of a class at any node. Raise it."
        )
    return kept, torch.cat(held_out).sort().values


class Iid(PartitionSpec):
    """Shuffled samples are dealt out evenly, labels not looked at."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:  # noqa: ARG002
        """Cut shuffled samples; sizes differ by one at most."""
        return torch.randperm(len(y), generator=draw).tensor_split(nodes)


class Stratified(PartitionSpec):
    """Every class is dealt out evenly: Assumption 1 as nearly as whole samples allow."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:  # noqa: ARG002
        """Deal every class where the deal of the class before ended: totals, too, differ by one at most."""
        by_class = sorted_by_label(y, draw)
        return [by_class[i::nodes] for i in range(nodes)]


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


def _cut(samples: Tensor, share: NDArray[Any]) -> Sequence[Tensor]:
    """Cut samples in the proportions `share`; every size is off by less than one."""
    ends = np.rint(np.cumsum(share[:-1]) * len(samples)).astype(int)
    return samples.tensor_split(ends.tolist())


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

    def deal_named(self, y: Tensor, nodes: int, classes: Sequence[str], draw: Generator) -> Sequence[Tensor]:
        """Refuse a class that has too few samples for every node to get one; then draw."""
        for name, m_k in zip(classes, torch.bincount(y, minlength=len(classes)).tolist(), strict=True):
            if 0 < m_k < nodes:
                raise InputError(
                    f"data must have a sample of every class for every node; got {m_k} of class {name} for {nodes} "
                    "nodes. Take fewer nodes, more data, or another partition."
                )
        return super().deal_named(y, nodes, classes, draw)

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
