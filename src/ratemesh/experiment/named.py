"""Experiments that come with ratemesh, by name: `ratemesh run digits` works wherever the package is installed."""

from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.specs import nearest

PLACES = (Path(__file__).parent / "tables", Path(__file__).parents[3] / "experiments")
"""Where their TOML files are: in an installed package beside this module, in a checkout in experiments/."""


def experiments() -> dict[str, Path]:
    """Return the files of all experiments that come with ratemesh, by name."""
    found = [sorted(place.glob("*.toml")) for place in PLACES]
    return {file.stem: file for file in next(filter(None, found), [])}


def find_experiment(given: Path) -> Path:
    """Return the TOML file that a path or a name stands for; a file that is there wins over a name."""
    if given.is_file():
        return given
    known, name = experiments(), given.stem if given.suffix == ".toml" else given.name
    if given == Path(name):
        if name not in known:
            raise InputError(f"config must be a TOML file or a known experiment; got '{name}'. {nearest(name, known)}")
        return known[name]
    if name in known:
        raise InputError(f"config must be a readable TOML file; there is no '{given}'. Did you mean the name '{name}'?")
    return given  # whoever reads it says what is wrong


def first_words(file: Path) -> str:
    """Return what an experiment's file says of itself in its first line."""
    with file.open(encoding="utf-8") as lines:
        return next(lines, "").removeprefix("#").strip()
