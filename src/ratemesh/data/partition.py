"""Who gets which samples: what all partitions share, those that say which labels go where, and those that draw."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
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
        self._check_rows(nodes, num_classes)
        sizes = torch.bincount(y, minlength=num_classes).tolist()
        hands: list[list[Tensor]] = [[] for _ in range(nodes)]
        for k, samples in enumerate(sorted_by_label(y, draw).split(sizes)):
            holders = [i for i in range(nodes) if k in self.labels[i]]
            _check_holders(k, len(holders), len(samples))
            holders.sort(key=lambda i: sum(map(len, hands[i])))
            for i, part in zip(holders, samples.tensor_split(max(1, len(holders))), strict=False):
                hands[i].append(part)
        return [torch.cat(hand) for hand in hands]

    def _check_rows(self, nodes: int, num_classes: int) -> None:
        """Refuse a table that does not fit the nodes or the labels."""
        if len(self.labels) != nodes:
            raise InputError(
                f"partition.labels must have one row a node of the graph; got {len(self.labels)} rows for {nodes} "
                f"nodes. Set graph.nodes = {len(self.labels)}, or give {nodes} rows."
            )
        for i, row in enumerate(self.labels):
            if not row:
                raise InputError(f"partition.labels must give every node a label; row {i} is empty. Add labels to it.")
            wrong = [k for k in row if not 0 <= k < num_classes]
            if wrong:
                raise InputError(
                    f"partition.labels must hold labels in 0..{num_classes - 1}; row {i} has {wrong[0]}. "
                    "Correct the row."
                )
            if len(set(row)) < len(row):
                got = list(row)
                raise InputError(f"partition.labels must name a label once a row; row {i} is {got}. Drop repeats.")


def _check_holders(k: int, holders: int, m_k: int) -> None:
    """Refuse a label that has samples but no holder, or more holders than samples."""
    if m_k and not holders:
        raise InputError(
            f"partition.labels must give every label to a node; nobody holds label {k}, which has {m_k} samples. "
            f"Add {k} to a row."
        )
    if 0 < m_k < holders:
        raise InputError(
            f"partition.labels must leave every holder of a label a sample; {holders} nodes hold label {k}, which has "
            f"{m_k}. Take {k} out of {holders - m_k} rows, or use more data."
        )


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
