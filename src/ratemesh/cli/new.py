"""`ratemesh new`: a project to start from."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratemesh.cli import screen


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to write, new or empty.", show_default=False)],
    kind: Annotated[
        Literal["table", "images"], typer.Option("--kind", help="What samples are: rows of a CSV file, or pictures.")
    ] = "table",
) -> None:
    """Write a project that runs as it is: two networks, a configuration, a script that makes data, a README.

    Example: `ratemesh new my-mesh`, then `cd my-mesh`, `python make_data.py`, `ratemesh run mesh.toml --out run` and
    `ratemesh predict run new.csv -o labels.csv`
    """
    from ratemesh.studies.new import write_project

    for path in write_project(folder, kind):
        screen.say(str(path))
    samples = "new.csv" if kind == "table" else "new"
    screen.say(
        f"\nNext:\n  cd {shlex.quote(str(folder))}\n  python make_data.py\n  ratemesh run mesh.toml --out run\n"
        f"  ratemesh predict run {samples} -o labels.csv"
    )
