"""`ratemesh compare`: several settings on the same ground, one report."""

from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.data import DataDir, at_data_dir
from ratemesh.threads import cores

Jobs = Annotated[
    int, typer.Option("--jobs", min=0, help="Settings that are run side by side, one core each; 0 for one a core.")
]


def compare(
    configs: Annotated[list[Path], typer.Argument(help="TOML files, one a method or setting.")],
    out: Annotated[Path, typer.Option("--out", help="Folder; an interrupted comparison in it goes on.")] = Path(
        "runs/compare"
    ),
    trials: Annotated[
        int,
        typer.Option(
            "--trials",
            min=1,
            help="Seeds to run of each, the same for all; reports mean ± 95 % t-interval. More may be asked for later.",
        ),
    ] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of all of them: a.b=value.")
    ] = None,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
) -> None:
    """Run several methods or settings on the same data, seeds and budget, and write one report.

    Example: `ratemesh compare experiments/digits.toml experiments/digits-paper.toml --trials 2`
    """
    from ratemesh.report.page import write_report
    from ratemesh.studies.compare import load_configs, run_comparison

    named = load_configs(configs, [*at_data_dir(data_dir), *(set_ or [])])
    with screen.Board() as board:
        results = run_comparison(named, out, trials, board.track, jobs=jobs or cores())
    screen.comparison(list(named), results)
    written = write_report([out], out / "report.html")
    screen.say(f"Results: {out}\nReport:  {written.page}")
