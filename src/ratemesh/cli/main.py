"""The `ratemesh` command."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import ratemesh
from ratemesh.cli import screen
from ratemesh.cli.clusters import clusters
from ratemesh.cli.compare import compare
from ratemesh.cli.data import DataDir, at_data_dir
from ratemesh.cli.data import app as data_app
from ratemesh.cli.groups import group
from ratemesh.cli.mesh import certs_app, launch, node, router
from ratemesh.cli.report import report
from ratemesh.cli.reproduce import reproduce
from ratemesh.cli.table1 import table1
from ratemesh.cli.theory import theory
from ratemesh.cli.watch import watch
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.experiment import Progress

app = group(
    "ratemesh",
    "Train encoders on machines that share neither data, weights nor architectures, "
    "into one representation space.\n\nStart with `ratemesh demo`.",
    add_completion=False,
)

Live = Callable[[Path, int, Progress], Progress]
"""Given a run's folder, its rounds and its progress, returns what is called every round instead."""

WithTensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard scalars and figures (extra 'tensorboard').")
]
FiguresEvery = Annotated[
    int | None,
    typer.Option(
        "--figures-every",
        min=0,
        help="Rounds between TensorBoard figures; 0: none. Default: after rounds 1, 2, 5, 10, 20, 50, … and the last.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder, new or empty. Default: next free runs/run-NNN.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ratemesh {ratemesh.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Apply to every command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the three runs, the summary and the figure.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each run; fewer are quicker.")] = 40,
) -> None:
    """Train ten nodes on digits three ways, and show what gauge alignment is good for.

    Example: `ratemesh demo --out runs/demo`
    """
    from ratemesh.studies.demo import run_demo

    if out.exists() and any(out.iterdir()):
        raise InputError(f"out must be a new or empty folder; '{out}' exists. Choose another with --out, or delete it.")
    with screen.Board() as board:
        result = run_demo(out, board.track, rounds)
    screen.table(result.rows)
    screen.say(f"Figure:  {result.figure}\nSummary: {result.summary}")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="TOML file, e.g. experiments/digits.toml.")],
    out: Out = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: a.b=value. May be repeated.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that share the nodes; 0: one per core.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Seeds to run; reports mean ± 95 % t-interval.")] = 1,
    tensorboard: WithTensorBoard = False,
    figures_every: FiguresEvery = None,
    data_dir: DataDir = None,
) -> None:
    """Run an experiment and leave records, checkpoints and metrics in a folder.

    Example: `ratemesh run experiments/digits.toml --set method.gamma=2 --out runs/mine`
    """
    from ratemesh.experiment.config import load_config
    from ratemesh.experiment.experiment import next_free
    from ratemesh.experiment.experiment import run as run_experiment
    from ratemesh.experiment.trials import run_trials

    overrides = [*at_data_dir(data_dir), *(set_ or []), *([] if workers is None else [f"engine.workers={workers}"])]
    settings = load_config(config, overrides)
    folder = out or next_free()
    with screen.Board() as board, _live(tensorboard, figures_every) as live:
        if trials > 1:
            result = run_trials(settings, folder, trials, lambda name, n: live(folder / name, n, board.track(name, n)))
        else:
            track = live(folder, settings.rounds, board.track(config.stem, settings.rounds))
            single = run_experiment(settings, folder, progress=track)
    if trials > 1:
        screen.intervals(result)
    else:
        screen.table([single.metrics])
    screen.say(f"Results: {folder}")


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of trials that were interrupted.")],
    tensorboard: WithTensorBoard = False,
    figures_every: FiguresEvery = None,
) -> None:
    """Go on with an interrupted run; the records come out as if it had never stopped.

    Example: `ratemesh resume runs/mine`
    """
    from ratemesh.experiment.experiment import resume as resume_experiment
    from ratemesh.experiment.records import RunFolder
    from ratemesh.experiment.trials import is_trials, resume_trials

    opened = RunFolder.existing(folder)
    with screen.Board() as board, _live(tensorboard, figures_every) as live:
        if is_trials(folder):
            result = resume_trials(folder, lambda name, n: live(folder / name, n, board.track(name, n)))
            screen.intervals(result)
        else:
            if opened.metrics.exists():
                screen.say("This run is complete; nothing was changed.")
            rounds = opened.load_config().rounds
            track = live(folder, rounds, board.track(folder.name, rounds))
            metrics = resume_experiment(folder, progress=track).metrics
            screen.table([metrics])
    screen.say(f"Results: {folder}")


@contextmanager
def _live(wanted: bool, every: int | None) -> Iterator[Live]:
    """Yield what adds TensorBoard to the progress of a run, if it is wanted."""
    if not wanted:
        if every is not None:
            raise InputError("--figures-every must come with --tensorboard; it is for the figures there.")
        yield lambda folder, rounds, track: track  # noqa: ARG005
        return
    from ratemesh.report.live import TensorBoard

    with TensorBoard(every) as board:
        yield board.track


app.command()(watch)
app.command()(compare)
app.command()(report)
app.command()(theory)
app.command()(reproduce)
app.command()(table1)
app.command()(clusters)
app.command()(node)
app.command()(router)
app.command()(launch)
app.add_typer(certs_app)
app.add_typer(data_app)


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, codecs, encoders, datasets, partitions, topologies, engines, presets.")
    ],
) -> None:
    """Show what a configuration can name, with every setting and its default.

    Example: `ratemesh list topologies`
    """
    screen.catalogue(what)


def main() -> None:
    """Run the command; a user's error is one message and exit code 2, never a traceback."""
    warnings.showwarning = screen.warn
    try:
        app()
    except InputError as error:
        screen.complain(str(error))
        sys.exit(2)
    except RatemeshError as error:
        screen.complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        screen.complain("interrupted. A run goes on with: ratemesh resume FOLDER")
        sys.exit(130)


if __name__ == "__main__":
    main()
