"""How commands follow the runs that they start: bars in the terminal, and whoever else tracks them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.errors import InputError
from ratemesh.experiment.experiment import Progress

Follow = Callable[[Path, str, int], Progress]
"""Given a run's folder, its name and its rounds, returns what is called every round."""

WithTensorBoard = Annotated[bool, typer.Option("--tensorboard", help="The same as --track tensorboard.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="Also write to tensorboard, wandb or mlflow (extras of those names). May be repeated."
    ),
]
Project = Annotated[str, typer.Option("--project", help="What wandb and mlflow file runs under. Default: ratemesh.")]
FiguresEvery = Annotated[
    int | None,
    typer.Option(
        "--figures-every",
        min=0,
        help="Rounds between figures for --track; 0: none. Default: after rounds 1, 2, 5, 10, 20, 50, … and the last.",
    ),
]


def trackers(track: list[str] | None, tensorboard: bool) -> list[str]:
    """Return the trackers that the options name."""
    return [*(track or []), *(["tensorboard"] if tensorboard else [])]


@contextmanager
def followed(names: Sequence[str], every: int | None, project: str) -> Iterator[Follow]:
    """Yield what shows the progress of runs, and gives them to trackers if that is wanted."""
    if every is not None and not names:
        raise InputError("--figures-every must come with --track or --tensorboard; it is for the figures there.")
    with screen.Board() as bars:
        if not names:
            yield lambda _, name, rounds: bars.follow(name, rounds)
            return
        from ratemesh.report.live import Live

        with Live(names, every, project) as board:
            yield lambda folder, name, rounds: board.track(folder, rounds, bars.follow(name, rounds))
