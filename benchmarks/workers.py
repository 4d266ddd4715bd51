"""One experiment with one and two worker processes: seconds a round, and the same records."""

import json
import statistics
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ratemesh
from benchmarks.machine import Neighbours, settle
from benchmarks.tables import Table
from ratemesh.errors import RatemeshWarning

NODES, SAMPLES = 4, 120
FREE = 0.3
"""Cores that other work may take before a table on two processes says nothing."""


class Layout(NamedTuple):
    """How many processes, and how many torch threads each."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"workers = {self.workers}, threads = {self.threads}"


class Sample(NamedTuple):
    """One round: how many cores other work took meanwhile, and its seconds."""

    others: float
    seconds: float


LAYOUTS = (Layout(1, 2), Layout(1, 1), Layout(2, 1))


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file; fail if the number of workers changes a single byte of the records."""
    repeats, rounds = (1, 3) if quick else (3, 9)
    samples: dict[Layout, list[Sample]] = {layout: [] for layout in LAYOUTS}
    records: dict[Layout, set[bytes]] = {layout: set() for layout in LAYOUTS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for place, layout in enumerate(LAYOUTS):
                out = Path(folder) / f"{repeat}-{place}"
                settle(0 if quick else 45)
                samples[layout] += _play(layout, rounds, out)
                records[layout].add((out / "rounds.jsonl").read_bytes())
    if len(records[Layout(1, 1)] | records[Layout(2, 1)]) != 1:
        raise AssertionError("rounds.jsonl must be the same bytes for 1 and 2 workers at threads = 1; they differ.")
    return [_table({layout: _quiet(values) for layout, values in samples.items()}, rounds)]


def _play(layout: Layout, rounds: int, out: Path) -> list[Sample]:
    """Run the experiment; return every round but the first, which pays for first calls."""
    table: dict[str, Any] = {
        "preset": "plain",
        "rounds": rounds,
        "data": {"name": "benchmarks.images:Images", "train": NODES * SAMPLES},
        "graph": {"name": "complete", "nodes": NODES},
        "encoders": [{"name": "conv4"}],
        "local": {"epochs": 1, "batch_size": 60},
        "method": {"name": "alg1", "coupling": {"schedule": "constant"}},
        "engine": {"name": "inprocess", "workers": layout.workers, "threads": layout.threads},
        "output": {"checkpoint_every": rounds, "features": 0},
    }
    neighbours = Neighbours()
    others: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatemeshWarning)
        ratemesh.run(table, out, progress=lambda _: others.append(neighbours.cores()))
    lines = (out / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = [float(json.loads(line)["seconds"]) for line in lines]
    return [Sample(*pair) for pair in zip(others, seconds, strict=True)][1:]


def _quiet(samples: list[Sample]) -> list[Sample]:
    """Keep the quarter of the rounds during which other work took least; their own seconds are not looked at."""
    return sorted(samples, key=lambda sample: sample.others)[: -(-len(samples) // 4)]


def _table(samples: Mapping[Layout, list[Sample]], rounds: int) -> Table:
    seconds = {layout: statistics.median(sample.seconds for sample in values) for layout, values in samples.items()}
    rows = [
        [
            str(layout),
            f"{seconds[layout]:.2f}",
            f"{seconds[Layout(1, 1)] / seconds[layout]:.2f}×",
            f"{seconds[Layout(1, 2)] / seconds[layout]:.2f}×",
            f"{statistics.median(sample.others for sample in values):.2f}",
        ]
        for layout, values in samples.items()
    ]
    busiest = max(statistics.median(sample.others for sample in values) for values in samples.values())
    warning = "" if busiest < FREE else " Not settled by this run: other work held cores that two processes need."
    return Table(
        "Worker processes",
        f"How much faster a round is when processes, not threads, share the work of all nodes.{warning}",
        ("", "s a round", "speed-up over 1 worker, 1 thread", "over 1 worker, 2 threads", "cores taken by other work"),
        rows,
        f"{NODES} nodes, complete graph, {SAMPLES} images of 28×28 a node, conv4 at full width, one local epoch, batch "
        f"60; runs of {rounds} rounds in turn, first round not counted. Two busy processes need two free cores, so the "
        "medians are over the quarter of the rounds during which other work took least. rounds.jsonl of 1 "
        "and 2 workers at one thread was compared: the same bytes in every run.",
    )
