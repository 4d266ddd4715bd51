"""Numbers as people read them: with units, with as many digits as mean something, with intervals."""

import math
from typing import Any

from ratemesh.metrics.table import BY_AVERAGE, BY_HOLDERS, COLUMNS, METRICS, Column, Judged, Metric
from ratemesh.report.runs import Run, number

DASH = "–"

LONG = 12
"""Entries up to which a list is shown whole."""


def in_bytes(count: float, half: float = math.nan) -> str:
    """Return bytes with a unit, three digits; with `half`, the half-width of an interval, as mean ± half.

    >>> in_bytes(13416160)
    '13.4 MB'
    """
    return _scaled(count, half, (" B", " kB", " MB", " GB", " TB"))


def in_count(count: float, half: float = math.nan) -> str:
    """Return a number of things, three digits.

    >>> in_count(287600)
    '288 k'
    """
    return _scaled(count, half, ("", " k", " M", " G", " T"))


def _scaled(count: float, half: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(count):
        return DASH
    power = 0
    while abs(count) >= 999.5 and power < len(units) - 1:  # 999.6 would be written as 1e+03
        count, half = count / 1000, half / 1000
        power += 1
    return _spread(f"{count:.3g}", half) + units[power]


def in_percent(value: float, half: float = math.nan) -> str:
    """Return a part of 1 as a percentage.

    >>> in_percent(0.967, 0.004)
    '96.7 ± 0.4 %'
    """
    return f"{_spread(f'{100 * value:.1f}', 100 * half)} %" if math.isfinite(value) else DASH


def in_digits(value: float, half: float = math.nan) -> str:
    """Return a plain number, short.

    >>> in_digits(10.716, 2.808)
    '10.7 ± 2.8'
    """
    if not math.isfinite(value):
        return DASH
    if not math.isfinite(half) and value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if not 0.001 <= abs(value) < 1000:
        return _spread(f"{value:.3g}", half)
    # Three decimals, or fewer where an interval leaves only noise there: two digits of it are enough.
    exact = not math.isfinite(half) or half <= 0
    decimals = 3 if exact else min(3, max(0, 1 - math.floor(math.log10(half))))
    return _spread(f"{value:.{decimals}f}", half)


def in_degrees(value: float, half: float = math.nan) -> str:
    """Return an angle."""
    return f"{_spread(f'{value:.1f}', half)}°" if math.isfinite(value) else DASH


def in_places(value: float, half: float, places: int) -> str:
    """Return a number with as many decimals as a table has, and its interval.

    >>> in_places(-0.9941, 0.0012, 4)
    '−0.9941 ± 0.0012'
    """
    return _spread(f"{value:.{places}f}", half).replace("-", "−") if math.isfinite(value) else DASH


def _spread(mean: str, half: float) -> str:
    """Add the half-width to as many decimals as the mean has, or to one digit if that would leave nothing of it."""
    if not math.isfinite(half):
        return mean
    digits = f"{half:.{len(mean.partition('.')[2])}f}" if "e" not in mean else f"{half:.1g}"
    return f"{mean} ± {digits if float(digits) or not half else f'{half:.1g}'}"


UNITS = {
    "number": in_digits,
    "percent": in_percent,
    "degrees": in_degrees,
    "bytes": in_bytes,
    "count": in_count,
}


def written(key: str, value: Any, half: float = math.nan) -> str:
    """Return a metric's value as the tables show it: words and lists too, anything else that is no number as a dash."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _listed(value)
    return UNITS[METRICS.get(key, Metric(key)).unit](number(value), half)


def _listed(values: list[Any]) -> str:
    """Return a list in a cell: whole while it is short, as its range when it is long."""
    words = [written("", value) for value in values]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    if len(words) > LONG:
        known = [v for value in values if math.isfinite(v := number(value))]
        return f"{in_digits(min(known))} to {in_digits(max(known))}" if known else f"{len(words)} values"
    return ", ".join(words) or "none"


def shown(run: Run, key: str) -> str:
    """Return a final number of a run, as mean ± 95 % interval of trials."""
    return written(key, run.metrics.get(key), run.half_width(key))


def judged(run: Run) -> Judged:
    """Return how a run is judged: as in the paper, or where nodes hold different labels, label-aware."""
    return BY_HOLDERS if run.partial else BY_AVERAGE


def own_cells(run: Run) -> dict[str, str]:
    """Return our numbers in the paper's columns, with intervals where there are trials, as in its first column."""
    return {name: _own_cell(run, name, column) for name, column in COLUMNS.items()}


def _own_cell(run: Run, name: str, column: Column) -> str:
    keys = (judged(run).metric,) if name == "accuracy" else column.metrics
    scale = 100 if name == "accuracy" else 1
    parts = [in_places(scale * run.final(key), scale * run.half_width(key), column.decimals) for key in keys]
    if DASH in parts:
        return DASH
    return f"{parts[0]} %" if name == "accuracy" else " / ".join(parts)
