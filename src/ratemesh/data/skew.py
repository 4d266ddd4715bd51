"""Partitions that give nodes different labels or different amounts of data."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Generator, Tensor

from ratemesh.data.partition import FEWEST, PartitionSpec, class_counts, sorted_by_label, within
from ratemesh.errors import InputError
from ratemesh.specs import nearest

ATTEMPTS = 1000
"""How many Dirichlet draws are made before we say that nodes come out too small."""

Rows = tuple[tuple[int, ...], ...]

SCENARIOS: dict[str, Rows] = {
    "4x5": ((1, 2, 3, 4, 5), (6, 7, 8, 9, 0), (0, 3, 5, 7, 9), (1, 2, 4, 6, 8)),
    "5x4": ((1, 3, 5, 6), (0, 5, 7, 8), (1, 3, 8, 9), (2, 4, 6, 7), (0, 2, 4, 9)),
}
"""The paper's two: four nodes of five labels (no replication needed), five nodes of four (node 1 is replicated)."""


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

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:
        """Deal label by label; samples that do not divide go to the holders that have the fewest so far."""
        self._check(y, nodes, num_classes)
        by_class = sorted_by_label(y, draw).split(torch.bincount(y, minlength=num_classes).tolist())
        hands: list[list[Tensor]] = [[] for _ in range(nodes)]
        for k, samples in enumerate(by_class):
            holders = [i for i in range(nodes) if k in self.labels[i]]
            holders.sort(key=lambda i: sum(map(len, hands[i])))
            for i, part in zip(holders, samples.tensor_split(max(1, len(holders))), strict=False):
                hands[i].append(part)
        return [torch.cat(hand) for hand in hands]

    def keeps(self, counts: Tensor) -> bool:
        """Whether who holds a label has samples of it, evenly to within one, and who does not has none."""
        holds = torch.zeros_like(counts, dtype=torch.bool)
        for i, row in enumerate(self.labels):
            holds[i, list(row)] = True
        present = counts.sum(0) > 0
        even = all(within(counts[holds[:, k], k], 1) for k in range(counts.shape[1]) if bool(present[k]))
        return even and bool(((counts > 0) == (holds & present)).all())

    def _check(self, y: Tensor, nodes: int, num_classes: int) -> None:
        if len(self.labels) != nodes:
            raise InputError(
                f"partition.labels must have one row a node of the graph; got {len(self.labels)} rows for {nodes} "
                f"nodes. Set graph.nodes = {len(self.labels)}, or give {nodes} rows."
            )
        for i, row in enumerate(self.labels):
            self._check_row(i, row, num_classes)
        for k, m_k in enumerate(torch.bincount(y, minlength=num_classes).tolist()):
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


class _Drawn(PartitionSpec):
    """What partitions that draw proportions share: again, until no node comes out too small."""

    alpha: float = Field(0.5, ge=1e-3, le=1e6, description="concentration α of the Dirichlet; smaller is more uneven")
    min_samples: int = Field(10, ge=FEWEST, description="samples every node has at least; drawn again until it has")

    def _redrawn(
        self, y: Tensor, nodes: int, num_classes: int, draw: Generator, shares: Callable[[], Iterator[np.ndarray]]
    ) -> list[Tensor]:
        """Cut every class by the next of `shares`, anew until `keeps` is satisfied."""
        if nodes * self.min_samples > len(y):
            raise InputError(
                f"partition.min_samples must fit the data; got {self.min_samples} for {nodes} nodes and {len(y)} "
                f"samples. Take at most {len(y) // nodes}."
            )
        by_class = sorted_by_label(y, draw).split(torch.bincount(y, minlength=num_classes).tolist())
        for _ in range(ATTEMPTS):
            cut = [_cut(samples, share) for samples, share in zip(by_class, shares(), strict=False)]
            parts = [torch.cat(hand) for hand in zip(*cut, strict=True)]
            if self.keeps(class_counts(y, parts, num_classes)):
                return parts
        raise InputError(
            f"partition.alpha must leave every node enough samples; got {self.alpha:g} for {nodes} nodes, and "
            f"{ATTEMPTS} draws all left a node with fewer than {self.min_samples}{self._or_worse()}. Raise "
            "partition.alpha, lower partition.min_samples, or take fewer nodes."
        )

    def _or_worse(self) -> str:
        """Return what else a draw must not do, for the message."""
        return ""


def _numpy(draw: Generator) -> np.random.Generator:
    """Return a NumPy generator seeded by `draw`: torch's own Dirichlet takes no generator."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=draw)))


def _cut(samples: Tensor, share: np.ndarray) -> list[Tensor]:
    """Cut samples in the proportions `share`; every size is off by less than one."""
    ends = np.rint(np.cumsum(share) * len(samples)).astype(int)
    ends[-1] = len(samples)  # whatever the rounding of the sum was
    return [samples[a:b] for a, b in pairwise([0, *ends.tolist()])]


class Dirichlet(_Drawn):
    """Label skew: every class is shared out in proportions drawn from a Dirichlet over the nodes."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:
        """Draw proportions per class."""
        rng = _numpy(draw)

        def shares() -> Iterator[np.ndarray]:
            yield from rng.dirichlet(np.full(nodes, self.alpha), size=num_classes)

        return self._redrawn(y, nodes, num_classes, draw, shares)

    def keeps(self, counts: Tensor) -> bool:
        """Whether every node has at least `min_samples`."""
        return bool((counts.sum(1) >= self.min_samples).all())


class Quantity(_Drawn):
    """Quantity skew: sizes of the nodes are drawn from a Dirichlet; all have the same class proportions."""

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:
        """Draw one set of proportions for all classes."""
        for k, m_k in enumerate(torch.bincount(y, minlength=num_classes).tolist()):
            if 0 < m_k < nodes:
                raise InputError(
                    f"data must have a sample of every class for every node; got {m_k} of class {k} for {nodes} "
                    "nodes. Take fewer nodes, more data, or another partition."
                )
        rng = _numpy(draw)

        def shares() -> Iterator[np.ndarray]:
            share = rng.dirichlet(np.full(nodes, self.alpha))
            yield from [share] * num_classes

        return self._redrawn(y, nodes, num_classes, draw, shares)

    def keeps(self, counts: Tensor) -> bool:
        """Whether every node has `min_samples`, every class, and each in proportion to within whole samples.

        A class's count is off by 1 at most and a node's size by 1 a class, hence 1 + K m_k/m.
        """
        m_i, m_k, m = counts.sum(1, keepdim=True), counts.sum(0), counts.sum()
        off = (counts - m_i * m_k / m).abs()
        everywhere = bool((counts[:, m_k > 0] > 0).all())
        large = bool((m_i >= self.min_samples).all())
        return large and everywhere and bool((off <= 1 + len(m_k) * m_k / m).all())

    def _or_worse(self) -> str:
        return " or without a class"


class Shards(PartitionSpec):
    """Samples sorted by label are cut into equal shards; every node gets the same number of them at random."""

    per_node: int = Field(2, ge=1, description="shards a node gets; fewer is more uneven")

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> list[Tensor]:  # noqa: ARG002
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

    def keeps(self, counts: Tensor) -> bool:
        """Whether sizes differ by one a shard at most, and nodes hold no more labels than their shards can.

        K − 1 borders between labels, each inside at most one shard, add at most K − 1 labels to one a shard.
        """
        nodes, num_classes = counts.shape
        held = int((counts > 0).sum())
        return within(counts.sum(1), self.per_node) and held <= nodes * self.per_node + num_classes - 1
