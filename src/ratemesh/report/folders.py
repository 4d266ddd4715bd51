"""From the paths that a user names to the entries of a report."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.experiment.trials import is_trials
from ratemesh.report.runs import Run, open_run
from ratemesh.report.trials import open_trials

DEEPEST = 3
"""Levels of folders that are searched for runs: a comparison holds trials, and a folder may hold comparisons."""


def open_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Open run folders, and folders that hold them; return the runs, and what to say of the rest.

    Trials of one setting are one entry.

    Raises:
        InputError: when none of the paths leads to a run.
    """
    found: dict[Path, Path] = {}
    notes = []
    for path in paths:
        members = list(_members(path, DEEPEST))
        if not members:
            notes.append(_foreign(path))
        found.update({member.resolve(): member for member in members})
    if not found:
        raise InputError(
            "\n".join(notes) or "runs must name at least one run folder; got none. Give the --out of a run."
        )
    names = _short_names(list(found))
    opened = zip(found.values(), names, strict=True)
    return [open_trials(path, name) if is_trials(path) else open_run(path, name) for path, name in opened], notes


def _members(path: Path, depth: int) -> Iterator[Path]:
    """Yield the folder if it is a run or its trials, else those inside: comparisons and demonstrations hold several."""
    if (path / "config.toml").is_file() or is_trials(path):
        yield path
    elif depth and path.is_dir():
        for inner in sorted(p for p in path.iterdir() if p.is_dir()):
            yield from _members(inner, depth - 1)


def _foreign(path: Path) -> str:
    lack = "has no config.toml, nor has a folder inside it" if path.is_dir() else "is not a folder"
    return f"'{path}' must be a run folder; it {lack}. Give the --out of a run."


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them all apart."""
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
