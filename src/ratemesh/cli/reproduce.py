"""`ratemesh reproduce`: a panel of the paper as one command, with a report that sets ours beside the paper's."""

from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.data import DataDir, at_data_dir
from ratemesh.studies.panels import PANELS, SCALES


def reproduce(
    panel: Annotated[str, typer.Argument(help="One of " + ", ".join(PANELS) + ".")],
    scale: Annotated[
        str, typer.Option("--scale", help="small finishes on two cores, paper is the full setting: " + "|".join(SCALES))
    ] = "small",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Seeds to run; mean ± 95 % t-interval.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; an interrupted one goes on.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: a.b=value.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Run an experiment of the paper, and write a report with the paper's numbers beside ours.

    Example: `ratemesh reproduce mnist-iid --trials 3`
    """
    from ratemesh.report.page import write_report
    from ratemesh.studies.compare import run_comparison
    from ratemesh.studies.panels import load_panel

    config = load_panel(panel, scale, [*at_data_dir(data_dir), *(set_ or [])])
    folder = out or Path("runs") / f"{panel}-{scale}"
    with screen.Board() as board:
        results = run_comparison({panel: config}, folder, trials, board.track)
    screen.comparison([panel], results)
    written = write_report([folder], folder / "report.html")
    screen.say(f"Results: {folder}\nReport:  {written.page}")
