"""What the terminal shows: progress, tables, a run as it goes, complaints."""

import math
import warnings
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.trials import Interval, TrialsResult
from ratemesh.metrics.table import CURVES, EVALUATED, LABEL_AWARE, METRICS, VALIDATION, label_of
from ratemesh.report.progress import Board, console
from ratemesh.report.wording import DASH, in_bytes

__all__ = ["Board", "console"]  # beside what is in here

NAME = 24
"""Letters of a method's name in a table."""

BARS = "▁▂▃▄▅▆▇█"

errors = Console(stderr=True, highlight=False)

LEGEND = (
    "On held-out samples: a node judges its own features (own) and another node's (cross) by its own class subspaces "
    "alone; the nearest sample that another node shows has the same label (1-NN cross); features averaged over nodes, "
    "pooled subspaces, as in the paper (avg.). Disagreement ‖V_i−V_j‖/‖V_i‖ over edges, overlap and effective rank of "
    "the pooled class covariances (ideal: 0, 0, d/K)."
)


def grid(**how: Any) -> Table:
    """Return an empty table as all commands show them."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, **{"padding": (0, 1), **how})


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print final numbers, one row a run."""
    out = grid(padding=(0, 1, 0, 0))
    out.add_column("method", overflow="fold", min_width=12)
    columns = _columns(rows)
    for heading in columns:
        out.add_column(heading.replace(" ", "\n"), justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        cells = ("–".join(_number(key, row.get(key)) for key in keys) for keys in columns.values())
        out.add_row(short(str(row["method"])), *cells)
    console.print(out)
    for label in dict.fromkeys(str(row["method"]) for row in rows):
        if short(label) != label:
            console.print(f"{short(label)}: {label}", style="dim", markup=False)
    console.print(LEGEND, style="dim")


def short(label: str) -> str:
    """Return a method's label for a column of the terminal: its name, and whether there is more to it.

    >>> short("Algorithm 1 + gauge with class means and sketch + late coupling")
    'Algorithm 1 …'
    """
    name, *more = label.split(" + ")
    return shorten(name, NAME, placeholder=" …") + (" …" if more else "")


def chosen(rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str], legend: str) -> None:
    """Print chosen numbers of rows by their names; columns are headings by metric."""
    out = grid()
    out.add_column("")
    for heading in columns.values():
        out.add_column(heading.replace(" ", "\n"), justify="right", vertical="bottom")
    for name, row in rows.items():
        out.add_row(name, *(_number(key, row.get(key)) for key in columns))
    console.print(out)
    console.print(legend, style="dim")


def intervals(result: TrialsResult) -> None:
    """Print the trials' means and 95 % intervals."""
    out = grid(title=result.method, title_justify="left")
    out.add_column("metric")
    out.add_column("mean", justify="right")
    out.add_column("± 95 %", justify="right")
    order = {key: place for place, key in enumerate(METRICS)}
    for key, interval in sorted(result.metrics.items(), key=lambda entry: order.get(entry[0], len(order))):
        if any(value != interval.values[0] for value in interval.values):
            out.add_row(label_of(key), f"{interval.mean:.4g}", f"{interval.half_width:.2g}")
    console.print(out)


