"""How far a run is, on the terminal."""

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ratemesh.experiment.experiment import Progress as OnRound
from ratemesh.metrics.table import VALIDATION

console = Console(soft_wrap=False, highlight=False)


class Board(Progress):
    """Progress of one or more runs: bars on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )

    def follow(self, name: str, rounds: int) -> OnRound:
        """Return what a run calls after every round."""
        task = self.add_task(name, total=rounds, numbers="starting")
        began = time.monotonic()
        first: list[int] = []
        judged = [""]  # what the last evaluation said stays until the next one

        def on_round(record: Mapping[str, Any]) -> None:
            t = record["round"]
            first.append(t - 1) if not first else None
            judged[0] = _judged(record.get("evaluation", {})) or judged[0]
            numbers = in_words(record) + judged[0]
            self.update(task, completed=t, numbers=numbers)
            if not console.is_terminal:
                left = (time.monotonic() - began) / (t - first[0]) * (rounds - t)
                console.print(f"{name}  round {t}/{rounds}  {numbers}  about {left:.0f} s left", soft_wrap=True)

        return on_round


def in_words(record: Mapping[str, Any]) -> str:
    """Return a round's numbers for one line."""
    distance = record.get("disagreement")
    apart = "" if distance is None or math.isnan(distance) else f"  disagreement {distance:.3f}"
    count = len(record["nodes"])
    return f"{count} node{'s' if count != 1 else ''}  ΔR {record['reduction']:.2f}{apart}"


def _judged(evaluation: Mapping[str, Any]) -> str:
    """Return own and cross accuracy of an evaluation and which samples they are of; nothing where there are none."""
    prefix, words = (VALIDATION, "val.") if VALIDATION + "acc_own" in evaluation else ("", "test")
    found = {key: evaluation.get(f"{prefix}acc_{key}") for key in ("own", "cross")}
    told = [f"{key} {100 * value:.1f} %" for key, value in found.items() if value is not None and math.isfinite(value)]
    return f"  {words} {' '.join(told)}" if told else ""
