"""Who gets which samples: index lists, and the checker that goes with them."""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from ratemesh.errors import InputError
from ratemesh.specs import nearest

Partitioner = Callable[[Tensor, int, Generator], list[Tensor]]


def iid(y: Tensor, nodes: int, draw: Generator) -> list[Tensor]:
    """Deal shuffled samples out evenly, labels not looked at."""
    return [part.sort().values for part in torch.randperm(len(y), generator=draw).tensor_split(nodes)]


def stratified(y: Tensor, nodes: int, draw: Generator) -> list[Tensor]:
    """Deal every class out evenly, so that Assumption 1 holds as nearly as whole samples allow.

    The deal of a class goes on where that of the class before ended: totals differ by one at most.
    """
    shuffled = torch.randperm(len(y), generator=draw)
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    return [by_class[i::nodes].sort().values for i in range(nodes)]


PARTITIONS: dict[str, Partitioner] = {"iid": iid, "stratified": stratified}


def partition(name: str, y: Tensor, nodes: int, draw: Generator) -> list[Tensor]:
    """Split samples with labels `y` (m,) among nodes; returns one ascending index tensor each."""
    if name not in PARTITIONS:
        raise InputError(f"partition must be a known name; got '{name}'. {nearest(name, PARTITIONS)}")
    if nodes < 1:
        raise InputError(f"nodes must be at least 1; got {nodes}.")
    if nodes * 2 > len(y):
        raise InputError(f"nodes must leave at least 2 samples each; got {nodes} nodes for {len(y)} samples.")
    return PARTITIONS[name](y, nodes, draw)


def is_partition(parts: Sequence[Tensor], m: int) -> bool:
    """Whether the parts are disjoint and together hold 0..m-1."""
    return torch.equal(torch.cat(list(parts)).sort().values, torch.arange(m))
