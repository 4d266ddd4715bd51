"""The report: run folders in, one HTML file out that needs nothing else."""

import base64
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ratemesh._version import __version__
from ratemesh.errors import InputError
from ratemesh.experiment.storage import write_text
from ratemesh.metrics import table
from ratemesh.metrics.table import ASIDES, LANGUAGE, MATRICES, METRICS, Metric
from ratemesh.report import cited, wording
from ratemesh.report.figures import FIGURES, Drawn, style
from ratemesh.report.figures.language import one_model
from ratemesh.report.folders import open_runs
from ratemesh.report.runs import Run
from ratemesh.report.summary import COSTS, cost_of, same_data, summary, title
from ratemesh.report.wording import DASH, in_digits

EMBEDDED = {"cosine": "png"}
"""Format of a figure in the page, where it is not svg: a matrix of pixels gains nothing from vectors."""

TYPES = {".svg": "image/svg+xml", ".png": "image/png"}

PIXELS = 1.15
"""Pixels a point of a figure on a phone: letters of 9 points are 10 pixels high."""

BESIDE_LANGUAGE = {"acc_hearsay", "acc_own_gaussian", "acc_cross_gaussian", "pair_cosine"}
HIDDEN = {"schema", "method", "undefined", "stopped_early", *MATRICES}


@dataclass(frozen=True)
class Written:
    """What a report left: the page, the names of its runs, and what it had to leave out."""

    page: Path
    runs: tuple[str, ...]
    notes: tuple[str, ...]


def write_report(folders: Sequence[Path], out: Path, figures: Path | None = None) -> Written:
    """Write one page about all runs in the folders; the same folders give the same bytes.

    Args:
        folders: run folders, or folders that hold some (trials, comparisons, the demonstration).
        out: the HTML file; one that exists is replaced.
        figures: where to keep the figures as PNG, SVG and PDF; None keeps none.
    """
    if out.suffix.lower() not in {".html", ".htm"} or out.is_dir():
        raise InputError(f"output must be an HTML file; got '{out}'. Give a name that ends in .html.")
    runs, notes = open_runs(folders)
    notes += [f"{run.name}: {note}" for run in runs for note in run.notes]
    with tempfile.TemporaryDirectory() as scratch:
        drawn = _draw(runs, figures or Path(scratch), keep=figures is not None)
        page = render(runs, notes, drawn)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output must be in a folder that can be made; got '{out}' ({error}).") from None
    write_text(out, page)
    return Written(out, tuple(run.name for run in runs), tuple(notes))


def _draw(runs: Sequence[Run], folder: Path, *, keep: bool) -> dict[str, Drawn]:
    """Draw every figure; the format that the page embeds comes first, the others only to be kept."""
    out = {}
    for name, draw in FIGURES.items():
        first = EMBEDDED.get(name, "svg")
        others = [suffix for suffix in style.FORMATS if suffix != first] if keep else []
        out[name] = draw(runs, folder / name, formats=[first, *others])
    return out


def render(runs: Sequence[Run], notes: Sequence[str], figures: Mapping[str, Drawn]) -> str:
    """Return the page."""
    costs = [cost_of(run) for run in runs]
    known = [run for run in runs if run.metrics]
    beside = _beside_paper(runs)
    page = environment().get_template("page.html")
    return page.render(
        title=title(runs),
        summary=summary(runs, costs),
        notes=notes,
        runs=runs,
        figures=figures,
        lines={run.name: style.look(index) for index, run in enumerate(runs)},
        ranked=len(known) > 1 and len(same_data(known)) == 1,
        averaged=any(len(run.complete) > 1 for run in runs),
        undefined=[f"{run.name}: {why}" for run in known for why in _undefined(run)],
        beside_paper=beside,
        not_beside_paper=[run.name for run in runs if not _paper_data(run)],
        data=sorted({_replacing(run) + str(run.setting("data.name", "not known")) for run in runs}),
        partial_beside_paper=any(run.partial for ours in beside.values() for run in ours),
        costs=costs,
        cost_notes=[f"{run.name}: {note}" for run, cost in zip(runs, costs, strict=True) for note in cost.notes],
        differences={key: row for key, row in _rows([run.config for run in runs]).items() if len(set(row)) > 1},
        environment=_rows([{k: v for k, v in run.environment.items() if k != "schema"} for run in runs]),
    )


