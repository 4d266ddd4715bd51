"""What several commands share: options, and the manners of groups of commands."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ratemesh.data.known import VARIABLE

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help=f"Folder of data sets. Default: ${VARIABLE}, else data.")
]
ConfigFile = Annotated[Path, typer.Argument(help="TOML file, or a name of `ratemesh list experiments`.")]
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


class Commands(TyperGroup):
    """Commands whose help does not say of a flag that it takes a <bool>."""

    def get_params(self, ctx: Any) -> Any:
        """Return the group's own options."""
        return _without_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_values(command.get_params(ctx))
        return command


def _without_values(params: Iterable[Any]) -> list[Any]:
    """Leave the name of a value out of the help on flags: there is none to give."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return list(params)


def group(name: str, words: str, **how: Any) -> typer.Typer:
    """Return a group of commands: help when nothing is asked for, and no tracebacks of Typer's own.

    Args:
        words: its help, in Markdown.
    """
    return typer.Typer(
        name=name,
        cls=Commands,
        help=words,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **how,
    )
