"""Rows of a batch, laid out class by class, so that one batched product serves all classes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grouping:
    """Where each row of a batch goes in a zero-padded array of shape (G, c, ...).

    Every group holds rows of one class only; a class may fill several groups.

    Attributes:
        place: (n,) index of a row in the flattened (G*c) layout.
        owner: (G,) class of each group.
        groups, rows: G and c.
        m: (K,) number of rows per class.
    """

    place: Tensor
    owner: Tensor
    groups: int
    rows: int
    m: Tensor

    @property
    def one_per_class(self) -> bool:
        """Whether group k is class k, whole."""
        return self.groups == self.m.shape[0]

    def pad(self, A: Tensor) -> Tensor:
        """Lay rows (n, d) out as (G, c, d), zeros where there is no row."""
        flat = A.new_zeros(self.groups * self.rows, A.shape[1])
        return flat.index_copy(0, self.place, A).view(self.groups, self.rows, A.shape[1])

    def unpad(self, P: Tensor) -> Tensor:
        """Take the rows back: (G, c, d) to (n, d)."""
        return P.reshape(-1, P.shape[-1]).index_select(0, self.place)

    def sum_by_class(self, P: Tensor) -> Tensor:
        """Add the groups of each class: (G, ...) to (K, ...)."""
        if self.one_per_class:
            return P
        return P.new_zeros(self.m.shape[0], *P.shape[1:]).index_add(0, self.owner, P)

    def of_class(self, A: Tensor) -> Tensor:
        """Give each group its class's entry: (K, ...) to (G, ...)."""
        return A if self.one_per_class else A.index_select(0, self.owner)


def group_by_class(y: Tensor, num_classes: int, *, whole: bool = False) -> Grouping:
    """Plan the layout of rows with labels `y` (n,).

    With `whole` each class is exactly one group, however long (needed for Gram matrices). Otherwise
    no group is longer than twice the mean class size, so padding costs a small multiple of the data even
    when one class holds almost everything.
    """
    n = y.shape[0]
    m = torch.bincount(y, minlength=num_classes)
    order = torch.argsort(y, stable=True)
    first = torch.cumsum(m, 0) - m
    rank = torch.empty_like(y)
    rank[order] = torch.arange(n, device=y.device) - first[y[order]]
    longest = max(int(m.max()), 1)
    rows = longest if whole else min(longest, max(2 * -(-n // num_classes), 1))
    if rows == longest:
        owner = torch.arange(num_classes, device=y.device)
        return Grouping(y * rows + rank, owner, num_classes, rows, m)
    per_class = torch.clamp(-(-m // rows), min=1)
    start = torch.cumsum(per_class, 0) - per_class
    owner = torch.repeat_interleave(torch.arange(num_classes, device=y.device), per_class)
    place = (start[y] + rank // rows) * rows + rank % rows
    return Grouping(place, owner, int(per_class.sum()), rows, m)
