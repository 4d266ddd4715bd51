"""Pinned torch threads: another number of threads may add up in another order, and round differently."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def pinned(count: int) -> Iterator[None]:
    """Use this many torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
