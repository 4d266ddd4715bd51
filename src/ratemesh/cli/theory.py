"""`ratemesh theory`: the paper's theorems, verified on free features."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ratemesh.cli import screen
from ratemesh.studies.theory_checks import Check, Setting

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

    setting = Setting(nodes, classes, rank, rounds, seed, d, eps2)
    result = run_theory(out, setting, screen.say)
    for theorem, title in TITLES.items():
        screen.console.print(_table([check for check in result.checks if check.theorem == theorem], title))
    screen.console.print(LEGEND, style="dim")
    screen.say(f"Summary: {result.summary}")
    screen.say("\n".join(f"Figure:  {path}" for path in result.figures))
    screen.say(_verdict(result.checks))


def _table(checks: Sequence[Check], title: str) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=title, title_justify="left", title_style="bold"
    )
    table.add_column("property", min_width=36)
    table.add_column("predicted", justify="right", min_width=17)
    table.add_column("measured", justify="right", min_width=8)
    table.add_column("holds", justify="right")
    for check in checks:
        measured = f"{check.measured:.6g}" if abs(check.measured) >= 0.1 else f"{check.measured:.1e}"
        style = "" if check.holds else "bold red"
        table.add_row(check.property, check.expected(), measured, "yes" if check.holds else "NO", style=style)
    return table


def _verdict(checks: Sequence[Check]) -> str:
    failed = [f"Theorem {check.theorem}: {check.property}" for check in checks if not check.holds]
    if not failed:
        return f"All {len(checks)} properties hold."
    return f"{len(failed)} of {len(checks)} properties do not hold: {'; '.join(failed)}."
