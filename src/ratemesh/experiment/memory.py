"""What nodes need of a machine's memory, and what is free."""

import os
from dataclasses import dataclass
from pathlib import Path

BYTES_A_NUMBER = 4
BYTES_A_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""


@dataclass(frozen=True)
class Memory:
    """Bytes that networks take with gradients and optimisers, and bytes that are free."""

    networks: int
    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needed <= self.free

    def in_words(self, nodes: int) -> str:
        """Say what is needed and what there is; what to do if it is too little."""
        remedy = "" if self.fits else ". Take narrower encoders, or a partition with fewer replicas"
        need = f"{nodes} nodes with {self.networks} networks need {self.needed / 1e9:.3g} GB"
        return f"{need}, {self.free / 1e9:.1f} GB are free{remedy}"


def available_memory() -> int:
    """Return the bytes that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
