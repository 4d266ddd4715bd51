"""The `ratemesh` command."""

import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

import ratemesh
from ratemesh.cli import screen
from ratemesh.cli.after import embed, export, predict
from ratemesh.cli.bench import app as bench_app
from ratemesh.cli.clusters import clusters
from ratemesh.cli.connect import connect, stats
from ratemesh.cli.data import app as data_app
from ratemesh.cli.following import FiguresEvery, Project, Track, WithTensorBoard, followed, trackers
from ratemesh.cli.listing import list_
from ratemesh.cli.mesh import certs_app, launch, node, router
from ratemesh.cli.new import new
from ratemesh.cli.options import ConfigFile, DataDir, Set, group, overrides
from ratemesh.cli.studies import compare, demo, reproduce, table1, theory
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.memory import out_of_memory

app = group(
    "ratemesh",
    "Train encoders on machines that share neither data, weights nor architectures, "
    "into one representation space.\n\nStart with `ratemesh demo`.",
    add_completion=False,
)

PERIOD = 1.0
"""Seconds between looks at a run that is watched."""

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


app.command()(demo)


@app.command()
def run(
    config: ConfigFile,
    out: Out = None,
    set_: Set = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that share the nodes; 0: one per core.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Seeds to run; reports mean ± 95 % t-interval.")] = 1,
    *,
    track: Track = None,
    tensorboard: WithTensorBoard = False,
    project: Project = "",
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

    shared = [] if workers is None else [f"engine.workers={workers}"]
    settings = load_config(config, [*overrides(data_dir, set_), *shared])
    folder = out or next_free()
    if trials > 1:
        with followed(trackers(track, tensorboard), figures_every, project) as follow:
            result = run_trials(settings, folder, trials, lambda name, rounds: follow(folder / name, name, rounds))
        screen.intervals(result)
    else:
        with followed(trackers(track, tensorboard), figures_every, project) as follow:
            single = run_experiment(settings, folder, progress=follow(folder, config.stem, settings.rounds))
        screen.table([single.metrics])
        screen.ending(single.metrics)
    screen.say(f"Results: {folder}")


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of trials that were interrupted.")],
    *,
    track: Track = None,
    tensorboard: WithTensorBoard = False,
    project: Project = "",
    figures_every: FiguresEvery = None,
) -> None:
    """Go on with an interrupted run; the records come out as if it had never stopped.

    Example: `ratemesh resume runs/mine`
    """
    from ratemesh.experiment.experiment import resume as resume_experiment
    from ratemesh.experiment.records import RunFolder
    from ratemesh.experiment.trials import is_trials, resume_trials

    opened = RunFolder.existing(folder)
    with followed(trackers(track, tensorboard), figures_every, project) as follow:
        if is_trials(folder):
            screen.intervals(resume_trials(folder, lambda name, rounds: follow(folder / name, name, rounds)))
        else:
            if opened.metrics.exists():
                screen.say("This run is complete; nothing was changed.")
            progress = follow(folder, folder.name, opened.load_config().rounds)
            metrics = resume_experiment(folder, progress=progress).metrics
            screen.table([metrics])
            screen.ending(metrics)
    screen.say(f"Results: {folder}")


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, under way or complete.")],
    once: Annotated[bool, typer.Option("--once", help="Show the state now and return.")] = False,
) -> None:
    """Follow a run: curves as sparklines and the last round of every node.

    Example: `ratemesh watch runs/mine`
    """
    from rich.live import Live

    from ratemesh.experiment.records import RunFolder
    from ratemesh.experiment.trials import is_trials

    if is_trials(folder):
        raise InputError(
            f"folder must be a single run; '{folder}' holds trials. Watch one of them, e.g. {folder / 'trial-1'}."
        )
    run = RunFolder.existing(folder)
    rounds = run.load_config().rounds
    if once or not screen.console.is_terminal:
        screen.console.print(screen.view(folder.name, run.records(), rounds))
        return
    with Live(screen.view(folder.name, run.records(), rounds), console=screen.console, refresh_per_second=4) as live:
        while not run.metrics.exists():
            time.sleep(PERIOD)
            live.update(screen.view(folder.name, run.records(), rounds))
    screen.say(f"The run is complete. Results: {folder}")


app.command()(compare)


@app.command()
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


for command in (new, predict, embed, export, theory, reproduce, table1, clusters, stats, connect, node, router, launch):
    app.command()(command)
app.add_typer(bench_app)
app.add_typer(certs_app)
app.add_typer(data_app)


app.command("list")(list_)


def main() -> None:
    """Run the command; a user's error is one message and exit code 2, never a traceback."""
    warnings.showwarning = screen.warn
    try:
        app()
    except RatemeshError as error:
        screen.complain(str(error))
        sys.exit(2 if isinstance(error, InputError) else 1)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        screen.complain(f"memory ran out ({_first_line(error)}). Lower d, local.batch_size or the encoders' widths.")
        sys.exit(1)
    except KeyboardInterrupt:
        screen.complain("interrupted. A run goes on with: ratemesh resume FOLDER")
        sys.exit(130)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    main()
