"""Which labels go to which node: in the user's own words, or by a scenario of the paper."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Generator, Tensor

from ratemesh.data.dataset import sorted_by_label
from ratemesh.data.partition import PartitionSpec
from ratemesh.errors import InputError
from ratemesh.specs import nearest

Rows = tuple[tuple[int | str, ...], ...]

SCENARIOS: dict[str, tuple[tuple[int, ...], ...]] = {
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
        description="a list of labels a node (the paper's K_i), as the data name them, or by number from 0 where their "
        "names are words; or a scenario of the paper: " + ", ".join(SCENARIOS)
    )

    def deal(self, y: Tensor, nodes: int, num_classes: int, draw: Generator) -> Sequence[Tensor]:
        """Deal labels that have no names."""
        return self.deal_named(y, nodes, tuple(map(str, range(num_classes))), draw)

    def deal_named(self, y: Tensor, nodes: int, classes: Sequence[str], draw: Generator) -> Sequence[Tensor]:
        """Deal label by label; samples that do not divide go to the holders that have the fewest so far."""
        held = self._held(nodes, classes)
        sizes = torch.bincount(y, minlength=len(classes)).tolist()
        hands: list[list[Tensor]] = [[] for _ in range(nodes)]
        for k, samples in enumerate(sorted_by_label(y, draw).split(sizes)):
            holders = [i for i in range(nodes) if k in held[i]]
            _check_holders(classes[k], len(holders), len(samples))
            holders.sort(key=lambda i: sum(map(len, hands[i])))
            for i, part in zip(holders, samples.tensor_split(max(1, len(holders))), strict=False):
                hands[i].append(part)
        return [torch.cat(hand) for hand in hands]

    def _held(self, nodes: int, classes: Sequence[str]) -> list[list[int]]:
        """Return the classes of every node, 0..K-1; refuse a table that does not fit the nodes or the labels."""
        if len(self.labels) != nodes:
            raise InputError(
                f"partition.labels must have one row a node of the graph; got {len(self.labels)} rows for {nodes} "
                f"nodes. Set graph.nodes = {len(self.labels)}, or give {nodes} rows."
            )
        held = [[_code(label, i, classes) for label in row] for i, row in enumerate(self.labels)]
        for i, codes in enumerate(held):
            if not codes:
                raise InputError(f"partition.labels must give every node a label; row {i} is empty. Add labels to it.")
            if len(set(codes)) < len(codes):
                got = list(self.labels[i])
                raise InputError(f"partition.labels must name a label once a row; row {i} is {got}. Drop repeats.")
        return held


def _code(label: int | str, row: int, classes: Sequence[str]) -> int:
    """Return which class a label means: the one of that name, or of that number where no name is one."""
    if str(label) in classes:
        return classes.index(str(label))
    if isinstance(label, int) and 0 <= label < len(classes) and not any(map(_is_whole, classes)):
        return label
    if list(classes) == [str(k) for k in range(len(classes))]:
        known = f"in 0..{len(classes) - 1}; row {row} has {label}. Correct the row."
    else:
        known = f"of the data; row {row} has '{label}'. {nearest(str(label), classes)}"
    raise InputError(f"partition.labels must hold labels {known}")


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _check_holders(name: str, holders: int, m_k: int) -> None:
    """Refuse a label that has samples but no holder, or more holders than samples."""
    if m_k and not holders:
        raise InputError(
            f"partition.labels must give every label to a node; nobody holds label {name}, which has {m_k} samples. "
            f"Add {name} to a row."
        )
    if 0 < m_k < holders:
        raise InputError(
            f"partition.labels must leave every holder of a label a sample; {holders} nodes hold label {name}, which "
            f"has {m_k}. Take {name} out of {holders - m_k} rows, or use more data."
        )
