"""All partitions by name."""

from collections.abc import Mapping
from typing import Any

from torch import Generator, Tensor

from ratemesh.data.partition import Iid, PartitionSpec, Stratified
from ratemesh.data.skew import Dirichlet, Labels, Quantity, Shards
from ratemesh.specs import resolve

PARTITIONS: dict[str, type[PartitionSpec]] = {
    "dirichlet": Dirichlet,
    "iid": Iid,
    "labels": Labels,
    "quantity": Quantity,
    "shards": Shards,
    "stratified": Stratified,
}


def partition(
    how: PartitionSpec | Mapping[str, Any] | str,
    y: Tensor,
    nodes: int,
    draw: Generator,
    num_classes: int | None = None,
) -> list[Tensor]:
    """Split samples with labels `y` (m,) among nodes; returns one ascending index tensor each.

    Args:
        how: a partition, a table with its name and settings, or a bare name.
        num_classes: K; one more than the largest label if not given.
    """
    spec = resolve(how, PARTITIONS, PartitionSpec, "partition")  # type: ignore[type-abstract]
    K = num_classes if num_classes is not None else int(y.max()) + 1 if len(y) else 0
    return spec.split(y, nodes, K, draw)
