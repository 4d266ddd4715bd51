"""What several commands share: options, and the manners of groups of commands."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ratemesh.data.known import VARIABLE

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help=f"Folder of data sets. Default: ${VARIABLE}, else data.")
]
ConfigFile = Annotated[Path, typer.Argument(help="TOML file, e.g. experiments/digits.toml.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: a.b=value. May be repeated.")]
Trials = Annotated[int, typer.Option("--trials", min=1, help="Seeds to run; mean ± 95 % t-interval.")]
Jobs = Annotated[
    int, typer.Option("--jobs", min=0, help="Settings that are run side by side, one core each; 0 for one a core.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain TCP instead of mutual TLS.")]


def overrides(data_dir: Path | None, given: list[str] | None) -> list[str]:
    """Return what --data-dir and --set stand for; an absolute folder, so that a run can be resumed from anywhere."""
    folder = [] if data_dir is None else [f"data.dir={json.dumps(str(data_dir.absolute()), ensure_ascii=False)}"]
    return [*folder, *(given or [])]


def group(name: str, words: str, **how: Any) -> typer.Typer:
    """Return a group of commands: help when nothing is asked for, and no tracebacks of Typer's own.

    Args:
        words: its help, in Markdown.
    """
    return typer.Typer(
        name=name, help=words, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, **how
    )
