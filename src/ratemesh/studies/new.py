"""A project that runs as it is: networks, configuration, data script and README, copied from templates."""

from pathlib import Path
from typing import Literal

from ratemesh.experiment.storage import make_new_folder, write_text

Kind = Literal["table", "images"]
TEMPLATES = Path(__file__).parent / "templates"
ENDING = ".txt"
"""Behind the name of every template: tools must not take what users will own for a part of this package."""


def write_project(folder: Path, kind: Kind) -> list[Path]:
    """Write a project of this kind into a new or empty folder; return its files."""
    make_new_folder(folder, "folder", "Choose another name.")
    written = []
    for template in sorted((TEMPLATES / kind).iterdir()):
        path = folder / template.name.removesuffix(ENDING)
        write_text(path, template.read_text(encoding="utf-8").replace("PROJECT", folder.resolve().name))
        written.append(path)
    return written
