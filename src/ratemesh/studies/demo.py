"""The demonstration: three ways to train ten nodes on digits, one table, one figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.experiment.config import merged
from ratemesh.experiment.experiment import Progress, run
from ratemesh.experiment.storage import write_json
from ratemesh.metrics.table import METRICS
from ratemesh.report.figures import draw_structure

ROUNDS = 40

SETTING: dict[str, Any] = {
    "data": {"name": "digits"},
    "graph": {"name": "erdos_renyi", "nodes": 10, "p": 0.5},
    "encoders": [{"name": "mlp"}, {"name": "conv4", "width": 0.25}],
}
"""What the three rows share beside the rounds: data, graph, two architectures, different initial weights, seed."""

PAPER: dict[str, Any] = {"preset": "paper-stable"}

ROWS: dict[str, dict[str, Any]] = {
    "independent": {**PAPER, "graph": {"name": "empty", "nodes": 10}},
    "algorithm-1": PAPER,
    "ratemesh": {
        "preset": "default",
        "local": {"epochs": 5, "batch_size": 50, "schedule": "constant"},
        "method": {"rho": 0.5, "gamma": 5.0, "coupling": {"start": 8}, "warm_start": {"epochs": 0}},
    },
}
"""The last has the coupling that pays on a set this small (experiments/RESULTS.md), and the others' local epochs."""


@dataclass(frozen=True)
class Demo:
    """What the demonstration left: the metrics of its runs, and where things are."""

    rows: list[dict[str, Any]]
    summary: Path
    figure: Path


def run_demo(out: Path, progress: Callable[[str, int], Progress], rounds: int = ROUNDS) -> Demo:
    """Train the three rows into `out` and summarise them.

    Args:
        out: new folder.
        progress: given a row's name and its number of rounds, returns what is called every round.
        rounds: of every row.
    """
    rows = []
    for name, settings in ROWS.items():
        table = {**merged(SETTING, settings), "rounds": rounds}
        rows.append(run(table, out / name, progress=progress(name, rounds)).metrics)
    summary, figure = out / "summary.json", out / "structure.png"
    write_json(summary, [summarise(row) for row in rows])
    draw_structure(out / "ratemesh", figure)
    return Demo(rows, summary, figure)


def summarise(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final numbers of a run that the terminal and the page's small tables show, in their order."""
    named = {key for key, metric in METRICS.items() if metric.heading or metric.short}
    shown = {key: metrics[key] for key in METRICS if key in named and key in metrics}
    sent = shown.pop("bytes_total")
    return {"method": metrics["method"], **shown, "bytes": sent}
