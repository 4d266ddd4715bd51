"""`ratemesh table1`: every row of the paper's Table I on the same ground, as one command."""

from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.compare import Jobs
from ratemesh.cli.data import DataDir, at_data_dir
from ratemesh.studies.panels import DATASETS, SCALES
from ratemesh.threads import cores


def table1(
    dataset: Annotated[str, typer.Option("--dataset", help="|".join(DATASETS))] = "mnist",
    scale: Annotated[str, typer.Option("--scale", help="small finishes on two cores: " + "|".join(SCALES))] = "small",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Seeds to run; mean ± 95 % t-interval.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; an interrupted table goes on row by row.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of all rows, of method and graph of Algorithm 1's: a.b=value."),
    ] = None,
    jobs: Jobs = 0,
    data_dir: DataDir = None,
) -> None:
    """Train every method of the paper's Table I on the same nodes, data and budget; the paper's numbers stand beside.

    Example: `ratemesh table1 --dataset mnist --trials 3`
    """
    from ratemesh.report.page import write_report
    from ratemesh.studies.panels import table_configs
    from ratemesh.studies.table1 import as_text, run_table

    configs = table_configs(dataset, scale, [*at_data_dir(data_dir), *(set_ or [])])
    folder = out or Path("runs") / f"table1-{dataset}-{scale}"
    with screen.Board() as board:
        found = run_table(configs, folder, trials, board.track, jobs=jobs or cores())
    written = write_report([folder], folder / "report.html")
    made = folder / "table1"
    screen.say(
        f"{as_text(found)}\nTables:  {made}.txt, .md, .tex, .json\nFigures: {made}-cosine.png, -spectra.png\n"
        f"Report:  {written.page}"
    )
