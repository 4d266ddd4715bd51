"""What nodes need of a machine's memory, and what is free."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ratemesh.encoders import EncoderSpec
from ratemesh.errors import InputError

BYTES_A_NUMBER = 4
COPIES = 8
"""Copies of its class statistics that a coupled node is taken to need: a choice, below what peak memory of `smoke` came
to beyond that at d = 16, 9 copies at d = 1000 and 12 at d = 1500. Other methods are charged one."""
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


def make_network(spec: EncoderSpec, shape: tuple[int, ...], d: int, free: int, what: str) -> nn.Module:
    """Make an encoder's network, its parameters counted before memory is taken for them; refuse one without room.

    Args:
        free: bytes that there are.
        what: whose network it is, for messages.
    """
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in spec.network(shape, d).parameters())
    except Exception:  # more than can be counted, or an own network that looks at its numbers: making it will tell
        count = 0
    if BYTES_A_PARAMETER * count > free:
        raise InputError(
            f"{what} must fit into memory with gradients and optimiser; {count:.3g} parameters need "
            f"{BYTES_A_PARAMETER * count / 1e9:.3g} GB, {free / 1e9:.1f} GB are free. Lower d, or take a narrower one."
        )
    try:
        return spec.network(shape, d)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise InputError(f"{what} must fit into memory; it does not. Lower d, or take a narrower one.") from None


def out_of_memory(error: Exception) -> bool:
    """Whether there was no memory left, of the processor or of a device; torch says so in words only."""
    said = str(error)
    return isinstance(error, MemoryError) or any(
        word in said for word in ("allocate memory", "out of memory", "overflow", "Storage size")
    )


def available_memory() -> int:
    """Return the bytes that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