def environment() -> Environment:
    """Return where templates find what they need; text is escaped, so nothing in a run folder can break a page."""
    found = Environment(
        loader=PackageLoader("ratemesh.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["symbols"] = symbols
    found.tests["finite"] = math.isfinite
    found.globals |= {"version": __version__, "cited": cited, "style": style, "tables": table, "wording": wording}
    found.globals |= {"COSTS": COSTS, "embedded": _embedded, "readable_width": readable_width}
    found.globals |= {"metric_keys": _metric_keys, "language_keys": _language_keys, "one_model": one_model}
    found.globals |= {"best_of": _best, "aside": _aside}
    return found


def symbols(words: str) -> Markup:
    """Return words with R^c and V_i as a reader expects them.

    >>> symbols("R^c_i < V_i")
    Markup('R<sup>c</sup><sub>i</sub> &lt; V<sub>i</sub>')
    """
    raised = re.sub(r"\^c(?=\b|_)", "<sup>c</sup>", str(escape(words)))
    return Markup(re.sub(r"_([ijk])\b", r"<sub>\1</sub>", raised))


def readable_width(file: Path) -> int:
    """Return the width in a small window, which then scrolls, at which the letters of a figure can be read."""
    content = file.read_bytes()
    if file.suffix == ".png":
        points = int.from_bytes(content[16:20]) / style.DPI * 72
    else:
        found = re.search(rb'width="([\d.]+)pt"', content)
        points = float(found[1]) if found else 0
    return round(PIXELS * points)


def _embedded(file: Path) -> str:
    """Return a picture as a data URL."""
    return f"data:{TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _metric_keys(runs: Sequence[Run]) -> list[str]:
    """Return the numbers that runs have: known ones in their order, then others."""
    there = dict.fromkeys(key for run in runs for key in run.metrics if key not in HIDDEN)
    own = [key for key in there if not any(key.removesuffix(end) in there for end in ASIDES if key.endswith(end))]
    return [key for key in METRICS if key in there] + [key for key in own if key not in METRICS]


def _language_keys(runs: Sequence[Run]) -> list[str]:
    """Return the numbers that runs have on how well nodes understand each other."""
    return [key for key in _metric_keys(runs) if key.removesuffix("_fine") in LANGUAGE or key in BESIDE_LANGUAGE]


def _best(key: str, runs: Sequence[Run]) -> float:
    """Return the best value; NaN unless one way is better, and the runs differ and can be ranked."""
    better = METRICS.get(key, Metric(key)).better if len(same_data(runs)) == 1 else ""
    known = [value for run in runs if math.isfinite(value := run.final(key))]
    if not better or len(set(known)) < 2:
        return math.nan
    return max(known) if better == "high" else min(known)


def _aside(key: str, run: Run) -> str:
    """Return what belongs to a number: its expectation without structure, and how many samples it is of."""
    floor, n = run.final(f"{key}_floor"), run.final(f"{key}_n")
    lacking = len(run.complete) - len(run.intervals[key].values) if key in run.intervals else 0
    parts = {
        f"without structure {in_digits(floor)}": math.isfinite(floor),
        f"n = {n:,.1f}".removesuffix(".0"): math.isfinite(n),
        f"not defined in {lacking} of {len(run.complete)} trials": lacking,
    }
    return "; ".join(words for words, holds in parts.items() if holds)


def _undefined(run: Run) -> list[str]:
    reasons = run.metrics.get("undefined")
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else []


def _beside_paper(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by the part of the paper's table that is on their data."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        if key := _paper_data(run):
            out.setdefault(key, []).append(run)
    return out


def _paper_data(run: Run) -> str | None:
    """Return the part of the table that is on the run's data: the data set itself, not a file in its place."""
    return None if _replacing(run) else cited.table_for(str(run.setting("data.name", "")))


def _replacing(run: Run) -> str:
    """Return what a run has in place of the paper's data set that it names; nothing if it has that, or another."""
    if cited.table_for(str(run.setting("data.name", ""))) is None:
        return ""
    if run.setting("data.path"):
        return "a file in place of "
    return "superclasses of " if run.setting("data.coarse") else ""


def _rows(contents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return nested tables side by side: by key "a.b", the value that each has."""
    flat = [flattened(content) for content in contents]
    keys = dict.fromkeys(key for entry in flat for key in entry)
    return {key: [str(entry.get(key, DASH)) for entry in flat] for key in keys}


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with keys "a.b"; lists stay whole.

    >>> flattened({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    out: dict[str, Any] = {}
    for key, value in content.items():
        out.update(flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out