def comparison(names: Sequence[str], results: Sequence[TrialsResult]) -> None:
    """Print the main numbers of several settings side by side, with intervals where there are several trials."""
    out = grid()
    out.add_column("")
    columns = _columns([result.metrics for result in results])
    shown = {heading: keys[0] for heading, keys in columns.items() if len(keys) == 1}
    for heading in shown:
        out.add_column(heading, justify="right", vertical="bottom")
    for name, result in zip(names, results, strict=True):
        out.add_row(name, *(_interval(key, result.metrics.get(key)) for key in shown.values()))
    console.print(out)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return headings and their metrics; where nodes hold different labels, the label-aware accuracy is one.

    It takes the place of retrieval, which also asks for classes that a node never saw; both would not fit.
    """
    left_out = "retrieval_cross" if any(LABEL_AWARE in row for row in rows) else LABEL_AWARE
    out: dict[str, list[str]] = {}
    for key, metric in METRICS.items():
        if metric.heading and key != left_out:
            out.setdefault(metric.heading, []).append(key)
    return out


def _interval(key: str, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    exact = math.isinf(interval.half_width) or METRICS[key].unit == "bytes"
    mean, half = _number(key, interval.mean), _number(key, interval.half_width)
    return mean if exact else f"{mean.removesuffix(' %')} ± {half}"


def _number(key: str, value: float | None) -> str:
    """Return a number with as many decimals as all others in its column."""
    if value is None or math.isnan(value):
        return DASH
    metric = METRICS[key]
    if metric.unit == "bytes":
        return in_bytes(value)
    return f"{100 * value:.{metric.digits}f} %" if metric.unit == "percent" else f"{value:.{metric.digits}f}"


def view(name: str, records: Sequence[dict[str, Any]], rounds: int) -> Group:
    """Return what is shown of a run's records."""
    if not records:
        return Group(Text(f"{name}: no round is recorded yet"))
    return Group(Text(f"{name}: round {len(records)} of {rounds}", style="bold"), _curves(records), _nodes(records[-1]))


def _curves(records: Sequence[dict[str, Any]], width: int = 40) -> Table:
    """Return a row a curve: first value, sparkline, last value."""
    out = Table(box=None, show_header=False, padding=(0, 1))
    for key, label in CURVES.items():
        values = [v for record in records if isinstance(v := record.get(key), int | float)]
        if values:
            out.add_row(label, f"{values[0]:.3g}", sparkline(values, width), f"{values[-1]:.3g}")
    evaluations = [record["evaluation"] for record in records if "evaluation" in record]
    for key in (shown for name in EVALUATED for shown in (name, VALIDATION + name)):
        values = [v for found in evaluations if isinstance(v := found.get(key), int | float)]
        if values:
            out.add_row(label_of(key), _number(key, values[0]), sparkline(values, width), _number(key, values[-1]))
    return out


def ending(metrics: Mapping[str, Any]) -> None:
    """Say how the rounds of a run ended, where that is not after the last one with its states."""
    played, judged, best = (metrics.get(key) for key in ("rounds_played", "judged_round", "best_round"))
    if metrics.get("stopped_early"):
        say(f"Stopped after round {played} of {metrics['rounds']}: {metrics['stop_reason']}.")
    if judged != played:
        say(f"Judged and kept: round {best}, the best by {metrics['best_metric']} ({metrics['best_value']:.4g}).")


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


def _nodes(record: dict[str, Any]) -> Table:
    """Return the last round of every node."""
    keys = [key for key in CURVES if key in record["nodes"][0]]
    out = Table(box=None, padding=(0, 1))
    for heading in ("node", *(CURVES[key] for key in keys)):
        out.add_column(heading, justify="right")
    for i, node in enumerate(record["nodes"]):
        out.add_row(str(i), *("–" if node[key] is None else f"{node[key]:.3g}" for key in keys))
    return out


def say(message: str) -> None:
    """Print a line that ends a command."""
    console.print(message, soft_wrap=True, markup=False)


def remark(message: str) -> None:
    """Print a line beside what may go through a pipe."""
    errors.print(message, soft_wrap=True, markup=False)


def complain(message: str) -> None:
    """Print an error."""
    errors.print(f"[bold red]error[/bold red] {escape(message)}", soft_wrap=True)


def warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    """Show our warnings as one line; others as Python does."""
    if issubclass(category, RatemeshWarning):
        errors.print(f"[bold yellow]warning[/bold yellow] {escape(str(message))}", soft_wrap=True)
    else:
        errors.print(warnings.formatwarning(message, category, filename, lineno), markup=False)
