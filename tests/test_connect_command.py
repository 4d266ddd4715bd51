"""`ratemesh stats` and `ratemesh connect` from files to folder, and what they say of files that cannot be used."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from ratemesh.connection.connection import Connection
from ratemesh.connection.files import read_site
from ratemesh.data.features import read_features
from ratemesh.errors import InputError
from toy_cli import call
from toy_sites_apart import Law, archive


def table(path: Path, law: Law, number: int) -> Path:
    """Write features as a parquet table with a column that says which are held out."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    X, y = law.samples(480)
    columns = {
        "z": law.encoder(number)(X).tolist(),
        "y": y.tolist(),
        "x": X.tolist(),
        "fine": [f"{word}-{n % 2}" for n, word in enumerate(y)],
        "split": ["train"] * 400 + ["test"] * 80,
    }
    parquet.write_table(arrow.table(columns), path)
    return path


def test_features_statistics_and_tables_are_connected(tmp_path: Path) -> None:
    law = Law()
    a = archive(tmp_path / "a.npz", law, 0, fine_test=np.arange(80) % 2)
    b = table(tmp_path / "b.parquet", law, 1)
    c = archive(tmp_path / "c.npz", law, 2, d=16)
    sent = tmp_path / "sent" / "c.safetensors"
    done = call("stats", c, "-o", sent, "--codec", "small", "--name", "clinic")
    assert done.returncode == 0, done.stderr
    assert read_site(sent).name == "clinic"
    done = call("connect", a, b, sent, "--out", tmp_path / "mesh")
    assert done.returncode == 0, done.stderr
    assert f"Results: {tmp_path / 'mesh'}" in done.stdout.replace("\n", "")
    found = json.loads((tmp_path / "mesh" / "connection.json").read_text())
    assert [site["name"] for site in found["sites"]] == ["a", "b", "clinic"]
    assert found["summary"]["acc_cross"] > 0.95
    assert found["summary"]["retrieval_cross"] > 0.9
    judged = {(pair["speaker"], pair["judge"]): pair for pair in found["pairs"]}
    assert judged["a", "clinic"]["samples"] == 80
    assert "accuracy" not in judged["clinic", "a"]  # statistics say nothing by themselves
    assert ("clinic", "clinic") not in judged
    mesh = Connection.load(tmp_path / "mesh")
    assert {site.sketch.spec.p for site in mesh.sites if site.sketch} == {12}  # as in the statistics that were sent
    page = (tmp_path / "mesh" / "index.html").read_text()
    assert "clinic" in page
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_site_joins_a_finished_mesh_by_the_command(tmp_path: Path) -> None:
    law = Law()
    files = [archive(tmp_path / f"{n}.npz", law, n, classes=(0, 1, 2)) for n in range(2)]
    assert call("connect", *files, "--out", tmp_path / "mesh").returncode == 0
    new = archive(tmp_path / "new.npz", law, 2)
    done = call("connect", tmp_path / "mesh", new, "--out", tmp_path / "larger")
    assert done.returncode == 0, done.stderr
    before, after = (Connection.load(tmp_path / name) for name in ("mesh", "larger"))
    torch.testing.assert_close(after.maps[0], before.maps[0], atol=0, rtol=0)
    assert after.classes == (*before.classes, "fox")
    found = json.loads((tmp_path / "larger" / "connection.json").read_text())
    assert [row["site"] for row in found["speakers"]] == ["new"]


def test_pages_name_classes_without_trusting_them(tmp_path: Path) -> None:
    law = Law()
    evil = np.array(["<script>alert(1)</script>", "b"])
    files = [
        archive(tmp_path / f"{n}.npz", law, n, y_train=evil[np.arange(400) % 2], z_test=None, y_test=None)
        for n in (0, 1)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert call("connect", *files).returncode == 0

    class Scripts(HTMLParser):
        found = 0

        def handle_starttag(self, tag: str, _: object) -> None:
            self.found += tag == "script"

    parser = Scripts()
    parser.feed((tmp_path / "mesh" / "index.html").read_text())
    assert parser.found == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": None}, "must hold z_train, y_train; it holds"),
        ({"y_train": np.arange(7)}, "y_train of .* must hold a label for every feature"),
        ({"z_train": np.full((400, 12), np.nan)}, "z_train of .* must be finite float32 numbers; row 0"),
        ({"z_train": np.zeros((400, 2, 2))}, "z_train of .* must be floats of shape"),
        ({"z_test": np.zeros((80, 5), np.float32)}, "features of one encoder; z_train has 12 columns, z_test 5"),
        ({"y_test": None}, "z_test and y_test, or neither"),
        ({"x_train": np.zeros((3, 20), np.float32)}, "a sample for every feature, 400; got 3"),
        ({"y_train": np.array(["a"] * 399 + ["b"])}, "class 'b' has 1"),
        ({"y_train": np.array([object()] * 400)}, "Python objects, which are never loaded"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_nothing_is_left(tmp_path: Path, change, words: str) -> None:
    law = Law()
    good, bad = archive(tmp_path / "good.npz", law, 0), archive(tmp_path / "bad.npz", law, 1, **change)
    done = call("connect", good, bad, "--out", tmp_path / "mesh")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "bad" in said
    assert re.search(words, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.npz", "good.npz"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["connect", "a.npz", "--out", "m"], "at least two"),
        (["connect", "a.npz", "b.npz", "--out", "full"], "must be a new or empty folder"),
        (["connect", "a.npz", "full", "--out", "m"], "only the first argument may be a folder"),
        (["connect", "full", "a.npz", "--out", "m"], "must be a readable JSON file"),
        (["connect", "a.npz", "none.npz", "--out", "m"], "there is none"),
        (["connect", "a.npz", "a.txt", "--out", "m"], "must end in .npz or .parquet"),
        (["connect", "a.npz", "b.npz", "--out", "m", "--sketch", "forier"], "Did you mean 'fourier'"),
        (["connect", "a.npz", "other.npz", "--out", "m"], "must use one sketch"),
        (["stats", "a.npz", "-o", "a.bin"], "must end in .safetensors"),
        (["stats", "a.npz", "-o", "a.safetensors", "--codec", "smal"], "Did you mean 'small'"),
    ],
)
def test_commands_that_cannot_work_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    law = Law()
    for n, name in enumerate(("a", "b")):
        archive(tmp_path / f"{name}.npz", law, n)
    archive(tmp_path / "other.npz", law, 2, x_train=np.random.default_rng(0).random((400, 7), np.float32))
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = call(*words)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_splits_of_a_table_are_known_words(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"z": [[1.0, 2.0]] * 2, "y": [0, 1], "split": ["train", "later"]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"split of .* must be 'train' or one of"):
        read_features(tmp_path / "t.parquet")
    parquet.write_table(arrow.table({"z": columns["z"]}), tmp_path / "u.parquet")
    with pytest.raises(InputError, match="must hold columns z, y"):
        read_features(tmp_path / "u.parquet")


def test_texts_are_sketched_by_n_grams(tmp_path: Path) -> None:
    law = Law()
    X, y = law.samples(60)
    words = np.array([f"{word} {n % 7} times" for n, word in enumerate(y)])
    np.savez(tmp_path / "t.npz", z_train=law.encoder(0)(X).numpy(), y_train=y, x_train=words)
    done = call("stats", tmp_path / "t.npz", "-o", tmp_path / "t.safetensors")
    assert done.returncode == 0, done.stderr
    sketch = read_site(tmp_path / "t.safetensors").sketch
    assert sketch is not None
    assert sketch.spec.name == "ngrams"
