"""Parquet tables with a column of pictures or vectors, or a column a feature, and one of labels."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ratemesh.data.arrays import as_dataset
from ratemesh.data.arrow import hugging_face_names, pyarrow, read_parquet, schema_of
from ratemesh.data.columns import LABEL_COLUMNS, SAMPLE_COLUMNS, usual_column
from ratemesh.data.dataset import Dataset
from ratemesh.data.files import Array, Intakes
from ratemesh.data.pictures import Pictures, decode_pictures
from ratemesh.data.tables import FINE_COLUMN, Table, TableSpec, parts_of
from ratemesh.errors import InputError


class Parquet(TableSpec):
    """Your parquet table, or folder of train*.parquet and test*.parquet: pictures, vectors or a column a feature."""

    intakes: ClassVar[Intakes] = {"table": Table, "pictures": Pictures}
    column: str | None = Field(None, description="column of the samples; else image, img, x, vector, …")
    size: int | None = Field(None, ge=1, le=4096, description="scale pictures to size×size")

    def sources(self, path: Path) -> list[Path]:
        """Return all tables."""
        return [file for files in parts_of(path, "parquet") for file in files]

    def decode(self, path: Path) -> Dataset:
        """Read the tables; a sample is a picture file as bytes, or as {bytes, path}, or a list of numbers, or a row."""
        where, parts = f"'{path}'", parts_of(path, "parquet")
        if self._is_wide(parts[0][0]):
            return self.table(parts, where)
        tables = [read_parquet(files, self._columns) for files in parts]
        if len({table.num_columns for table in tables}) > 1:
            raise InputError(
                f"{where} must hold fine labels of training and test samples, or of neither; only one part has the "
                f"column '{FINE_COLUMN}'. Add it to the other, or drop it."
            )
        y, *fine = ([_labels(table, i, where) for table in tables] for i in range(1, tables[0].num_columns))
        X = _samples([table.column(0) for table in tables], self.size, where)
        data = as_dataset(X, y, where, "first", self.test_fraction, *fine)
        return replace(
            data,
            classes=_named(data.classes, tables[0], 1),
            fine_classes=_named(data.fine_classes, tables[0], 2),
            intake=self._intake(tables[0], tuple(data.X_train.shape[1:])),
        )

    def _is_wide(self, path: Path) -> bool:
        """Whether a table has a column a feature: no column holds whole samples, or features are named."""
        return self.column is None and (bool(self.columns) or not any(map(_holds_samples, schema_of(path).types)))

    def _intake(self, table: Any, shape: tuple[int, ...]) -> Pictures | None:
        """Return how new pictures become samples; vectors come as they are."""
        if len(shape) == 1:
            return None
        return Pictures(name="pictures", shape=shape, scaled=self.size is not None, column=table.column_names[0])

    def _columns(self, names: list[str], path: Path) -> list[str]:
        """Return which columns of a table are samples, labels and, where there are any, fine labels."""
        usual = (("column", SAMPLE_COLUMNS), ("label", LABEL_COLUMNS), ("fine", (FINE_COLUMN,)))
        finer = self.fine or (FINE_COLUMN in names and self.label != FINE_COLUMN)
        asked = usual if finer else usual[:2]
        must = f"data.{{}} must name a column of '{path}' (--set data.{{}}=NAME)"
        return [usual_column(names, getattr(self, key), known, must.format(key, key)) for key, known in asked]


def _holds_samples(kind: Any) -> bool:
    """Whether values of a type are pictures or vectors, not single numbers."""
    types = pyarrow().types
    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def read_columns(path: Path, must: Sequence[str], may: Sequence[str] = ()) -> dict[str, Array]:
    """Read columns of a table, those that may be left out only where they are there: lists as (m, p), pictures decoded.

    Single numbers and words come as (m,).
    """

    def choose(names: list[str], path: Path) -> list[str]:
        if lacking := [name for name in must if name not in names]:
            raise InputError(f"'{path}' must hold columns {', '.join(must)}; {', '.join(lacking)} not among {names}.")
        return [name for name in (*must, *may) if name in names]

    table = read_parquet([path], choose)
    where, types = f"'{path}'", pyarrow().types
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_nested(column.type) or types.is_binary(column.type):
            found[name] = _samples([column], None, where)[0]
        elif column.null_count:
            raise InputError(f"column {name} of {where} must have no gaps; {column.null_count} are missing.")
        else:
            found[name] = np.array(column.to_pylist())
    return found


def _samples(columns: list[Any], size: int | None, where: str) -> list[Array]:
    """Return the samples of each part; pictures are decoded together, for one size and one number of channels."""
    types = pyarrow().types
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
    """Return the names of a column's classes where they are kept beside the table."""
    if not classes or not (names := hugging_face_names(table, table.column_names[index])):
        return classes
    with contextlib.suppress(ValueError, IndexError):
        return tuple(names[int(label)] for label in classes)
    return classes
