"""Texts as hashed TF-IDF vectors: the same as scikit-learn's, learned on training texts, and a run on real ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.own import LIBRARIES, docstrings, write
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from ratemesh.data import INTAKES, IntakeSpec
from ratemesh.data.texts import Text, Texts
from ratemesh.errors import InputError
from ratemesh.experiment.experiment import run
from ratemesh.specs import resolve

ANIMALS = ["the cat sleeps", "a cat purrs", 'cats, "wild" ones', "the dog barks", "dogs bark\nloudly", "one dog runs"]
LABELS = ["cat", "cat", "cat", "dog", "dog", "dog"]


def reviews(path: Path, times: int = 3, **more: Any) -> Path:
    table = pd.DataFrame(
        {"text": [f"{t} {'x' * i}" for i in range(times) for t in ANIMALS], "kind": LABELS * times} | more
    )
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_vectors_are_those_of_scikit_learn_with_weights_of_training_texts(tmp_path: Path, name: str) -> None:
    part = ["train"] * 12 + ["test"] * 6
    path = reviews(tmp_path / name, part=part)
    data = Text(path=path, label="kind", features=64, ngrams=2, split="part").load(0)
    texts = pd.read_csv(path)["text"] if name.endswith("csv") else pd.read_parquet(path)["text"]
    counts = HashingVectorizer(n_features=64, ngram_range=(1, 2), norm=None, alternate_sign=False).transform(texts)
    weigher = TfidfTransformer().fit(counts[:12])
    expected = weigher.transform(counts).toarray().astype(np.float32)
    assert (data.X_train.dtype, data.classes) == (torch.float32, ("cat", "dog"))
    assert np.allclose(data.X_train, expected[:12], atol=1e-7)
    assert np.allclose(data.X_test, expected[12:], atol=1e-7)
    assert isinstance(data.intake, Texts)
    assert np.allclose(data.intake.idf, weigher.idf_)


def test_the_intake_gives_what_training_had_and_survives_json(tmp_path: Path) -> None:
    path = reviews(tmp_path / "t.csv", part=["train"] * 12 + ["test"] * 6)
    spec = Text(path=path, label="kind", features=32, split="part")
    data = spec.load(0)
    base: Any = IntakeSpec
    kept = json.loads(json.dumps(data.intake.model_dump(mode="json")))  # type: ignore[union-attr]
    intake = resolve(kept, INTAKES, base, "intake")
    found = intake.read(path)
    assert torch.equal(found.X, torch.cat([data.X_train, data.X_test]))
    assert found.labels == tuple(LABELS * 3)
    texts = pd.read_csv(path)["text"]
    for raw in (texts, texts.tolist(), pd.DataFrame({"text": texts, "other": 1})):
        assert torch.equal(intake.prepare(raw), found.X)
    (tmp_path / "lines.txt").write_text("the cat sleeps\n\n")
    lines = intake.read(tmp_path / "lines.txt").X
    assert torch.equal(lines[0], intake.prepare("the cat sleeps")[0])
    assert lines[1].abs().sum() == 0
    assert spec.load(0).intake == intake  # from the cache


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": "txt"}, r"data\.text must name a column of '.*t\.csv'; got 'txt'\. Did you mean 'text'\?"),
        ({"label": "kin"}, r"data\.label must name a column.*Did you mean 'kind'\?"),
        ({}, r"data\.label must name a column"),
        ({"label": "text"}, r"must differ; got text, text"),
        ({"label": "same"}, r"column 'same' of .* at least two classes"),
        ({"label": "kind", "features": 2**20}, r"features = 1048576 must fit into half of this machine's memory"),
    ],
)
def test_texts_that_cannot_be_used_say_why(
    tmp_path: Path, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "features" in settings:
        monkeypatch.setattr("os.sysconf", lambda name: 2**13 if name == "SC_PAGE_SIZE" else 2**10)
    with pytest.raises(InputError, match=message):
        Text(path=reviews(tmp_path / "t.csv", same="a"), **settings).load(0)


def test_new_texts_that_are_none(tmp_path: Path) -> None:
    intake = Texts(shape=(2,), idf=(1.0, 1.0), text="review")
    with pytest.raises(InputError, match=r"X must be texts; got int"):
        intake.prepare([1, 2])
    with pytest.raises(InputError, match=r"must have the column 'review', as in training"):
        intake.read(reviews(tmp_path / "t.csv"))


def test_real_texts_run_from_a_file_to_words(tmp_path: Path) -> None:
    write(tmp_path / "docs.csv", *docstrings(100))
    (tmp_path / "docs.toml").write_text(
        'rounds = 10\nd = 24\ngraph = { name = "ring", nodes = 2 }\nengine = { name = "inprocess", workers = 1 }\n'
        'data = { name = "text", path = "docs.csv", label = "library", features = 512 }\n'
    )
    result = run(tmp_path / "docs.toml", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "network.json").read_text())["classes"] == list(LIBRARIES)
    assert result.metrics["acc_energy"] > 0.5  # of six libraries; their names are not in the texts
