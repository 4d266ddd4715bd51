"""Columns of tables as people write them: which are wanted, and what of them can be used; from CSV files."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ratemesh.data.arrays import bounded
from ratemesh.data.files import Array
from ratemesh.errors import InputError
from ratemesh.specs import nearest

SEPARATORS = (",", ";", "\t", "|")
TEST_NAMES = ("test", "val", "valid", "validation")
"""What the part that is held out is called."""
CHUNK = 4096
"""Rows that are turned into numbers at a time."""
LONGEST = 2**24
"""Characters of a field: a quotation mark that is never closed must not swallow a whole file."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
VALUES = dict.fromkeys(MISSING, math.nan) | {"true": 1.0, "false": 0.0}
"""Words that stand in a column of numbers, in small letters."""


@dataclass(frozen=True)
class Wanted:
    """Names of columns: of numbers, and of words."""

    numbers: Sequence[str]
    words: Sequence[str]


@dataclass(frozen=True)
class Columns:
    """What a table holds: `numbers` (m, p) float64, NaN where one is missing, and columns of words (m,) by name."""

    numbers: Array
    words: dict[str, Array]

    def rows(self, chosen: Array) -> "Columns":
        """Return some rows, by number or by yes and no."""
        return Columns(self.numbers[chosen], {name: column[chosen] for name, column in self.words.items()})


Choose = Callable[[Sequence[str]], Wanted]
"""Given the names that a table has, returns those that are wanted."""


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the rows of several tables as one."""
    words = {name: np.concatenate([part.words[name] for part in parts]) for name in parts[0].words}
    return Columns(np.concatenate([part.numbers for part in parts]), words)


LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "y")
SAMPLE_COLUMNS = ("image", "img", "x", "vector", "features", "embedding")
"""Usual names of the columns that hold labels and, where a sample is one value, samples."""


def usual_column(names: Sequence[str], given: str | None, usual: Sequence[str], must: str) -> str:
    """Return the column that is given, or the first with a usual name; `must` begins the words for neither."""
    found = next((name for name in ((given,) if given else usual) if name in names), None)
    if found is None:
        got = f"got '{given}'" if given else "none has a usual name"
        raise InputError(f"{must}; {got}. Known: {', '.join(names)}.")
    return found


def check_names(names: Sequence[str], path: Path) -> None:
    """Refuse columns that cannot be told apart."""
    for place, name in enumerate(names, 1):
        if not name:
            raise InputError(
                f"'{path}' must name all of its columns; column {place} has no name. Name it, or write the file "
                "without it (pandas: to_csv(index=False))."
            )
        if name in names[: place - 1]:
            raise InputError(
                f"'{path}' must name every column once; '{name}' is there twice. Rename one{_no_header(names)}."
            )


def column_named(names: Sequence[str], key: str, name: str, path: Path) -> str:
    """Return a column that the setting `key` names, or say which there are."""
    if name not in names:
        raise InputError(
            f"data.{key} must name a column of '{path}'; got '{name}'. {nearest(name, names)}{_no_header(names)}"
        )
    return name


def _no_header(names: Sequence[str]) -> str:
    """Say so if most names of a table are numbers: then they are probably its first row."""
    numbers = sum(_is_number(name) for name in names)
    return " Does the file begin with a row of column names? It must" if 2 * numbers > len(names) else ""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def check_finite(numbers: Array, names: Sequence[str], what: str) -> None:
    """Refuse infinite numbers in (m, p)."""
    _refuse(np.isinf(numbers), names, what, "hold finite numbers; row {} has infinity. Correct it")


def check_gaps(numbers: Array, names: Sequence[str], what: str) -> None:
    """Refuse missing numbers in (m, p)."""
    remedy = 'Fill it, or train with data.missing = "mean"'
    _refuse(np.isnan(numbers), names, what, f"have no gaps; row {{}} has one. {remedy}")


def _refuse(bad: Array, names: Sequence[str], what: str, words: str) -> None:
    """Raise if anything of (m, p) is bad, naming the first place."""
    if bad.any():
        row, column = np.argwhere(bad)[0]
        name = names[column]
        left_out = f"leave the column out with data.drop = ['{name}']"
        raise InputError(f"column '{name}' of {what} must {words.format(row + 1)}, or {left_out}.")


def read_csv(path: Path, choose: Choose, separator: str | None = None) -> Columns:
    """Read columns of a CSV file (RFC 4180, UTF-8, a row of names first), a piece at a time and never beyond memory."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, _long_fields():
            reader = csv.reader(file, delimiter=separator or _separator(path), strict=True)
            return _read(reader, choose, path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"'{path}' must be a CSV file in UTF-8 ({error}). Save it as one.") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Allow long fields while a file is read: the limit is one for the whole process."""
    before = csv.field_size_limit(LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _separator(path: Path) -> str:
    """Return what parts the first row into the most names."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [line for line in islice(file, 1) if line.strip()]
    return max(SEPARATORS, key=lambda sign: len(next(csv.reader(rows, delimiter=sign), ())))


