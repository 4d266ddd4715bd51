"""Groups of commands, all with the same manners: help when nothing is asked for, and no tracebacks of Typer's own."""

from typing import Any

import typer


def group(name: str, words: str, **how: Any) -> typer.Typer:
    """Return a group of commands; `words` are its help, in Markdown."""
    return typer.Typer(
        name=name, help=words, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, **how
    )
