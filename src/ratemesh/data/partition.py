"""Who gets which samples: what all partitions share, and those that say which labels go where."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field
from torch import Generator, Tensor

from ratemesh.data.dataset import sorted_by_label
from ratemesh.errors import InputError
from ratemesh.specs import NamedSpec, nearest

FEWEST = 2
"""Samples a node needs: a batch of one row has no covariance, and batch normalisation refuses it."""

Rows = tuple[tuple[int, ...], ...]

SCENARIOS: dict[str, Rows] = {
    "4x5": ((1, 2, 3, 4, 5), (6, 7, 8, 9, 0), (0, 3, 5, 7, 9), (1, 2, 4, 6, 8)),
    "5x4": ((1, 3, 5, 6), (0, 5, 7, 8), (1, 3, 8, 9), (2, 4, 6, 7), (0, 2, 4, 9)),
}
"""The paper's two: four nodes of five labels (no replication needed), five nodes of four (node 1 is replicated)."""


class PartitionSpec(NamedSpec):
    """Settings of a partition."""

    kind: ClassVar[str] = "partition"

    @abstractmethod
    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Return one index tensor a node, in any order; all that is random comes from `draw`."""

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


def class_counts(y: Tensor, parts: Sequence[Tensor], num_classes: int) -> Tensor:
    """Return samples per node and class, (N, K)."""
    return torch.stack([torch.bincount(y[part], minlength=num_classes) for part in parts])


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


def _scenario(labels: Any) -> Any:
    """Turn the name of a scenario into its table."""
    if not isinstance(labels, str):
        return labels
    if labels not in SCENARIOS:
        raise InputError(
            f"partition.labels must be a row of labels a node, or a known scenario; got '{labels}'. "
            f"{nearest(labels, SCENARIOS)}"
        )
    return SCENARIOS[labels]


class Labels(PartitionSpec):
    """Every node holds the labels it is given; a label's samples are dealt out evenly to its holders."""

    labels: Annotated[Rows, BeforeValidator(_scenario)] = Field(
        description="a list of labels a node (the paper's K_i), or a scenario of the paper: " + ", ".join(SCENARIOS)
    )

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Deal label by label; samples that do not divide go to the holders that have the fewest so far."""
        sizes = torch.bincount(y, minlength=num_classes).tolist()
        self._check(sizes, nodes)
        hands: list[list[Tensor]] = [[] for _ in range(nodes)]
        for k, samples in enumerate(sorted_by_label(y, draw).split(sizes)):
            holders = [i for i in range(nodes) if k in self.labels[i]]
            holders.sort(key=lambda i: sum(map(len, hands[i])))
            for i, part in zip(holders, samples.tensor_split(max(1, len(holders))), strict=False):
                hands[i].append(part)
        return [torch.cat(hand) for hand in hands]

    def _check(self, sizes: Sequence[int], nodes: int) -> None:
        """Refuse a table that does not fit the nodes, or the samples of each class."""
        if len(self.labels) != nodes:
            raise InputError(
                f"partition.labels must have one row a node of the graph; got {len(self.labels)} rows for {nodes} "
                f"nodes. Set graph.nodes = {len(self.labels)}, or give {nodes} rows."
            )
        for i, row in enumerate(self.labels):
            self._check_row(i, row, len(sizes))
        for k, m_k in enumerate(sizes):
            holders = sum(k in row for row in self.labels)
            if m_k and not holders:
                raise InputError(
                    f"partition.labels must give every label to a node; nobody holds label {k}, which has {m_k} "
                    f"samples. Add {k} to a row."
                )
            if 0 < m_k < holders:
                raise InputError(
                    f"partition.labels must leave every holder of a label a sample; {holders} nodes hold label {k}, "
                    f"which has {m_k}. Take {k} out of {holders - m_k} rows, or use more data."
                )

    @staticmethod
    def _check_row(i: int, row: Sequence[int], num_classes: int) -> None:
        if not row:
            raise InputError(f"partition.labels must give every node a label; row {i} is empty. Add labels to it.")
        wrong = [k for k in row if not 0 <= k < num_classes]
        if wrong:
            raise InputError(
                f"partition.labels must hold labels in 0..{num_classes - 1}; row {i} has {wrong[0]}. Correct the row."
            )
        if len(set(row)) < len(row):
            raise InputError(f"partition.labels must name a label once a row; row {i} is {list(row)}. Drop repeats.")
