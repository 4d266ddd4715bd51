"""What the terminal shows: progress, tables, catalogues, complaints."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ratemesh.data import DATASETS, PARTITIONS
from ratemesh.encoders import ENCODERS
from ratemesh.engines import ENGINES
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.experiment import Progress as OnRound
from ratemesh.experiment.presets import PRESETS
from ratemesh.experiment.trials import Interval, TrialsResult
from ratemesh.graph import TOPOLOGIES
from ratemesh.messages.codecs import CODECS
from ratemesh.methods import METHODS
from ratemesh.metrics.table import LABEL_AWARE, METRICS
from ratemesh.report.wording import DASH, in_bytes
from ratemesh.specs import NamedSpec, Spec, nearest

console = Console(soft_wrap=False, highlight=False)
errors = Console(stderr=True, highlight=False)

CATALOGUES: dict[str, Mapping[str, type[NamedSpec]]] = {
    "codecs": CODECS,
    "datasets": DATASETS,
    "encoders": ENCODERS,
    "engines": ENGINES,
    "methods": METHODS,
    "partitions": PARTITIONS,
    "topologies": TOPOLOGIES,
}


class Board:
    """Progress of one or more runs: bars on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Board":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bars.stop()

    def track(self, name: str, rounds: int) -> OnRound:
        """Return what a run calls after every round."""
        task = self._bars.add_task(name, total=rounds, numbers="starting")
        began = time.monotonic()
        first: list[int] = []

        def on_round(record: Mapping[str, Any]) -> None:
            t = record["round"]
            first.append(t - 1) if not first else None
            numbers = in_words(record)
            self._bars.update(task, completed=t, numbers=numbers)
            if not console.is_terminal:
                left = (time.monotonic() - began) / (t - first[0]) * (rounds - t)
                console.print(f"{name}  round {t}/{rounds}  {numbers}  about {left:.0f} s left", soft_wrap=True)

        return on_round


def in_words(record: Mapping[str, Any]) -> str:
    """Return a round's numbers for one line."""
    distance = record.get("disagreement")
    apart = "" if distance is None or math.isnan(distance) else f"  disagreement {distance:.3f}"
    return f"{len(record['nodes'])} nodes  ΔR {record['reduction']:.2f}{apart}"


LEGEND = (
    "Accuracies on held-out samples by nearest subspace: features averaged over nodes (paper), residuals added "
    "(fused), one node alone. Disagreement ‖V_i−V_j‖/‖V_i‖ over edges, overlap and effective rank of the pooled "
    "class covariances (ideal: 0, 0, d/K)."
)


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print final numbers, one row a run."""
    out = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    out.add_column("method", overflow="fold", min_width=12)
    columns = _columns(rows)
    for heading in columns:
        out.add_column(heading.replace(" ", "\n"), justify="right", vertical="bottom")
    for row in rows:
        cells = ("–".join(_number(key, row.get(key)) for key in keys) for keys in columns.values())
        out.add_row(str(row["method"]), *cells)
    console.print(out)
    console.print(LEGEND, style="dim")


def intervals(result: TrialsResult) -> None:
    """Print the trials' means and 95 % intervals."""
    out = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=result.method, title_justify="left")
    out.add_column("metric")
    out.add_column("mean", justify="right")
    out.add_column("± 95 %", justify="right")
    for key, interval in result.metrics.items():
        if any(value != interval.values[0] for value in interval.values):
            out.add_row(key, f"{interval.mean:.4g}", f"{interval.half_width:.2g}")
    console.print(out)


def comparison(names: Sequence[str], results: Sequence[TrialsResult]) -> None:
    """Print the main numbers of several settings side by side, with intervals where there are several trials."""
    out = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    out.add_column("")
    columns = _columns([result.metrics for result in results])
    shown = {heading: keys[0] for heading, keys in columns.items() if len(keys) == 1}
    for heading in shown:
        out.add_column(heading, justify="right", vertical="bottom")
    for name, result in zip(names, results, strict=True):
        out.add_row(name, *(_interval(key, result.metrics.get(key)) for key in shown.values()))
    console.print(out)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return headings and their metrics; where nodes hold different labels, the label-aware accuracy comes first."""
    partial = any(LABEL_AWARE in row for row in rows)
    first = {METRICS[LABEL_AWARE].heading: [LABEL_AWARE]} if partial else {}
    others: dict[str, list[str]] = {}
    for key, metric in METRICS.items():
        if metric.heading and key != LABEL_AWARE:
            others.setdefault(metric.heading, []).append(key)
    return first | others


def _interval(key: str, interval: Interval | None) -> str:
    if interval is None:
        return DASH
    exact = math.isinf(interval.half_width) or METRICS[key].unit == "bytes"
    return _number(key, interval.mean) + ("" if exact else f" ± {_number(key, interval.half_width)}")


def _number(key: str, value: float | None) -> str:
    """Return a number with as many decimals as all others in its column."""
    if value is None or math.isnan(value):
        return DASH
    metric = METRICS[key]
    if metric.unit == "bytes":
        return in_bytes(value)
    return f"{100 * value:.{metric.digits}f} %" if metric.unit == "percent" else f"{value:.{metric.digits}f}"


def catalogue(what: str) -> None:
    """Print the names of one kind with their settings."""
    if what == "presets":
        console.print("\n".join(PRESETS))
        return
    if what not in CATALOGUES:
        raise InputError(f"list takes a kind of thing; got '{what}'. {nearest(what, [*CATALOGUES, 'presets'])}")
    for name, cls in CATALOGUES[what].items():
        console.print(f"[bold]{name}[/bold]  {(cls.__doc__ or '').splitlines()[0]}", soft_wrap=True)
        _settings(cls, "  ")


def _settings(cls: type[Spec], indent: str) -> None:
    for name, field in cls.model_fields.items():
        inner = field.annotation
        if name == "name":
            continue
        if isinstance(inner, type) and issubclass(inner, Spec) and not issubclass(inner, NamedSpec):
            console.print(f"{indent}{name}.", markup=False)
            _settings(inner, indent + "  ")
        else:
            value = field.get_default()
            default = "required" if field.is_required() else f"= {getattr(value, 'name', value)}"
            console.print(f"{indent}{name} {default}  {field.description or ''}", soft_wrap=True, markup=False)


def say(message: str) -> None:
    """Print a line that ends a command."""
    console.print(message, soft_wrap=True, markup=False)


def complain(message: str) -> None:
    """Print an error."""
    errors.print(f"[bold red]error[/bold red] {escape(message)}", soft_wrap=True)


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Show our warnings as one line; others as Python does."""
    if issubclass(category, RatemeshWarning):
        errors.print(f"[bold yellow]warning[/bold yellow] {escape(str(message))}", soft_wrap=True)
    else:
        errors.print(warnings.formatwarning(message, category, filename, lineno, line), markup=False)
