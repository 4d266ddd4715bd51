"""Table I: ours with cost, and the paper's beside it, as text, Markdown, LaTeX and JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ratemesh.experiment.config import Config
from ratemesh.experiment.records import SCHEMA
from ratemesh.experiment.storage import write_json, write_text
from ratemesh.metrics.table import COLUMNS
from ratemesh.report.cited import DOUBT, SOURCE, TABLE
from ratemesh.report.figures import draw_grids
from ratemesh.report.folders import open_runs
from ratemesh.report.runs import Run, number
from ratemesh.report.wording import DASH, in_bytes, in_count, in_digits, own_cells
from ratemesh.studies.compare import Track, run_comparison
from ratemesh.studies.panels import ROWS

COST: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes_per_round": ("Bytes a round", in_bytes),
    "bytes_total": ("Bytes in all", in_bytes),
    "sample_passes": ("Sample passes", in_count),
    "cpu_seconds": ("CPU seconds", lambda value: in_digits(round(value)) if math.isfinite(value) else DASH),
}
"""Headings of what a row cost, and how each number is written."""

SERVER = (
    "The server of FedU², FedSimCLR, FedU and Orchestra is a duty of one of the nodes, whose own share crosses no "
    "edge: beside the nodes it would send N/(N − 1) times as many bytes."
)


@dataclass(frozen=True)
class Line:
    """A printed row: whose it is, its cells by column, and which notes mark them."""

    method: str
    whose: str
    cells: Mapping[str, str]
    marks: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """The whole table: lines, what their marks mean, and our numbers as numbers."""

    dataset: str
    lines: Sequence[Line]
    notes: Sequence[str]
    numbers: Mapping[str, Any]


def run_table(
    configs: Mapping[str, Config], out: Path, trials: int, progress: Track | None = None, *, jobs: int = 1
) -> Table:
    """Train every row into out/NAME, or go on where it stopped; write out/table1.txt, .md, .tex, .json and figures."""
    run_comparison(configs, out, trials, progress, jobs=jobs)
    found = make_table(out, next(iter(configs.values())).data.name)
    for suffix, render in {"txt": as_text, "md": as_markdown, "tex": as_latex}.items():
        write_text(out / f"table1.{suffix}", render(found))
    write_json(out / "table1.json", found.numbers)
    runs = _runs(out)
    draw_grids({row.title: runs[row.name] for row in ROWS if row.name in runs}, out / "table1")
    return found


def make_table(out: Path, dataset: str) -> Table:
    """Read the rows that are there, and set the paper's beside them where it has any."""
    runs = _runs(out)
    cited = TABLE.get(dataset, {})
    lines, numbers = [], {}
    for row in ROWS:
        if row.name in runs:
            run = runs[row.name]
            whose = f"ours, {len(run.complete)} trials" if run.complete else "ours"
            cost = costs(run)
            cells = {**own_cells(run), **{key: written(cost[key]) for key, (_, written) in COST.items()}}
            lines.append(Line(row.title, whose, cells, {}))
            numbers[row.name] = {**_numbers(run), **cost}
        if row.title in cited:
            paper = cited[row.title]
            cells = {column: cell.text for column, cell in paper.items()}
            marks = {
                column: "[1][2]" if cell.doubtful else "[1]" for column, cell in paper.items() if cell.text != DASH
            }
            lines.append(Line(row.title, "paper", cells, marks))
    notes = [SERVER, *([f"[1] Cited, not measured here: {SOURCE}"] if cited else [])]
    notes += [f"[2] {DOUBT}"] if any("[1][2]" in line.marks.values() for line in lines) else []
    return Table(dataset, lines, notes, {"schema": SCHEMA, "dataset": dataset, "rows": numbers})


def _runs(out: Path) -> dict[str, Run]:
    """Return the rows that are there, by the name of their folder."""
    return {run.name: run for run in open_runs([out / row.name for row in ROWS if (out / row.name).is_dir()])[0]}


def costs(run: Run) -> dict[str, float]:
    """Return bytes a round and in all, sample passes, and CPU seconds of all nodes' rounds; means over trials."""
    runs = run.complete or [run]
    total = fmean(number(one.metrics.get("bytes_total")) for one in runs)
    cpu = [sum(one.cpu_seconds) if len(one.cpu_seconds) == len(one.records) else math.nan for one in runs]
    return {
        "bytes_per_round": total / number(run.setting("rounds")),
        "bytes_total": total,
        "sample_passes": fmean(number(one.metrics.get("sample_passes")) for one in runs),
        "cpu_seconds": fmean(cpu),
    }


def _numbers(run: Run) -> dict[str, Any]:
    """Return our numbers unrounded, with intervals where there are trials."""
    keys = [*(key for column in COLUMNS.values() for key in column.metrics), "acc_knn"]
    means = {key: number(run.metrics.get(key)) for key in keys}
    half = {f"{key}_half_width": run.intervals[key].half_width for key in keys if key in run.intervals}
    return {"method": run.metrics.get("method"), "trials": len(run.complete) or 1, **means, **half}


def _rows(table: Table, mark: Callable[[str], str]) -> list[list[str]]:
    """Return the headings and all lines; what is cited says so, and what cannot be right as well."""
    headings = [*(column.heading for column in COLUMNS.values()), *(heading for heading, _ in COST.values())]
    rows = [["Method", "", *headings]]
    for line in table.lines:
        marks = {column: mark(words) for column, words in line.marks.items()}
        cells = [line.cells.get(column, "") + marks.get(column, "") for column in (*COLUMNS, *COST)]
        rows.append([line.method, line.whose, *cells])
    return rows


def as_text(table: Table) -> str:
    """Return the table in aligned columns.

    Columns are as wide as their widest cell; numbers stand at the right.
    """
    rows = _rows(table, lambda words: f" {words}")
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    aligned = [
        "  ".join(
            cell.ljust(w) if c < 2 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    ruled = [aligned[0], "-" * len(aligned[0]), *aligned[1:]]
    return "\n".join([f"Table I, {table.dataset}", "", *(line.rstrip() for line in ruled), "", *table.notes, ""])


def as_markdown(table: Table) -> str:
    """Return the table in Markdown."""
    rule = ["---", "---", *["---:"] * (len(COLUMNS) + len(COST))]
    headings, *rows = _rows(table, lambda words: f" {words}")
    body = "\n".join(f"| {' | '.join(row)} |" for row in [headings, rule, *rows])
    return "\n\n".join([f"### Table I, {table.dataset}", body, *table.notes]) + "\n"


def as_latex(table: Table) -> str:
    """Return the table in LaTeX; it needs no package."""
    rows = _rows(table, lambda words: f"\\textsuperscript{{{words}}}")
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    columns = "ll" + "r" * (len(COLUMNS) + len(COST))
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline"]
    notes = [f"% {note}" for note in table.notes]
    return "\n".join([*notes, *head, *lines[1:], r"\hline", r"\end{tabular}", ""])


def _latex(words: str) -> str:
    for plain, written in {"%": r"\%", "±": r"$\pm$", "−": "$-$", "²": "$^2$", DASH: "--"}.items():
        words = words.replace(plain, written)
    return words
