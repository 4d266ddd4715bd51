"""Tables with one column a feature: CSV files, and what they have in common with wide Parquet; new rows of such."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ratemesh.data.arrays import labelled
from ratemesh.data.arrow import read_wide
from ratemesh.data.columns import (
    LABEL_COLUMNS,
    TEST_NAMES,
    Choose,
    Columns,
    Wanted,
    check_finite,
    check_gaps,
    column_named,
    joined,
    read_csv,
)
from ratemesh.data.dataset import Dataset
from ratemesh.data.files import Array, Intakes, OwnFilesSpec
from ratemesh.data.intake import Incoming, IntakeSpec
from ratemesh.errors import InputError
from ratemesh.specs import nearest

FINE_COLUMN = "fine"


def read_table(path: Path, choose: Choose, separator: str | None = None) -> Columns:
    """Read columns of a .parquet table, or of a CSV file."""
    return read_wide(path, choose) if path.suffix.lower() == ".parquet" else read_csv(path, choose, separator)


def label_column(names: Sequence[str], given: str | None, path: Path) -> str:
    """Return the column of the labels, the one that is given or the first with a usual name."""
    usual = next((name for name in LABEL_COLUMNS if name in names), LABEL_COLUMNS[0])
    return column_named(names, "label", given or usual, path)


def parts_of(path: Path, kind: str) -> list[list[Path]]:
    """Return the files of the training and the test part, or of the one part that there is."""
    if not path.is_dir():
        return [[path]]
    train = sorted(path.glob(f"train*.{kind}"))
    tests = [sorted(path.glob(f"{name}*.{kind}")) for name in TEST_NAMES]
    if train and any(tests):
        return [train, next(filter(None, tests))]
    every = sorted(path.glob(f"*.{kind}"))
    if not every:
        raise InputError(f"data.path must be a .{kind} file or a folder of some; '{path}' holds none.")
    return [every]


class Table(IntakeSpec):
    """Rows of numbers by the names of their columns, standardised as the training rows were."""

    columns: tuple[str, ...] = Field(description="names of the features, in the order that encoders take them")
    mean: tuple[float, ...] = Field((), description="of every feature in the training rows; none: not standardised")
    scale: tuple[float, ...] = Field((), description="standard deviation of every feature there, 1 for a constant")
    fill: tuple[float, ...] = Field((), description="what takes the place of missing values; none: they are refused")
    label: str | None = Field(None, description="column of the labels, where a file has it")
    separator: str | None = Field(None, description="of CSV files; left out: found out")

    @model_validator(mode="after")
    def _lengths(self) -> "Table":
        p = len(self.columns)
        if self.shape != (p,) or any(len(held) not in (0, p) for held in (self.mean, self.scale, self.fill)):
            raise ValueError("columns, mean, scale and fill must have one length, that of a sample")
        return self

    @classmethod
    def learned(cls, X: Array, columns: Sequence[str], standardise: bool, fill: bool, **more: Any) -> "Table":
        """Learn means and scales from training rows X (m, p), NaN where a value is missing."""
        there = ~np.isnan(X)
        if empty := [columns[int(i)] for i in np.flatnonzero(~there.any(0))]:
            raise InputError(
                f"column '{empty[0]}' must have a value in a training row; it has none. Leave the column out with "
                f"data.drop = ['{empty[0]}']."
            )
        mean = np.nanmean(X, 0)
        deviation = np.nanstd(X, 0)
        varies = deviation > 1e-12 * np.abs(mean)  # a constant column leaves rounding errors behind
        learned = {"mean": mean, "scale": np.where(varies, deviation, 1.0)} if standardise else {}
        learned |= {"fill": mean} if fill else {}
        lists = {key: tuple(value.tolist()) for key, value in learned.items()}
        return cls(name="table", shape=(len(columns),), columns=tuple(columns), **lists, **more)

    def standardised(self, X: Array, what: str) -> Tensor:
        """Return rows (m, p) float64 as encoders take them, float32: the same numbers for the same row, always."""
        if self.fill:
            X = np.where(np.isnan(X), np.array(self.fill), X)
        check_gaps(X, self.columns, what)
        if self.mean:
            X = (X - np.array(self.mean)) / np.array(self.scale)
        with np.errstate(over="ignore"):
            found = X.astype(np.float32)
        check_finite(found, self.columns, what)
        return torch.from_numpy(found)

    def prepare(self, raw: Any) -> Tensor:
        """Return rows as encoders take them.

        Args:
            raw: an array or tensor (m, p) with the columns in their order; or a frame, a table of columns or a list of
                rows with names, whose columns may come in any order among others.
        """
        if hasattr(raw, "columns") or isinstance(raw, Mapping):
            return self.standardised(self._picked(raw, list(getattr(raw, "columns", raw))), "X")
        if isinstance(raw, Sequence) and raw and isinstance(raw[0], Mapping):
            names = [name for name in self.columns if all(name in row for row in raw)]
            return self.standardised(self._picked({name: [row[name] for row in raw] for name in names}, names), "X")
        X = _floats(raw.detach().cpu().numpy() if isinstance(raw, Tensor) else raw, "X")
        if X.ndim != 2 or X.shape[1] != len(self.columns):
            got = f"{len(self.columns)} columns: {', '.join(self.columns[:8])}{', …' if len(self.columns) > 8 else ''}"
            raise InputError(f"X must have shape (m, {len(self.columns)}), {got}; got {tuple(X.shape)}.")
        return self.standardised(X, "X")

    def _picked(self, table: Any, names: Sequence[str]) -> Array:
        """Return the columns of a frame in the order that encoders take them, (m, p)."""
        for name in self.columns:
            if name not in names:
                raise InputError(f"X must have the column '{name}', as in training. {nearest(name, map(str, names))}")
        return np.stack([_floats(table[name], f"column '{name}' of X") for name in self.columns], 1)

    def read(self, path: Path) -> Incoming:
        """Read a CSV file or a .parquet table; columns that were not trained on are passed over.

        Columns of an array have no names, only numbers: those of a file that has as many are taken in their order.
        """
        numbered = self.columns == tuple(str(i) for i in range(len(self.columns)))

        def choose(names: Sequence[str]) -> Wanted:
            if numbered and len(names) == len(self.columns) and not set(self.columns) & set(names):
                return Wanted(names, [])
            for name in self.columns:
                if name not in names:
                    raise InputError(f"'{path}' must have the column '{name}', as in training. {nearest(name, names)}")
            return Wanted(self.columns, [self.label] if self.label in names and self.label else [])

        found = read_table(path, choose, self.separator)
        labels = tuple(found.words[self.label].tolist()) if self.label and found.words else ()
        return Incoming(self.standardised(found.numbers, f"'{path}'"), labels=labels)


def _floats(raw: Any, what: str) -> Array:
    """Return numbers as float64, missing ones as NaN."""
    try:
        options = {"na_value": np.nan} if hasattr(raw, "isna") else {}
        found: Array = raw.to_numpy(dtype=np.float64, **options) if options else np.asarray(raw, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must hold numbers ({error}). Turn it into numbers.") from None
    return found


class TableSpec(OwnFilesSpec):
    """What tables with one column a feature have in common."""

    intakes: ClassVar[Intakes] = {"table": Table}
    label: str | None = Field(None, description="column of the labels; else label, labels, fine_label, …")
    fine: str | None = Field(None, description="column of labels by a finer labelling; else fine, if there is one")
    columns: tuple[str, ...] | None = Field(None, min_length=1, description="features; left out: all other columns")
    drop: tuple[str, ...] = Field((), description="columns that are no features")
    split: str | None = Field(None, description="column that says train or test; instead of test_fraction")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if nothing else says which")
    standardise: bool = Field(True, description="bring features to mean 0 and variance 1, by the training rows")
    missing: Literal["error", "mean"] = Field("error", description="what to do about gaps: mean of the training rows")

    def table(self, parts: Sequence[Sequence[Path]], where: str, separator: str | None = None) -> Dataset:
        """Read tables that have one column a feature, of each part that there is.

        Means and scales are of all training rows of the file, before any are held out for validation or dealt out.
        """
        first: list[Wanted] = []  # what the first file has, all must have

        def read(path: Path) -> Columns:
            found = read_table(path, partial(self._wanted, path=path, first=first), separator)
            if self.missing == "error":  # while a row's place in the file is known
                check_gaps(found.numbers, first[0].numbers, f"'{path}'")
            return found

        tables = [joined([read(path) for path in files]) for files in parts]
        label, *fine = (name for name in first[0].words if name != self.split)
        if self.split:
            tables = split_by(joined(tables), self.split, where)
        y, *finer = ([check_labels(table.words[name], name, where) for table in tables] for name in (label, *fine))
        data = labelled([torch.from_numpy(t.numbers) for t in tables], y, where, self.test_fraction, *finer)
        check_several(data, label, where)
        intake = Table.learned(
            *(data.X_train.numpy(), first[0].numbers, self.standardise, self.missing == "mean"),
            label=label,
            separator=separator,
        )
        X_train, X_test = (intake.standardised(X.numpy(), where) for X in (data.X_train, data.X_test))
        return replace(data, X_train=X_train, X_test=X_test, intake=intake)

    def _wanted(self, names: Sequence[str], path: Path, first: list[Wanted]) -> Wanted:
        """Return which columns are features, and which are labels, fine labels and the part."""
        if not first:
            first.append(self._chosen(names, path))
        for name in (*first[0].numbers, *first[0].words):
            if name not in names:
                raise InputError(f"'{path}' must have the column '{name}', as other files have. {nearest(name, names)}")
        return first[0]

    def _chosen(self, names: Sequence[str], path: Path) -> Wanted:
        """Choose columns of the first file."""
        label = label_column(names, self.label, path)
        finer = self.fine or (FINE_COLUMN if FINE_COLUMN in names and label != FINE_COLUMN else None)
        for key, some in (("fine", [finer]), ("split", [self.split]), ("drop", self.drop), ("columns", self.columns)):
            for name in filter(None, some or ()):
                column_named(names, key, name, path)
        words = [label, *filter(None, (finer, self.split))]
        features = self.columns or [name for name in names if name not in (*words, *self.drop)]
        if not features or set(features) & set(words) or len(set(words)) < len(words):
            raise InputError(
                f"data.columns, data.label, data.fine and data.split must name different columns of '{path}', one "
                f"feature at least; got {', '.join(features) or 'no feature'} beside {', '.join(words)}."
            )
        return Wanted(features, words)


def split_by(table: Columns, column: str, where: str) -> list[Columns]:
    """Return the training rows and the others, as a column says."""
    said = table.words[column]
    train, test = said == "train", np.isin(said.astype(str), TEST_NAMES)
    if not (train | test).all() or not train.any() or not test.any():
        got = sorted(set(said.tolist()))[:5]
        raise InputError(
            f"column '{column}' of {where} must be 'train' or one of {', '.join(TEST_NAMES)}, both there; got {got}."
        )
    return [table.rows(train), table.rows(test)]


def check_labels(words: Array, name: str, where: str) -> Array:
    """Return labels as words (m,); refuse gaps."""
    if (gaps := words == "").any():
        raise InputError(
            f"column '{name}' of {where} must have a label in every row; row {int(gaps.argmax()) + 1} has none. Remove "
            "such rows, or label them."
        )
    return words.astype(str)


def check_several(data: Dataset, label: str, where: str) -> None:
    """Refuse data of a single class."""
    if data.num_classes < 2:
        raise InputError(
            f"column '{label}' of {where} must hold at least two classes to tell apart; all rows have "
            f"'{data.classes[0]}'. Is data.label the right column?"
        )


class Csv(TableSpec):
    """Your CSV file, or folder of train*.csv and test*.csv: one column a feature, and one of labels."""

    separator: str | None = Field(None, min_length=1, max_length=1, description="between fields; left out: found out")

    def sources(self, path: Path) -> list[Path]:
        """Return all files."""
        return [file for files in parts_of(path, "csv") for file in files]

    def decode(self, path: Path) -> Dataset:
        """Read the files: numbers, and labels that may be words."""
        return self.table(parts_of(path, "csv"), f"'{path}'", self.separator)
