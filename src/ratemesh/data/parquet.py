"""Parquet tables with a column of pictures or vectors and one of labels."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from ratemesh.data.arrays import as_dataset, bounded
from ratemesh.data.dataset import Dataset
from ratemesh.data.files import Array, OwnFilesSpec
from ratemesh.data.pictures import TEST_NAMES, decode_pictures
from ratemesh.errors import InputError

SAMPLE_COLUMNS = ("image", "img", "x", "vector", "features", "embedding")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "y")
FINE_COLUMN = "fine"


class Parquet(OwnFilesSpec):
    """Your parquet table, or folder of train*.parquet and test*.parquet: pictures or vectors, and labels."""

    column: str | None = Field(None, description="column of the samples; else image, img, x, vector, …")
    label: str | None = Field(None, description="column of the labels; else label, labels, fine_label, …")
    fine: str | None = Field(None, description="column of labels by a finer labelling; else fine, if there is one")
    size: int | None = Field(None, ge=1, le=4096, description="scale pictures to size×size")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if there is no test file")

    def sources(self, path: Path) -> list[Path]:
        """Return all tables."""
        return [file for files in _parts(path) for file in files]

    def decode(self, path: Path) -> Dataset:
        """Read the tables; a sample is a picture file as bytes, or as {bytes, path}, or a list of uint8 or floats."""
        where = f"'{path}'"
        tables = [_read(files, self._columns) for files in _parts(path)]
        if len({table.num_columns for table in tables}) > 1:
            raise InputError(
                f"{where} must hold fine labels of training and test samples, or of neither; only one part has the "
                f"column '{FINE_COLUMN}'. Add it to the other, or drop it."
            )
        y, *fine = ([_labels(table, i, where) for table in tables] for i in range(1, tables[0].num_columns))
        X = _samples([table.column(0) for table in tables], self.size, where)
        data = as_dataset(X, y, where, "first", self.test_fraction, *fine)
        return replace(
            data, classes=_named(data.classes, tables[0], 1), fine_classes=_named(data.fine_classes, tables[0], 2)
        )

    def _columns(self, names: list[str], path: Path) -> list[str]:
        """Return which columns of a table are samples, labels and, where there are any, fine labels."""
        usual = (("column", SAMPLE_COLUMNS), ("label", LABEL_COLUMNS), ("fine", (FINE_COLUMN,)))
        finer = self.fine or (FINE_COLUMN in names and self.label != FINE_COLUMN)
        asked = usual if finer else usual[:2]
        return [_column(names, key, getattr(self, key), known, path) for key, known in asked]


def _parts(path: Path) -> list[list[Path]]:
    """Return the files of the training and the test part, or of the one part that there is."""
    if not path.is_dir():
        return [[path]]
    train = sorted(path.glob("train*.parquet"))
    tests = [sorted(path.glob(f"{name}*.parquet")) for name in TEST_NAMES]
    if train and any(tests):
        return [train, next(filter(None, tests))]
    every = sorted(path.glob("*.parquet"))
    if not every:
        raise InputError(f"data.path must be a .parquet file or a folder of some; '{path}' holds none.")
    return [every]


def read_columns(path: Path, must: Sequence[str], may: Sequence[str] = ()) -> dict[str, Array]:
    """Read columns of a table, those that may be left out only where they are there: lists as (m, p), pictures decoded.

    Single numbers and words come as (m,).
    """

    def choose(names: list[str], path: Path) -> list[str]:
        if lacking := [name for name in must if name not in names]:
            raise InputError(f"'{path}' must hold columns {', '.join(must)}; {', '.join(lacking)} not among {names}.")
        return [name for name in (*must, *may) if name in names]

    table = _read([path], choose)
    where, types = f"'{path}'", _pyarrow().types
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type):
            found[name] = _samples([column], None, where)[0]
        elif column.null_count:
            raise InputError(f"column {name} of {where} must have no gaps; {column.null_count} are missing.")
        else:
            found[name] = np.array(column.to_pylist())
    return found


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "data set 'parquet' needs pyarrow, which is not installed. Install it: pip install 'ratemesh[parquet]'"
        ) from None
    return pyarrow


def _read(files: list[Path], choose: Callable[[list[str], Path], list[str]]) -> Any:
    """Return a table of the columns that are chosen of those there, read piece by piece and never beyond memory."""
    arrow = _pyarrow()
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


def _column(names: list[str], key: str, given: str | None, usual: Sequence[str], path: Path) -> str:
    """Return the column that the setting `key` names, or the first with a usual name."""
    found = next((name for name in ((given,) if given else usual) if name in names), None)
    if found is None:
        got = f"got '{given}'" if given else "none has a usual name"
        raise InputError(
            f"data.{key} must name a column of '{path}'; {got}. Set it with --set data.{key}=NAME. "
            f"Known: {', '.join(names)}."
        )
    return found


def _samples(columns: list[Any], size: int | None, where: str) -> list[Array]:
    """Return the samples of each part; pictures are decoded together, for one size and one number of channels."""
    types = _pyarrow().types
    arrays = [column.combine_chunks() for column in columns]
    kind = arrays[0].type
    if any(array.type != kind for array in arrays):
        raise InputError(f"{where} must hold training and test samples of one type; got {[a.type for a in arrays]}.")
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        arrays = [array.field("bytes") for array in arrays]
        kind = arrays[0].type
    if types.is_binary(kind) or types.is_large_binary(kind):
        blobs = [blob for array in arrays for blob in array.to_pylist()]
        if None in blobs:
            raise InputError(f"{where} must hold every picture as bytes; row {blobs.index(None)} has none.")
        X = decode_pictures([(f"row {row} of {where}", blob) for row, blob in enumerate(blobs)], size)
        return np.split(X, [len(array) for array in arrays[:-1]])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_vectors(array, where) for array in arrays]
    raise InputError(f"samples of {where} must be pictures as bytes or lists of numbers; got {kind}. Set data.column.")


def _vectors(array: Any, where: str) -> Array:
    """Return lists of equal length as (m, p)."""
    values = array.flatten()
    p, rest = divmod(len(values), len(array))
    lengths = {len(row) for row in array if row.is_valid}
    if array.null_count or values.null_count or rest or lengths != {p}:
        raise InputError(f"vectors of {where} must have one length and no gaps; got lengths {sorted(lengths)[:5]}.")
    numbers: Array = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(-1, p)


def _labels(table: Any, index: int, where: str) -> Array:
    column = table.column(index)
    if column.null_count:
        raise InputError(f"labels of {where} must have no gaps; {column.null_count} are missing. Remove these rows.")
    return np.array(column.to_pylist())


def _named(classes: tuple[str, ...], table: Any, index: int) -> tuple[str, ...]:
    """Return the names of a column's classes that the Hugging Face convention keeps beside the table, if it does."""
    with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
        about = json.loads((table.schema.metadata or {})[b"huggingface"])
        names = about["info"]["features"][table.column_names[index]]["names"]
        return tuple(str(names[int(label)]) for label in classes)
    return classes
