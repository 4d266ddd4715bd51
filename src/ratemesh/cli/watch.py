"""`ratemesh watch`: a run as it goes, in the terminal, from its folder alone."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ratemesh.cli import screen
from ratemesh.errors import InputError
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.trials import is_trials
from ratemesh.metrics.table import CURVES

BARS = "▁▂▃▄▅▆▇█"
PERIOD = 1.0
"""Seconds between looks at the folder."""


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, under way or complete.")],
    once: Annotated[bool, typer.Option("--once", help="Show the state now and return.")] = False,
) -> None:
    """Follow a run: curves as sparklines and the last round of every node.

    Example: `ratemesh watch runs/mine`
    """
    if is_trials(folder):
        raise InputError(
            f"folder must be a single run; '{folder}' holds trials. Watch one of them, e.g. {folder / 'trial-1'}."
        )
    run = RunFolder.existing(folder)
    rounds = run.load_config().rounds
    if once or not screen.console.is_terminal:
        screen.console.print(view(folder.name, run.records(), rounds))
        return
    with Live(view(folder.name, run.records(), rounds), console=screen.console, refresh_per_second=4) as live:
        while not run.metrics.exists():
            time.sleep(PERIOD)
            live.update(view(folder.name, run.records(), rounds))
    screen.say(f"The run is complete. Results: {folder}")


def view(name: str, records: Sequence[dict[str, Any]], rounds: int) -> Group:
    """Return what is shown of a run's records."""
    if not records:
        return Group(Text(f"{name}: no round is recorded yet"))
    return Group(Text(f"{name}: round {len(records)} of {rounds}", style="bold"), curves(records), nodes(records[-1]))


def curves(records: Sequence[dict[str, Any]], width: int = 40) -> Table:
    """Return a row a curve: first value, sparkline, last value."""
    out = Table(box=None, show_header=False, padding=(0, 1))
    for key, label in CURVES.items():
        values = [v for record in records if isinstance(v := record.get(key), int | float)]
        if values:
            out.add_row(label, f"{values[0]:.3g}", sparkline(values, width), f"{values[-1]:.3g}")
    return out


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as a line of block characters, thinned out to `width`; flat where nothing changes.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
    '▁▂▃▄▅▆▇█'
    """
    count = min(width, len(values))
    shown = [values[round(i * (len(values) - 1) / max(count - 1, 1))] for i in range(count)]
    low, high = min(shown), max(shown)
    step = (high - low) / (len(BARS) - 1)
    return "".join(BARS[round((value - low) / step) if step else 0] for value in shown)


def nodes(record: dict[str, Any]) -> Table:
    """Return the last round of every node."""
    keys = [key for key in CURVES if key in record["nodes"][0]]
    out = Table(box=None, padding=(0, 1))
    for heading in ("node", *(CURVES[key] for key in keys)):
        out.add_column(heading, justify="right")
    for i, node in enumerate(record["nodes"]):
        out.add_row(str(i), *("–" if node[key] is None else f"{node[key]:.3g}" for key in keys))
    return out
