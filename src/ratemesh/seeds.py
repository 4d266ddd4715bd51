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
def seeded(seed: int, *names: object, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators inside the block only (layer initialisation, dropout): the CPU's, and a GPU's."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(child_seed(seed, *names))
        yield
