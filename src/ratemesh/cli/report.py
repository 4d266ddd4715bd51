"""`ratemesh report`: run folders in, one HTML page out."""

from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, trials, or folders that hold some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; one that exists is replaced.")] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder to keep the figures in, as PNG, SVG and PDF.")
    ] = None,
) -> None:
    """Write one HTML page on runs, finished or not: summary, numbers beside the paper's, figures, cost, settings.

    Example: `ratemesh report runs/a runs/b -o report.html`
    """
    from ratemesh.report.page import write_report

    written = write_report(runs, out, figures)
    for note in written.notes:
        screen.say(f"Left out: {note}")
    screen.say(f"Report: {written.page} ({', '.join(written.runs)})")
