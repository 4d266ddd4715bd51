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

COST = {
    "bytes_per_round": "Bytes a round",
    "bytes_total": "Bytes in all",
    "sample_passes": "Sample passes",
    "cpu_seconds": "CPU seconds",
}
SERVER = (
    "The server of FedU², FedSimCLR, FedU and Orchestra is a duty of one of the nodes, whose own share crosses no "
    "edge: beside the nodes it would send N/(N − 1) times as many bytes."
)


@dataclass(frozen=True)
class Line:
    """A printed row: whose it is, and its cells by column."""

    method: str
    whose: str
    cells: Mapping[str, str]
    doubtful: frozenset[str] = frozenset()


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
            lines.append(Line(row.title, _often(run), {**own_cells(run), **cost_cells(run)}))
            numbers[row.name] = _numbers(run)
        if row.title in cited:
            cells = cited[row.title]
            doubtful = frozenset(column for column, cell in cells.items() if cell.doubtful)
            lines.append(Line(row.title, "paper", {column: cell.text for column, cell in cells.items()}, doubtful))
    notes = [SERVER, *([f"[1] Cited, not measured here: {SOURCE}"] if cited else [])]
    notes += [f"[2] {DOUBT}"] if any(line.doubtful for line in lines) else []
    return Table(dataset, lines, notes, {"schema": SCHEMA, "dataset": dataset, "rows": numbers})


def _runs(out: Path) -> dict[str, Run]:
    """Return the rows that are there, by the name of their folder."""
    return {run.name: run for run in open_runs([out / row.name for row in ROWS if (out / row.name).is_dir()])[0]}


def cost_cells(run: Run) -> dict[str, str]:
    """Return what a run cost, trials on average."""
    found = costs(run)
    return {
        "bytes_per_round": in_bytes(found["bytes_per_round"]),
        "bytes_total": in_bytes(found["bytes_total"]),
        "sample_passes": in_count(found["sample_passes"]),
        "cpu_seconds": in_digits(round(value)) if math.isfinite(value := found["cpu_seconds"]) else DASH,
    }


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
    return {"method": run.metrics.get("method"), "trials": len(run.complete) or 1, **means, **half, **costs(run)}


def _often(run: Run) -> str:
    done = len(run.complete)
    return f"ours, {done} trials" if done else "ours"


def _cells(line: Line, mark: Callable[[str], str]) -> list[str]:
    """Return a line's cells; what is cited says so, and what cannot be right as well."""
    if line.whose != "paper":
        return [line.cells.get(column, DASH) for column in (*COLUMNS, *COST)]
    marks = {column: mark("[1][2]" if column in line.doubtful else "[1]") for column in COLUMNS}
    cells = {column: text if text == DASH else f"{text}{marks[column]}" for column, text in line.cells.items()}
    return [cells.get(column, "") for column in (*COLUMNS, *COST)]


def _headings() -> list[str]:
    return ["Method", "", *(column.heading for column in COLUMNS.values()), *COST.values()]


def _rows(table: Table, mark: Callable[[str], str]) -> list[list[str]]:
    return [[line.method, line.whose, *_cells(line, mark)] for line in table.lines]


def as_text(table: Table) -> str:
    """Return the table in aligned columns.

    Columns are as wide as their widest cell; numbers stand at the right.
    """
    rows = [_headings(), *_rows(table, lambda words: f" {words}")]
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
    rows = [_headings(), rule, *_rows(table, lambda words: f" {words}")]
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([f"### Table I, {table.dataset}", body, *table.notes]) + "\n"


def as_latex(table: Table) -> str:
    """Return the table in LaTeX; it needs no package."""
    rows = [_headings(), *_rows(table, lambda words: f"\\textsuperscript{{{words}}}")]
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    columns = "ll" + "r" * (len(COLUMNS) + len(COST))
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline"]
    notes = [f"% {note}" for note in table.notes]
    return "\n".join([*notes, *head, *lines[1:], r"\hline", r"\end{tabular}", ""])


def _latex(words: str) -> str:
    for plain, written in {"%": r"\%", "±": r"$\pm$", "−": "$-$", "²": "$^2$", DASH: "--"}.items():
        words = words.replace(plain, written)
    return words
