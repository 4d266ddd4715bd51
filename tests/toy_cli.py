"""The command in this process: what `python -m ratemesh.cli.main` would do, without starting Python and torch anew."""

import contextlib
import io
import os
import sys
import warnings
from dataclasses import dataclass
from unittest.mock import patch

from ratemesh.cli.main import main

PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
"""Environment of a terminal that can do nothing."""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def call(*words: object) -> Done:
    """Run the command with these words through `main`, the entry point of the installed script."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.dict(os.environ, PLAIN),
        patch.object(sys, "argv", ["ratemesh", *map(str, words)]),
        warnings.catch_warnings(),  # a command shows warnings, where a test would fail of them
    ):
        warnings.simplefilter("default")
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code if isinstance(code, int) else 1, out.getvalue(), err.getvalue())
