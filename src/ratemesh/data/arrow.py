"""Parquet tables through pyarrow, which is an extra: read piece by piece and never beyond memory."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ratemesh.data.arrays import bounded
from ratemesh.data.columns import Choose, Columns, check_finite, check_names
from ratemesh.data.files import Array
from ratemesh.errors import InputError


def pyarrow() -> Any:
    """Return the package, or say how to get it."""
    try:
        import pyarrow as found
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "data set 'parquet' needs pyarrow, which is not installed. Install it: pip install 'ratemesh[parquet]'"
        ) from None
    return found


def read_parquet(files: Sequence[Path], choose: Callable[[list[str], Path], list[str]]) -> Any:
    """Return a table of the columns that are chosen of those there."""
    arrow = pyarrow()
    batches: list[Any] = []
    total = 0
    try:
        for path in files:
            with arrow.parquet.ParquetFile(path) as file:
                columns = choose(file.schema_arrow.names, path)
                for batch in file.iter_batches(1024, columns=columns):
                    total += batch.nbytes
                    bounded((total,), 1, f"'{path}'")
                    batches.append(batch.select(columns))
        if not batches:
            raise InputError(f"'{path}' must hold samples; it has no rows.")
        return arrow.Table.from_batches(batches)
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"'{path}' must be a readable parquet file like the others ({error}).") from None


def schema_of(path: Path) -> Any:
    """Return the names and types of a table's columns."""
    arrow = pyarrow()
    try:
        return arrow.parquet.read_schema(path)
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"'{path}' must be a readable parquet file ({error}).") from None


def read_wide(path: Path, choose: Choose) -> Columns:
    """Read columns of a table that has one column a feature."""
    names = schema_of(path).names
    check_names(names, path)
    wanted = choose(names)
    table = read_parquet([path], lambda *_: [*wanted.numbers, *wanted.words])
    bounded((table.num_rows, len(wanted.numbers)), 8, f"'{path}'")
    numbers = np.empty((table.num_rows, len(wanted.numbers)))
    for i, name in enumerate(wanted.numbers):
        numbers[:, i] = _numbers(table.column(name), name, path)
    check_finite(numbers, wanted.numbers, f"'{path}'")
    return Columns(numbers, {name: _words(table, name) for name in wanted.words})


def _numbers(column: Any, name: str, path: Path) -> Array:
    """Return a column as float64, NaN where there is nothing."""
    arrow = pyarrow()
    types, kind = arrow.types, column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)):
        raise InputError(
            f"column '{name}' of '{path}' must hold numbers; got {kind}. Turn it into numbers, or leave it out with "
            f"data.drop = ['{name}']."
        )
    if types.is_boolean(kind):
        column = column.cast(arrow.uint8())
    if column.null_count or types.is_decimal(kind):
        column = column.cast(arrow.float64(), safe=False)
    found: Array = column.to_numpy().astype(np.float64)
    return found


def _words(table: Any, name: str) -> Array:
    """Return a column as words; numbers that the Hugging Face convention has names for as these names."""
    values = table.column(name).to_pylist()
    names = hugging_face_names(table, name)
    with contextlib.suppress(IndexError, TypeError):
        values = [names[value] for value in values] if names else values
    return np.array(["" if value is None else _word(value) for value in values], object)


def _word(value: Any) -> str:
    """Return a value as people write it: pandas makes 3.0 of 3 where others in the column are missing."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def hugging_face_names(table: Any, name: str) -> list[str]:
    """Return the names of a column's classes that the Hugging Face convention keeps beside a table, if it does."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        about = json.loads((table.schema.metadata or {})[b"huggingface"])
        return list(map(str, about["info"]["features"][name]["names"]))
    return []
