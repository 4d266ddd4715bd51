"""A run as it goes: numbers and figures for whoever tracks it, see `trackers`."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError, RatemeshWarning
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.outcome import edge_distances
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.storage import read_json, read_tensors
from ratemesh.report.figures import FIGURES
from ratemesh.report.runs import Run, open_run
from ratemesh.report.trackers import TRACKERS, Tracked, Tracker, check_tracker


@dataclass
class _Board:
    """Where one run is written to, and the last round that was."""

    folder: Path
    trackers: list[Tracker]
    round: int


class Live:
    """Gives runs to trackers, one run after the other.

    Means over nodes are named after the record's keys; every node's own are below "node-i/". Figures are drawn from the
    run folder, so that they are those of the report: after some rounds, and after the end with all there is.
    """

    def __init__(self, names: Sequence[str], every: int | None = None, project: str = "") -> None:
        """Prepare to write.

        Args:
            names: of `TRACKERS`; what is not installed is refused now.
            every: rounds between figures; 0 draws none, None draws after rounds 1, 2, 5, 10, 20, 50 and so on, so that
                a long run spends hardly any time on it.
            project: what runs are filed under, where trackers have such a thing.
        """
        for name in names:
            check_tracker(name)
        self._names = list(dict.fromkeys(names))
        self._every = every
        self._project = project
        self._board: _Board | None = None

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end(ended=error is None)  # of a run that did not end, what is to come is not there to draw

    def track(self, folder: Path, rounds: int, also: Progress) -> Progress:
        """Return what the run in `folder` calls after every round; the run before it is complete then."""
        self._end()

        def on_round(record: Mapping[str, Any]) -> None:
            self._write(folder, record, last=record["round"] == rounds)
            also(record)

        return on_round

    def _write(self, folder: Path, record: Mapping[str, Any], *, last: bool) -> None:
        t = record["round"]
        if self._board is None:  # not before the run has made the folder
            run = Tracked(folder, t, self._project)
            self._board = _Board(folder, [TRACKERS[name](run) for name in self._names], t)
        for tracker in self._board.trackers:
            tracker.round(record)
        self._board.round = t
        if is_due(t, self._every) and not last:  # the last ones wait for the final files
            _figures(self._board)

    def _end(self, *, ended: bool = True) -> None:
        """Draw the last figures of the run that was written, and let it go with its final numbers."""
        board, self._board = self._board, None
        if board is None:
            return
        if ended and self._every != 0:
            _figures(board)
        metrics = RunFolder(board.folder).metrics
        for tracker in board.trackers:
            tracker.finish(read_json(metrics) if ended and metrics.exists() else None)


def open_underway(path: Path) -> Run:
    """Open a run that may still go on: statistics and disagreement are then those of its last checkpoint."""
    run = open_run(path)
    if run.ended:
        return run
    last = sorted(RunFolder(path).checkpoints.glob("round-*"))[-1:]
    states = [read_tensors(file) for folder in last for file in sorted(folder.glob("node-*.safetensors"))]
    if states and all("V" in state for state in states):  # not every method keeps statistics
        parts = [ClassStats.from_tensors(state) for state in states]
        run.stats = ClassStats.sum(parts)
        ends = [tuple(edge["ends"]) for edge in run.network.get("edges", [])]
        run.network = {**run.network, "edges": edge_distances(parts, ends)}
    return run


def is_due(t: int, every: int | None) -> bool:
    """Whether figures are drawn after round t.

    >>> [t for t in range(1, 300) if is_due(t, None)]
    [1, 2, 5, 10, 20, 50, 100, 200]
    """
    if every is None:
        return str(t).rstrip("0") in {"1", "2", "5"}
    return every > 0 and t % every == 0


def _figures(board: _Board) -> None:
    """Draw every figure that the folder has the records for; a figure that fails must not end a run."""
    try:
        run = open_underway(board.folder)
        with tempfile.TemporaryDirectory() as scratch:
            for name in [name for name in FIGURES if _has_news(name, run)]:
                for file in FIGURES[name]([run], Path(scratch) / name, formats=["png"]).files:
                    for tracker in board.trackers:
                        tracker.figure(name, file)
    except (OSError, RatemeshError) as error:
        warnings.warn(f"no figures after round {board.round}: {error}", RatemeshWarning, stacklevel=2)


def _has_news(name: str, run: Run) -> bool:
    """Whether a figure shows more than the last one, or than the scalars do; every figure costs a moment."""
    if name == "cosine":  # features are known before and after training only
        return run.ended or len(run.records) == 1
    return run.ended or name not in {"accuracy-cost", "language"}
