"""`ratemesh demo`, `compare`, `reproduce`, `table1` and `theory`: commands that run several experiments at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ratemesh.cli import screen
from ratemesh.cli.options import DataDir, Jobs, Trials, overrides
from ratemesh.experiment.config import Config
from ratemesh.studies.panels import DATASETS, PANELS, SCALES
from ratemesh.studies.theory_checks import Check, Setting
from ratemesh.threads import cores

TITLES = {
    "1": "Theorem 1: the optimum of (opt1), i.i.d. nodes on a ring",
    "2": "Theorem 2: the rate of Algorithm 1, as ratios to bounds",
    "3": "Theorem 3: the optimum of (opt2), clusters of nodes with different labels",
}

LEGEND = (
    "Cosines, spread and consensus are the largest over samples, classes and pairs of nodes. Theorem 2 is shown, not "
    "proved: runs of different T with η = c''/√(TT') stay below the printed bound, which is then O(1/√(TT')), with L "
    "as seen on the way (the true L may be larger). It claims no consensus."
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs, the summary and the figures.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each run; fewer are quicker.")] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root of every random draw.")] = 0,
) -> None:
    """Train ten sites on digits as a mesh, by FedProto, alone and in one place, and show who understands whom.

    Example: `ratemesh demo --out runs/demo`
    """
    from ratemesh.experiment.storage import refuse_occupied
    from ratemesh.studies.demo import COLUMNS, LEGEND, run_demo

    refuse_occupied(out, "out", "Choose another with --out, or delete it.")
    with screen.Board() as board:
        result = run_demo(out, board.follow, rounds, seed)
    screen.chosen(result.rows, COLUMNS, LEGEND)
    screen.say("\n".join([*(f"Figure:  {figure}" for figure in result.figures), f"Summary: {result.summary}"]))


def compare(
    configs: Annotated[list[Path], typer.Argument(help="TOML files or names, one a method or setting.")],
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
    from ratemesh.studies.compare import load_configs

    _compare(load_configs(configs, overrides(data_dir, set_)), out, trials, jobs or cores())


def _compare(configs: Mapping[str, Config], out: Path, trials: int, jobs: int = 1) -> None:
    """Run experiments by name into a folder, show them side by side, and write the report."""
    from ratemesh.report.page import write_report
    from ratemesh.studies.compare import run_comparison

    with screen.Board() as board:
        results = run_comparison(configs, out, trials, board.follow, jobs=jobs)
    screen.comparison(list(configs), results)
    written = write_report([out], out / "report.html")
    screen.say(f"Results: {out}\nReport:  {written.page}")


def reproduce(
    panel: Annotated[str, typer.Argument(help="One of " + ", ".join(PANELS) + ".")],
    scale: Annotated[
        str, typer.Option("--scale", help="small finishes on two cores, paper is the full setting: " + "|".join(SCALES))
    ] = "small",
    trials: Trials = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Folder; an interrupted one goes on.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a setting: a.b=value.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Run an experiment of the paper, and write a report with the paper's numbers beside ours.

    Example: `ratemesh reproduce mnist-iid --trials 3`
    """
    from ratemesh.studies.panels import load_panel

    config = load_panel(panel, scale, overrides(data_dir, set_))
    _compare({panel: config}, out or Path("runs") / f"{panel}-{scale}", trials)


def table1(
    dataset: Annotated[str, typer.Option("--dataset", help="|".join(DATASETS))] = "mnist",
    scale: Annotated[str, typer.Option("--scale", help="small finishes on two cores: " + "|".join(SCALES))] = "small",
    trials: Trials = 1,
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

    configs = table_configs(dataset, scale, overrides(data_dir, set_))
    folder = out or Path("runs") / f"table1-{dataset}-{scale}"
    with screen.Board() as board:
        found = run_table(configs, folder, trials, board.follow, jobs=jobs or cores())
    written = write_report([folder], folder / "report.html")
    made = folder / "table1"
    screen.say(
        f"{as_text(found)}\nTables:  {made}.txt, .md, .tex, .json\nFigures: {made}-cosine.png, -spectra.png\n"
        f"Report:  {written.page}"
    )


def theory(
    out: Annotated[Path, typer.Option("--out", help="Folder for theory.json and the figure, new or empty.")] = Path(
        "runs/theory"
    ),
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes N.")] = Setting.nodes,
    classes: Annotated[int, typer.Option("--classes", help="Number of classes K.")] = Setting.classes,
    rank: Annotated[int, typer.Option("--rank", help="Rank d_k that a class may have.")] = Setting.rank,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of Algorithm 1.")] = Setting.rounds,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random start.")] = Setting.seed,
    d: Annotated[int | None, typer.Option("--d", help="Dimension of the features. Default: K·d_k.")] = Setting.d,
    eps2: Annotated[float, typer.Option("--eps2", help="ε²; make it large to see Theorem 1 fail.")] = Setting.eps2,
) -> None:
    """Optimise free features on the sphere and compare them with what Theorems 1, 2 and 3 predict.

    Example: `ratemesh theory --out runs/theory`
    """
    from ratemesh.studies.theory import run_theory

    result = run_theory(out, Setting(nodes, classes, rank, rounds, seed, d, eps2), screen.say)
    for theorem, title in TITLES.items():
        screen.console.print(_checks([check for check in result.checks if check.theorem == theorem], title))
    screen.console.print(LEGEND, style="dim")
    screen.say(f"Summary: {result.summary}")
    screen.say("\n".join(f"Figure:  {path}" for path in result.figures))
    failed = [f"Theorem {check.theorem}: {check.property}" for check in result.checks if not check.holds]
    if failed:
        early = (
            f" {rounds} rounds may be too few: by default there are {Setting.rounds}. Try --rounds {Setting.rounds}."
        )
        told = f"{len(failed)} of {len(result.checks)} properties do not hold: {'; '.join(failed)}."
        screen.say(told + (early if rounds < Setting.rounds else ""))
    else:
        screen.say(f"All {len(result.checks)} properties hold.")


def _checks(checks: Sequence[Check], title: str) -> Table:
    table = screen.grid(title=title, title_justify="left", title_style="bold")
    table.add_column("property", min_width=36)
    table.add_column("predicted", justify="right", min_width=17)
    table.add_column("measured", justify="right", min_width=8)
    table.add_column("holds", justify="right")
    for check in checks:
        measured = f"{check.measured:.6g}" if abs(check.measured) >= 0.1 else f"{check.measured:.1e}"
        style = "" if check.holds else "bold red"
        table.add_row(check.property, check.expected(), measured, "yes" if check.holds else "NO", style=style)
    return table