def _read(reader: Iterator[list[str]], choose: Choose, path: Path) -> Columns:
    names = [name.strip() for name in next(reader, [])]
    if not names:
        raise InputError(f"'{path}' must begin with a row of column names; it is empty.")
    if all(map(_is_number, names)):
        first = ", ".join(names[:4])
        raise InputError(f"'{path}' must begin with a row of column names; it begins {first}, … Add such a row.")
    check_names(names, path)
    wanted = choose(names)
    at_numbers, at_words = ([names.index(name) for name in some] for some in (wanted.numbers, wanted.words))
    parts: list[Columns] = []
    total = done = 0
    while rows := list(islice((row for row in reader if row), CHUNK)):
        _check_lengths(rows, len(names), done, path)
        cells = [[row[i] for i in at_numbers] for row in rows]
        numbers = _as_numbers(cells, wanted.numbers, done, path).reshape(len(rows), len(at_numbers))
        words = {names[i]: np.array([row[i].strip() for row in rows], object) for i in at_words}
        total += numbers.nbytes + sum(64 + len(word) for column in words.values() for word in column)
        bounded((total,), 1, f"'{path}'")
        parts.append(Columns(numbers, words))
        done += len(rows)
    if not parts:
        raise InputError(f"'{path}' must hold samples; it has no rows below the names of its columns.")
    found = joined(parts)
    check_finite(found.numbers, wanted.numbers, f"'{path}'")
    return found


def _check_lengths(rows: Sequence[list[str]], length: int, done: int, path: Path) -> None:
    for number, row in enumerate(rows, done + 1):
        if len(row) != length:
            raise InputError(
                f"row {number} of '{path}' must have {length} fields, as the row of names has; got {len(row)}. Correct "
                "it; a field with separators in it needs quotation marks."
            )


def _as_numbers(cells: list[list[str]], names: Sequence[str], done: int, path: Path) -> Array:
    """Return fields as numbers (m, p), words for missing ones as NaN."""
    try:
        return np.array(cells, np.float64)
    except ValueError:  # a word is among them
        pass
    return np.array(
        [
            [_number(cell, name, number, path) for cell, name in zip(row, names, strict=True)]
            for number, row in enumerate(cells, done + 1)
        ]
    )


def _number(cell: str, name: str, row: int, path: Path) -> float:
    word = cell.strip().lower()
    if word in VALUES:
        return VALUES[word]
    try:
        return float(word)
    except ValueError:
        comma = " Write decimals with a point." if _is_number(word.replace(",", ".")) else ""
        raise InputError(
            f"column '{name}' of '{path}' must hold numbers; row {row} has '{cell}'.{comma} Turn it into numbers, or "
            f"leave the column out with data.drop = ['{name}']."
        ) from None
