"""Texts as vectors: words are hashed into columns and weighed by how rare they are, TF-IDF without a vocabulary."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ratemesh.data.arrays import bounded, labelled
from ratemesh.data.columns import Columns, Wanted, column_named, joined
from ratemesh.data.dataset import Dataset
from ratemesh.data.files import Array, Intakes, OwnFilesSpec
from ratemesh.data.intake import Incoming, IntakeSpec
from ratemesh.data.tables import check_labels, check_several, label_column, parts_of, read_table, split_by
from ratemesh.errors import InputError
from ratemesh.specs import nearest

TEXT_COLUMNS = ("text", "sentence", "review", "content", "document")
MOST_WORDS = 3


class Texts(IntakeSpec):
    """Texts, hashed and weighed as those that encoders were trained on."""

    idf: tuple[float, ...] = Field(
        description="weight of every column: the rarer its words in training texts, the more"
    )
    ngrams: int = Field(1, ge=1, le=MOST_WORDS, description="longest run of words that counts as one")
    text: str = Field("text", description="column of the texts in a file")
    label: str | None = Field(None, description="column of the labels, where a file has it")
    separator: str | None = Field(None, description="of CSV files; left out: found out")

    def prepare(self, raw: Any) -> Tensor:
        """Return a list of texts, or a column of them, as unit vectors (m, p); a text without words is 0."""
        texts = [raw] if isinstance(raw, str) else list(raw[self.text] if _has_columns(raw) else raw)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise InputError(f"X must be texts; got {type(wrong[0]).__name__}. Give a list of words, or read a file.")
        return weighed(counted(texts, len(self.idf), self.ngrams, "X"), np.array(self.idf))

    def read(self, path: Path) -> Incoming:
        """Read the texts of a CSV file, of a .parquet table, or the lines of a .txt file."""
        if path.suffix.lower() == ".txt":
            return Incoming(self.prepare(_lines(path)))

        def choose(names: Sequence[str]) -> Wanted:
            if self.text not in names:
                raise InputError(
                    f"'{path}' must have the column '{self.text}', as in training. {nearest(self.text, names)}"
                )
            return Wanted((), [name for name in (self.text, self.label) if name and name in names])

        found = read_table(path, choose, self.separator).words
        labels = tuple(found[self.label].tolist()) if self.label in found and self.label else ()
        return Incoming(self.prepare(found[self.text].tolist()), labels=labels)


def _has_columns(raw: Any) -> bool:
    """Whether something is a table, not a list of texts or a column of such."""
    return hasattr(raw, "columns") or isinstance(raw, dict)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' must be a readable text file in UTF-8 ({error}).") from None


def counted(texts: Sequence[str], features: int, ngrams: int, what: str) -> Any:
    """Return how often the words that fall into a column are in a text, sparse (m, p)."""
    from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, and only needed here

    bounded((len(texts), features), 8, f"{what} with data.features = {features}")
    hashing = HashingVectorizer(n_features=features, ngram_range=(1, ngrams), norm=None, alternate_sign=False)
    return hashing.transform(texts)


def rarity(counts: Any) -> Array:
    """Return every column's weight, (p,): log((1 + m) / (1 + texts with its words)) + 1, as scikit-learn has it."""
    holders = np.bincount(counts.indices, minlength=counts.shape[1])
    found: Array = np.log((1 + counts.shape[0]) / (1 + holders)) + 1
    return found


def weighed(counts: Any, idf: Array) -> Tensor:
    """Return texts as unit vectors (m, p) float32, by their words' counts and weights; 0 for one without words."""
    from sklearn.preprocessing import normalize

    rows = normalize(counts.multiply(idf[None]).tocsr())
    return torch.from_numpy(rows.astype(np.float32).toarray())


class Text(OwnFilesSpec):
    """Your texts in a CSV file or .parquet table, a column of texts and one of labels: hashed TF-IDF vectors."""

    intakes: ClassVar[Intakes] = {"text": Texts}
    text: str | None = Field(None, description="column of the texts; else text, sentence, review, …")
    label: str | None = Field(None, description="column of the labels; else label, labels, fine_label, …")
    fine: str | None = Field(None, description="column of labels by a finer labelling")
    split: str | None = Field(None, description="column that says train or test; instead of test_fraction")
    features: int = Field(4096, ge=2, le=2**20, description="columns that words are hashed into; more mix fewer words")
    ngrams: int = Field(1, ge=1, le=MOST_WORDS, description="longest run of words that counts as one")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="part held out if nothing else says which")
    separator: str | None = Field(None, min_length=1, max_length=1, description="of CSV files; left out: found out")

    def sources(self, path: Path) -> list[Path]:
        """Return all files."""
        return [file for files in self._parts(path) for file in files]

    def _parts(self, path: Path) -> list[list[Path]]:
        tables = path.is_dir() and any(path.glob("*.parquet"))
        return parts_of(path, "parquet" if tables else "csv")

    def decode(self, path: Path) -> Dataset:
        """Read texts and labels; weights are learned from all training texts of the file."""
        where = f"'{path}'"
        tables = [joined([self._read(file) for file in files]) for files in self._parts(path)]
        text, label, *fine = (name for name in tables[0].words if name != self.split)
        if self.split:
            tables = split_by(joined(tables), self.split, where)
        y, *finer = ([check_labels(table.words[name], name, where) for table in tables] for name in (label, *fine))
        texts = [table.words[text] for table in tables]
        sizes = [len(part) for part in texts]
        numbers = torch.arange(sum(sizes)).split(sizes)  # rows in the place of samples
        data = labelled(numbers, y, where, self.test_fraction, *finer)
        check_several(data, label, where)
        counts = counted(np.concatenate(texts).tolist(), self.features, self.ngrams, f"the texts of {where}")
        idf = rarity(counts[data.X_train.numpy()])
        X_train, X_test = (weighed(counts[rows.numpy()], idf) for rows in (data.X_train, data.X_test))
        intake = Texts(
            name="text",
            shape=(self.features,),
            idf=tuple(idf.tolist()),
            ngrams=self.ngrams,
            text=text,
            label=label,
            separator=self.separator,
        )
        return replace(data, X_train=X_train, X_test=X_test, intake=intake)

    def _read(self, path: Path) -> Columns:
        def choose(names: Sequence[str]) -> Wanted:
            usual = next((name for name in TEXT_COLUMNS if name in names), TEXT_COLUMNS[0])
            text = column_named(names, "text", self.text or usual, path)
            label = label_column(names, self.label, path)
            named = {"fine": self.fine, "split": self.split}
            more = [column_named(names, key, name, path) for key, name in named.items() if name]
            if len({text, label, *more}) < 2 + len(more):
                raise InputError(f"data.text, data.label, data.fine and data.split must differ; got {text}, {label}.")
            return Wanted((), [text, label, *more])

        return read_table(path, choose, self.separator)
