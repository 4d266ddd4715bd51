"""Batches in which every class that a node holds appears equally often."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ratemesh.errors import InputError


def check_room(batch_size: int, classes: int, where: str = "batch_size") -> None:
    """Refuse a batch that has no row for each of a node's classes; `where` is the setting to name."""
    fewest = max(2, classes)
    if batch_size < fewest:
        raise InputError(
            f"{where} must leave room for every class in a balanced batch; got {batch_size} for a node with {classes} "
            f"classes. Take at least {fewest}, or set local.balance = false."
        )


def balanced_batches(y: Tensor, batch_size: int, epochs: int, draw: Generator) -> Iterator[Tensor]:
    """Yield index batches, of equal size to within one row a class, with equally many rows of every class in `y`.

    An epoch goes once through the largest class; samples of rarer classes come again, all as often as each other to
    within once, shuffled anew every time. So an epoch has K_held · max_k m_k rows, not m.

    Args:
        y: (m,) labels of the node's samples; classes without samples do not count.
        batch_size: rows of a batch at most.
    """
    if len(y) == 0:
        raise InputError("y must hold labels to make batches of; got none. Give the node data.")
    classes = [torch.nonzero(y == k).flatten() for k in torch.unique(y)]
    check_room(batch_size, len(classes))
    most = max(len(rows) for rows in classes)
    parts = -(-most // (batch_size // len(classes)))
    parts = max(1, min(parts, most * len(classes) // 2))  # no batch of one row
    for _ in range(epochs):
        columns = [_repeated(rows, most, draw).tensor_split(parts) for rows in classes]
        yield from (torch.cat(pieces) for pieces in zip(*columns, strict=True))


def _repeated(rows: Tensor, length: int, draw: Generator) -> Tensor:
    """Return so many of `rows`: whole shuffles one after the other, the last one cut."""
    shuffles = [rows[torch.randperm(len(rows), generator=draw)] for _ in range(-(-length // len(rows)))]
    return torch.cat(shuffles)[:length]
