"""Interleaved timing: on a shared machine only ratios of things measured in turn mean anything."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Competitor = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one competitor's calls, in the order they were measured."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    @property
    def quartile(self) -> float:
        """Lower quartile in seconds: what the work costs when the neighbours on the machine leave it alone."""
        if len(self.seconds) < 2:
            return self.seconds[0]
        return statistics.quantiles(self.seconds, n=4, method="inclusive")[0]


def interleave(competitors: Mapping[str, Competitor], repeats: int, *, warmup: int = 2) -> dict[str, Timing]:
    """Time the competitors in turn, A, B, C, A, B, C, …; `warmup` turns are not counted.

    Every call finds the caches as the others left them, which is also how a training step finds them.
    """
    samples: dict[str, list[float]] = {name: [] for name in competitors}
    with _no_collector():
        for turn in range(warmup + repeats):
            for name, call in competitors.items():
                began = time.perf_counter()
                call()
                seconds = time.perf_counter() - began
                if turn >= warmup:
                    samples[name].append(seconds)
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def per_call(timings: Mapping[str, Timing], calls: int) -> dict[str, Timing]:
    """Divide timings of competitors that do their work `calls` times over."""
    return {name: Timing(tuple(s / calls for s in timing.seconds)) for name, timing in timings.items()}


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times as long `slow` takes as `fast`, by lower quartiles."""
    return slow.quartile / fast.quartile


def milliseconds(timing: Timing) -> Sequence[str]:
    """Lower quartile and median in milliseconds, as two cells of a table."""
    return f"{timing.quartile * 1e3:.2f}", f"{timing.median * 1e3:.2f}"


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the measurements."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
