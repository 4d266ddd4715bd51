"""Real files to try one's own data with, from what is on every machine that has ratemesh; see docs/data.md.

`python -m experiments.own` writes two CSV files into experiments/own: `wine.csv`, scikit-learn's 178 wines with 13
measurements and the grape as a word, and `docstrings.csv`, what installed libraries say of their functions, labelled by
library. Then `ratemesh run experiments/table.toml` and `ratemesh run experiments/text.toml`.
"""

import ast
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "own"
LIBRARIES = ("matplotlib", "networkx", "numpy", "scipy", "sklearn", "torch")
GRAPES = ("barolo", "grignolino", "barbera")
SHORTEST = 80
"""Characters of a docstring that says something."""
FILES = 100
"""Of a library, evenly spaced: all of torch would take a minute."""
Row = Sequence[Any]


def wine() -> tuple[Row, Iterable[Row]]:
    """Return the names of the columns, and the wines."""
    from sklearn.datasets import load_wine

    table = load_wine()
    names = [name.replace("/", " by ").replace("_", " ") for name in table.feature_names]
    return [*names, "grape"], ([*x.tolist(), GRAPES[k]] for x, k in zip(table.data, table.target, strict=True))


def docstrings(most: int) -> tuple[Row, Iterable[Row]]:
    """Return the names of the columns, and at most so many texts of each library; names of libraries are taken out."""
    rows: list[Row] = []
    for library in LIBRARIES:
        found = sorted(set(_of_library(library)))
        step = max(1, len(found) // most)
        rows += [(_without_names(text), library) for text in found[::step][:most]]
    return ("text", "library"), rows


def _of_library(library: str) -> Iterator[str]:
    """Read docstrings of functions from a library's source; nothing is imported."""
    spec = find_spec(library)
    folders = spec.submodule_search_locations if spec else None
    root = Path((folders or ["none"])[0])
    files = [path for path in sorted(root.rglob("*.py")) if "test" not in str(path.relative_to(root))]
    for path in files[:: max(1, len(files) // FILES)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if text and len(text) >= SHORTEST:
                yield text


def _without_names(text: str) -> str:
    """Take out what would give the answer away: the libraries' names and their usual short forms."""
    return re.sub(rf"(?i)\b({'|'.join(LIBRARIES)}|pytorch|scikit-learn|np|plt|nx|pyplot)\b", " ", text)


def write(path: Path, names: Row, rows: Iterable[Row]) -> Path:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def main(folder: Path = HERE, most: int = 400) -> list[Path]:
    """Write both files."""
    return [write(folder / "wine.csv", *wine()), write(folder / "docstrings.csv", *docstrings(most))]


if __name__ == "__main__":
    for file in main():
        print(file)
