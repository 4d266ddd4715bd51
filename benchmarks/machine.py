"""What kind of machine this is, and how much of it other work takes; nothing that names it."""

import os
import platform
import time
from pathlib import Path

import torch

from ratemesh import __version__

_TICK = os.sysconf("SC_CLK_TCK")


def describe() -> str:
    """Return the kind of machine and the versions that decide speed."""
    cores = len(os.sched_getaffinity(0))
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}, ratemesh {__version__}"
    return f"{cores} cores {platform.machine()}, CPU only, {versions}"


class Neighbours:
    """How many cores other work took since the last look (Linux; NaN elsewhere)."""

    def __init__(self) -> None:
        self._seconds, self._at = _others(), time.perf_counter()

    def cores(self) -> float:
        """Return the mean number of cores taken by others since the last call."""
        seconds, at = _others(), time.perf_counter()
        mean = (seconds - self._seconds) / (at - self._at)
        self._seconds, self._at = seconds, at
        return max(mean, 0.0)


def settle(limit: float, *, free: float = 0.2) -> None:
    """Wait until other work takes less than `free` cores for two seconds, at most `limit` seconds."""
    began, neighbours = time.perf_counter(), Neighbours()
    while time.perf_counter() - began < limit:
        time.sleep(2)
        if neighbours.cores() < free:
            return


def _others() -> float:
    """Return processor seconds since boot that neither this process nor its children used."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return float("nan")
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
    own = sum(_own_ticks(path) for path in Path("/proc").glob("[0-9]*/stat"))
    return (user + nice + system + irq + softirq + steal - own) / _TICK


def _own_ticks(path: Path) -> int:
    """Return user and system ticks of a process that is ours, and of its children that have ended; else 0."""
    try:
        fields = path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except OSError:  # it has just ended
        return 0
    ours = str(os.getpid())
    return sum(map(int, fields[11:15])) if ours in (path.parent.name, fields[1]) else 0
