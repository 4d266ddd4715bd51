"""Cores and pinned torch threads: another number of threads may add up in another order, and round differently."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def pinned(count: int) -> Iterator[None]:
    """Use this many torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
