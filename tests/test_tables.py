"""Tables with one column a feature: CSV files and wide Parquet, what is learned of them, and new rows."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_wine

from ratemesh.data import INTAKES, IntakeSpec
from ratemesh.data.parquet import Parquet
from ratemesh.data.tables import Csv, Table
from ratemesh.errors import InputError
from ratemesh.experiment.experiment import run
from ratemesh.specs import resolve

DRAW = np.random.default_rng(0)
ROWS = 60


def frame(rows: int = ROWS) -> pd.DataFrame:
    """Three columns on different scales, classes that are words, finer ones, and a constant."""
    code = np.arange(rows) % 3
    return pd.DataFrame(
        {
            "height": 1000 * DRAW.normal(size=rows) + 1e6 + 3000 * code,
            "width": 0.001 * DRAW.normal(size=rows),
            "kind": np.array(["ant", "bee", "cow"])[code],
            "legs": 6,
            "fine": [f"f{i % 6}" for i in range(rows)],
            "odd": code == 1,
        }
    )


def written(path: Path, table: pd.DataFrame | None = None, **how: Any) -> Path:
    table = frame() if table is None else table
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False, **how)
    return path


def lines(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_is_standardised_by_its_training_rows_only(tmp_path: Path, name: str) -> None:
    table = frame()
    reader = Parquet if name.endswith("parquet") else Csv
    data = reader(path=written(tmp_path / name, table), label="kind").load(0)
    assert data.classes == ("ant", "bee", "cow")
    assert data.fine_classes == tuple(f"f{i}" for i in range(6))
    assert (data.X_train.dtype, tuple(data.X_train.shape), len(data.y_test)) == (torch.float32, (48, 4), 12)
    assert isinstance(data.intake, Table)
    assert data.intake.columns == ("height", "width", "legs", "odd")
    assert torch.allclose(data.X_train.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(data.X_train.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0, 1.0]), atol=1e-5)
    assert float(data.X_test.mean(0).abs().max()) > 0.01  # they had no say
    assert (data.intake.scale[2], data.intake.mean[2]) == (1.0, 6.0)


def test_csv_and_parquet_give_the_same_numbers(tmp_path: Path) -> None:
    table = frame()
    one, other = (
        reader(path=written(tmp_path / name, table), label="kind").load(0)
        for reader, name in ((Csv, "t.csv"), (Parquet, "t.parquet"))
    )
    assert one.digest() == other.digest()


def test_the_intake_gives_what_training_had_from_whatever_holds_the_rows(tmp_path: Path) -> None:
    table = frame()
    path = written(tmp_path / "t.csv", table)
    data = Csv(path=path, label="kind", drop=["odd"]).load(0)
    kept = json.loads(json.dumps(data.intake.model_dump(mode="json")))  # type: ignore[union-attr]
    base: Any = IntakeSpec
    intake = resolve(kept, INTAKES, base, "intake")
    assert intake == data.intake
    columns = list(intake.columns)
    whole = intake.read(path)
    assert whole.labels == tuple(table["kind"])
    assert sorted(map(tuple, whole.X.tolist())) == sorted(map(tuple, torch.cat([data.X_train, data.X_test]).tolist()))
    shuffled = table[[*columns[::-1], "kind"]]
    for raw in (
        table[columns].to_numpy(),
        torch.from_numpy(table[columns].to_numpy(np.float64)),
        shuffled,
        shuffled.to_dict("records"),
        {name: table[name].tolist() for name in columns},
    ):
        assert torch.equal(intake.prepare(raw), whole.X)
    again = intake.read(written(tmp_path / "new.parquet", shuffled.drop(columns="kind")))
    assert torch.equal(again.X, whole.X)
    assert again.labels == ()


def test_the_intake_says_what_does_not_fit(tmp_path: Path) -> None:
    intake = Table(shape=(2,), columns=("a", "b"), mean=(0, 0), scale=(1, 1))
    with pytest.raises(InputError, match=r"must have the column 'b', as in training\. Did you mean 'bb'\?"):
        intake.prepare(pd.DataFrame({"a": [1], "bb": [2]}))
    with pytest.raises(InputError, match=r"column 'b' of X must hold numbers"):
        intake.prepare({"a": [1], "b": ["x"]})
    with pytest.raises(InputError, match=r"column 'b' of X must have no gaps; row 2 has one"):
        intake.prepare(pd.DataFrame({"a": [1, 2], "b": [1, None]}))
    with pytest.raises(InputError, match=r"X must have shape \(m, 2\), 2 columns: a, b; got \(3, 1\)"):
        intake.prepare(np.zeros((3, 1)))
    with pytest.raises(InputError, match=r"'.*n\.csv' must have the column 'a'"):
        intake.read(lines(tmp_path / "n.csv", "b,c", "1,2"))
    filled = Table(shape=(2,), columns=("a", "b"), fill=(7, 8))
    assert filled.prepare(pd.DataFrame({"a": [1, None], "b": pd.array([None, 3], "Int64")})).tolist() == [
        [1.0, 8.0],
        [7.0, 3.0],
    ]


def test_the_cache_keeps_the_intake(tmp_path: Path) -> None:
    spec = Csv(path=written(tmp_path / "t.csv"), label="kind")
    first = spec.load(0)
    (entry,) = (tmp_path / ".ratemesh-cache").iterdir()
    assert json.loads((entry / "about.json").read_text())["intake"]["name"] == "table"
    second = spec.load(0)
    assert second.intake == first.intake
    (entry / "about.json").write_text('{"classes": ["a"], "fine_classes": [], "intake": {"name": "other"}}')
    assert spec.load(0).intake == first.intake  # broken entries are decoded anew


def test_missing_values_are_refused_or_filled_by_the_training_mean(tmp_path: Path) -> None:
    rows = [f"{'' if i == 4 else i},{i % 5},{'xy'[i % 2]},{'test' if i > 7 else 'train'}" for i in range(12)]
    path = lines(tmp_path / "t.csv", "a,b,label,part", *rows)
    with pytest.raises(InputError, match=r"column 'a' of '.*t\.csv' must have no gaps; row 5 has one.*data\.missing"):
        Csv(path=path, split="part").load(0)
    data = Csv(path=path, split="part", missing="mean", standardise=False).load(0)
    mean = np.mean([0, 1, 2, 3, 5, 6, 7])
    assert data.X_train[:, 0].tolist() == pytest.approx([0, 1, 2, 3, mean, 5, 6, 7])
    assert (len(data.y_train), data.X_test[:, 0].tolist()) == (8, [8, 9, 10, 11])
    assert isinstance(data.intake, Table)
    assert data.intake.fill == pytest.approx((mean, np.mean([i % 5 for i in range(8)])))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found_and_quotes_understood(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(["a b", "label"])
        writer.writerows([[str(i), f'the "{"xy"[i % 2]}"{separator} so\ncalled'] for i in range(10)])
    data = Csv(path=path).load(0)
    assert data.classes == (f'the "x"{separator} so\ncalled', f'the "y"{separator} so\ncalled')


def test_a_folder_has_training_and_test_files_with_columns_in_any_order(tmp_path: Path) -> None:
    table = frame()
    written(tmp_path / "train-1.csv", table[:30])
    written(tmp_path / "train-2.csv", table[30:50][table.columns[::-1]])
    written(tmp_path / "test.csv", table[50:])
    data = Csv(path=tmp_path, label="kind").load(0)
    assert (len(data.y_train), len(data.y_test)) == (50, 10)
    intake = data.intake
    assert intake is not None
    assert torch.equal(data.X_train, intake.prepare(table[:50]))
    written(tmp_path / "test.csv", table[50:].drop(columns="width"))
    with pytest.raises(InputError, match=r"test\.csv' must have the column 'width', as other files have"):
        Csv(path=tmp_path, label="kind").load(0)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([""], {}, "must begin with a row of column names; it is empty"),
        (["a,label"], {}, "it has no rows below"),
        (["1,2,3", "4,5,6"], {}, r"must begin with a row of column names; it begins 1, 2, 3"),
        (
            ["T,2,8,3", "I,5,12,4"],
            {},
            r"data\.label must name a column.*Does the file begin with a row of column names",
        ),
        (["a,a,label", "1,2,x"], {}, "must name every column once; 'a' is there twice"),
        ([",a,label", "0,1,x"], {}, r"column 1 has no name.*index=False"),
        (
            ["a,letter", "1,x"],
            {"label": "leter"},
            r"data\.label must name a column.*got 'leter'\. Did you mean 'letter'\?",
        ),
        (
            ["a,b,label", "1,2,x", "3,red,y"],
            {},
            r"column 'b' of .* must hold numbers; row 2 has 'red'.*data\.drop = \['b'\]",
        ),
        (["a;b;label", "1;2,5;x", "3;4;y"], {}, r"row 1 has '2,5'\. Write decimals with a point"),
        (["a,label", "1,x", "2,y,z"], {}, "row 2 of .* must have 2 fields.*got 3"),
        (["a,label", "1,x", "inf,y"], {}, "column 'a' of .* must hold finite numbers; row 2 has infinity"),
        (["a,label", "1,x", "2,"], {}, "column 'label' of .* must have a label in every row; row 2 has none"),
        (["a,label", "1,x", "2,x", "3,x", "4,x", "5,x"], {}, "at least two classes.*all rows have 'x'"),
        (["label", "x"], {}, "got no feature beside label"),
        (["a,label", "1,x"], {"columns": ["a", "label"]}, "must name different columns"),
        (
            ["a,label,part", "1,x,dev", "2,y,train"],
            {"split": "part"},
            r"must be 'train' or one of test.*got \['dev', 'train'\]",
        ),
        (["a,label", '"1,x'], {}, "must be a CSV file in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, rows: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Csv(path=lines(tmp_path / "t.csv", *rows), **settings).load(0)


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,label\n1,ä\n".encode("latin-1"))
    with pytest.raises(InputError, match="must be a CSV file in UTF-8"):
        Csv(path=tmp_path / "t.csv").load(0)


def test_classes_fix_order_and_completeness(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv")
    usual = Csv(path=path, label="kind").load(0)
    data = Csv(path=path, label="kind", classes=["cow", "dog", "bee", "ant"]).load(0)
    assert (data.classes, data.num_classes) == (("cow", "dog", "bee", "ant"), 4)
    assert [data.classes[k] for k in data.y_train] == [usual.classes[k] for k in usual.y_train]
    with pytest.raises(InputError, match=r"must be among data\.classes = \['cow', 'bee'\]; got 'ant'"):
        Csv(path=path, label="kind", classes=["cow", "bee"]).load(0)


def test_a_table_runs_from_a_file_to_words(tmp_path: Path) -> None:
    wine = load_wine(as_frame=True)
    names = np.array(["barolo", "grignolino", "barbera"])
    written(tmp_path / "wine.csv", wine.data.assign(cultivar=names[wine.target]))
    config = """
        rounds = 3
        d = 16
        method = "alg3"
        local = { balance = true }
        data = { name = "csv", path = "wine.csv", label = "cultivar" }
        graph = { name = "ring", nodes = 3 }
        partition = { name = "labels", labels = [["barolo", "barbera"], ["barolo", "grignolino"], [2, "barbera"]] }
        engine = { name = "inprocess", workers = 1 }
    """
    (tmp_path / "wine.toml").write_text(config)
    result = run(tmp_path / "wine.toml", tmp_path / "out")
    network = json.loads((tmp_path / "out" / "network.json").read_text())
    assert network["classes"] == ["barbera", "barolo", "grignolino"]
    assert [node["labels"] for node in network["nodes"]] == [[0, 1], [1, 2], [0, 2]]
    assert result.metrics["acc_label_aware"] > 0.8
    with pytest.raises(InputError, match=r"labels of the data; row 0 has 'barollo'\. Did you mean 'barolo'\?"):
        run(tmp_path / "wine.toml", overrides=['partition.labels=[["barollo"], [0], [1]]'])
    with pytest.raises(InputError, match=r"nobody holds label grignolino, which has .*Add grignolino to a row"):
        run(tmp_path / "wine.toml", overrides=['partition.labels=[["barolo"], [0], [1]]'])
