"""One root seed, and any number of named child generators.

Every random draw of a run comes from `generator(seed, *names)`. Names, not a shared stream, tell the
draws apart, so results do not depend on the order in which nodes run or on the number of processes,
and a resumed run needs no saved generator state.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def child_seed(seed: int, *names: object) -> int:
    """Derive a 63-bit seed from the root `seed` and a path of names."""
    path = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """Return the CPU generator that belongs to this path of names."""
    return torch.Generator().manual_seed(child_seed(seed, *names))


@contextmanager
def seeded(seed: int, *names: object) -> Iterator[None]:
    """Seed torch's global generator inside the block only (layer initialisation, dropout)."""
    with torch.random.fork_rng(devices=[]):  # all draws are on the CPU
        torch.manual_seed(child_seed(seed, *names))
        yield
