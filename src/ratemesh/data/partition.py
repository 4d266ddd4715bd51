"""Who gets which samples: what all partitions share, the two that keep labels evenly spread, and the checker."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Generator, Tensor

from ratemesh.errors import InputError
from ratemesh.specs import NamedSpec

FEWEST = 2
"""Samples a node needs: a batch of one row has no covariance, and batch normalisation refuses it."""


def iid(y: Tensor, nodes: int, draw: Generator) -> list[Tensor]:
    """Deal shuffled samples out evenly, labels not looked at."""
    return [part.sort().values for part in torch.randperm(len(y), generator=draw).tensor_split(nodes)]


def stratified(y: Tensor, nodes: int, draw: Generator) -> list[Tensor]:
    """Deal every class out evenly, so that Assumption 1 holds as nearly as whole samples allow.

    The deal of a class goes on where that of the class before ended: totals differ by one at most.
    """
    by_class = sorted_by_label(y, draw)
    return [by_class[i::nodes].sort().values for i in range(nodes)]


def sorted_by_label(y: Tensor, draw: Generator) -> Tensor:
    """Return all indices in order of their labels, shuffled inside a label."""
    shuffled = torch.randperm(len(y), generator=draw)
    return shuffled[torch.argsort(y[shuffled], stable=True)]


class PartitionSpec(NamedSpec):
    """Settings of a partition."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:
        """Return one index tensor a node, in any order; all that is random comes from `draw`."""

    @abstractmethod
    def keeps(self, counts: Tensor) -> bool:
        """Whether samples per node and class, (N, K), are what this partition promises."""

    def split(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:
        """Return one ascending index tensor a node: disjoint, complete, at least FEWEST samples each."""
        check_sample_labels(y, num_classes)
        if nodes < 1:
            raise InputError(f"nodes must be at least 1; got {nodes}.")
        if nodes * FEWEST > len(y):
            raise InputError(
                f"nodes must leave at least {FEWEST} samples each; got {nodes} nodes for {len(y)} samples. "
                "Take fewer nodes or more data."
            )
        parts = [part.sort().values for part in self.deal(y, nodes, num_classes, draw)]
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


class Iid(PartitionSpec):
    """Shuffled samples are dealt out evenly, labels not looked at."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:  # noqa: ARG002
        """Deal as `iid` does."""
        return iid(y, nodes, draw)

    def keeps(self, counts: Tensor) -> bool:
        """Whether sizes differ by one at most."""
        return within(counts.sum(1), 1)


class Stratified(PartitionSpec):
    """Every class is dealt out evenly: Assumption 1 as nearly as whole samples allow."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:  # noqa: ARG002
        """Deal as `stratified` does."""
        return stratified(y, nodes, draw)

    def keeps(self, counts: Tensor) -> bool:
        """Whether sizes, and the sizes of every class, differ by one at most."""
        return within(counts, 1) and within(counts.sum(1), 1)


def within(counts: Tensor, most: float) -> bool:
    """Whether entries differ over the nodes (the first dimension) by at most `most`."""
    return bool((counts.max(0).values - counts.min(0).values <= most).all())


def is_partition(parts: Sequence[Tensor], m: int) -> bool:
    """Whether the parts are disjoint and together hold 0..m-1."""
    return torch.equal(torch.cat(list(parts)).sort().values, torch.arange(m))


def class_counts(y: Tensor, parts: Sequence[Tensor], num_classes: int) -> Tensor:
    """Return samples per node and class, (N, K)."""
    return torch.stack([torch.bincount(y[part], minlength=num_classes) for part in parts])
