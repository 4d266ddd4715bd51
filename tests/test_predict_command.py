"""`ratemesh predict` and `ratemesh embed`: from a run and a file of new samples to labels and features."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors import safe_open
from torch import nn

import ratemesh as rm
from toy_cli import call
from toy_nodes import WORDS, Forgetful, samples
from toy_trained import COLUMNS, rows, trained, write_csv


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = [*sys.path]
    yield trained(tmp_path_factory.mktemp("predict"), "predict_net")
    sys.path[:] = before


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "new.csv", rows(5, 50)[0])


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_new_rows_get_the_names_of_their_classes(run: Path, new: Path, tmp_path: Path) -> None:
    done = call("predict", run, new, "-o", tmp_path / "labels.csv", "--scores", "--batch", 7)
    assert done.returncode == 0, done.stderr
    assert "Labels of 50 samples" in done.stdout
    assert "Accuracy" not in done.stdout  # the file has no labels
    found = table((tmp_path / "labels.csv").read_text())
    assert [row["row"] for row in found] == [str(i + 1) for i in range(50)]
    X, y = rows(5, 50)
    labels, scores = rm.load(run).predict(X, return_scores=True)
    assert [row["label"] for row in found] == labels.tolist()
    assert (labels == y).mean() > 0.8
    told = np.array([[float(row[f"score_{name}"]) for name in ("ash", "beech", "cedar")] for row in found])
    np.testing.assert_allclose(told, scores, rtol=1e-5, atol=1e-6)


def test_without_a_file_the_table_goes_through_a_pipe_and_nothing_else(run: Path, tmp_path: Path) -> None:
    X, y = rows(5, 30)
    y[:3] = "elm", "ash", "beech"
    done = call("predict", run, write_csv(tmp_path / "told.csv", X, y), "--node", "south", "--judge", 0)
    labels = [row["label"] for row in table(done.stdout)]
    assert labels == rm.load(run).predict(X, node=1, judge=0).tolist()
    right = int((np.array(labels) == y).sum())
    assert f"{100 * right / 30:.1f} % ({right} of 30). Labels that the mesh does not know: elm." in done.stderr


def test_a_way_of_judging_can_be_chosen(run: Path, new: Path) -> None:
    X, _ = rows(5, 50)
    mesh = rm.load(run)
    for fusion in ("energy", "average", "gaussian"):
        found = table(call("predict", run, new, "--fusion", fusion, "--scores").stdout)
        expected = mesh.scores(X, fusion=fusion)[:, 0].numpy()
        np.testing.assert_allclose([float(row["score_ash"]) for row in found], expected, rtol=1e-4, atol=1e-6)


def test_parquet_in_and_out(run: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    X, y = rows(6, 20)
    pq.write_table(pa.table({**dict(zip(COLUMNS, X.T, strict=True)), "tree": y}), tmp_path / "new.parquet")
    done = call(
        "predict", run / "mesh", tmp_path / "new.parquet", "-o", tmp_path / "labels.parquet", "--code", run.parent
    )
    assert done.returncode == 0, done.stderr
    assert "Accuracy by the labels in the file" in done.stdout
    assert pq.read_table(tmp_path / "labels.parquet").column("label").to_pylist() == rm.load(run).predict(X).tolist()


@pytest.mark.parametrize("form", ["parquet", "npz", "csv", "safetensors"])
@pytest.mark.parametrize("node", [None, "north"])
def test_features_in_every_form(run: Path, tmp_path: Path, form: str, node: str | None) -> None:
    X, y = rows(5, 20)
    source, out = write_csv(tmp_path / "told.csv", X, y), tmp_path / f"z.{form}"
    done = call("embed", run, source, "-o", out, *(["--node", node] if node else []))
    assert done.returncode == 0, done.stderr
    assert "20 samples in 8 dimensions" in done.stdout
    labels, Z = read(out)
    assert labels == y.tolist()
    np.testing.assert_allclose(Z, rm.load(run).encode(X, node=node), atol=1e-6)


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """Labels and features of a file that `embed` wrote, by the usual readers."""
    if path.suffix == ".parquet":
        found = pq.read_table(path)
        return found.column("label").to_pylist(), np.array(found.column("z").to_pylist())
    if path.suffix == ".npz":
        with np.load(path) as held:
            return held["label"].tolist(), held["z"]
    if path.suffix == ".csv":
        found = table(path.read_text())
        return [row["label"] for row in found], np.array([[float(row[f"z{i}"]) for i in range(8)] for row in found])
    with safe_open(path, "numpy") as held:
        return json.loads(held.metadata()["label"]), held.get_tensor("z")


def test_pictures_are_named_and_judged_by_their_folders(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 6)):
        for k, name in enumerate(("dark", "light")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 100, (8, 8), dtype=np.uint8) + np.uint8(120 * k)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{i}.png")
    config = 'rounds = 2\nd = 8\ngraph = { name = "ring", nodes = 2 }\nencoders = [{ name = "mlp", hidden = [16] }]\n'
    (tmp_path / "run.toml").write_text(f'{config}data = {{ name = "folder", path = "." }}\nlocal = {{ epochs = 5 }}\n')
    assert call("run", tmp_path / "run.toml", "--out", tmp_path / "run").returncode == 0
    done = call("predict", tmp_path / "run", tmp_path / "test")
    found = table(done.stdout)
    assert {row["name"] for row in found} == {f"{name}/{i}.png" for name in ("dark", "light") for i in range(6)}
    right = sum(row["name"].startswith(row["label"]) for row in found)
    assert f"({right} of 12)" in done.stderr
    assert right > 9


def test_samples_of_an_archive_and_their_labels(tmp_path: Path) -> None:
    nodes = [rm.Node({"name": "mlp", "hidden": [16]}, *samples(i)) for i in (0, 1)]
    rm.Mesh(nodes, d=8).fit(rounds=1, progress=False).save(tmp_path / "mesh")
    X, y = samples(3, 40)
    np.savez(tmp_path / "new.npz", x=X, y=y)
    done = call("predict", tmp_path / "mesh", tmp_path / "new.npz")
    assert "of 40)" in done.stderr
    np.savez(tmp_path / "bad.npz", x=X[:, :5])
    done = call("predict", tmp_path / "mesh", tmp_path / "bad.npz")
    assert (done.returncode, done.stdout) == (2, "")
    assert "X must have shape (m, 6), as in training; got (40, 5)" in done.stderr


def test_columns_of_arrays_are_taken_in_their_order(tmp_path: Path) -> None:
    """A mesh of Python that standardises numbers its columns; files of other meshes must have the names."""
    (X, y), new = rows(0, 120), rows(1, 30)[0]
    rm.Mesh([rm.Node("mlp", X, y)], d=8, standardise=True).fit(rounds=1, progress=False).save(tmp_path / "mesh")
    done = call("predict", tmp_path / "mesh", write_csv(tmp_path / "new.csv", new))
    assert [row["label"] for row in table(done.stdout)] == rm.load(tmp_path / "mesh").predict(new).tolist()
    done = call("predict", tmp_path / "mesh", write_csv(tmp_path / "new.csv", new, rows(1, 30)[1]))
    assert "must have the column '0'" in done.stderr  # which of seven is no feature cannot be known


@pytest.mark.parametrize("kind", ["sequences", "whole numbers"])
def test_arrays_of_other_kinds(tmp_path: Path, kind: str) -> None:
    draw, y = np.random.default_rng(0), np.arange(60) % 2
    if kind == "sequences":
        X = (draw.normal(size=(60, 5, 3)) + 3 * y[:, None, None]).astype(np.float32)
        net = nn.Sequential(nn.Flatten(), nn.Linear(15, 8))
    else:
        X, net = draw.integers(0, 5, (60, 4)) + 5 * y[:, None], nn.Sequential(nn.Embedding(10, 2), nn.Flatten())
    rm.Mesh([rm.Node(net, X, y)]).fit(rounds=1, progress=False).save(tmp_path / "mesh")
    np.savez(tmp_path / "new.npz", x=X, y=y)
    done = call("predict", tmp_path / "mesh", tmp_path / "new.npz")
    assert done.returncode == 0, done.stderr
    assert [int(row["label"]) for row in table(done.stdout)] == rm.load(tmp_path / "mesh").predict(X).tolist()
    done = call("predict", tmp_path / "mesh", tmp_path / "new.csv")
    assert "must be an .npz file with x: the mesh was trained on arrays" in done.stderr


def test_what_is_wrong_with_a_file_is_told(run: Path, new: Path, tmp_path: Path) -> None:
    less = tmp_path / "less.csv"
    less.write_text("\n".join(line.rpartition(",")[0] for line in new.read_text().splitlines()) + "\n")
    for source, more, words in (
        (less, [], "must have the column 'f', as in training"),
        (tmp_path / "none.csv", [], "none.csv"),
        (new, ["-o", tmp_path / "labels.xlsx"], "--out must end in .csv or .parquet; got"),
        (new, ["-o", tmp_path / "nowhere" / "labels.csv"], "--out must be in a folder that exists"),
        (new, ["-o", new], "--out must be another file than the one that is read"),
        (new, ["--node", "west"], "node must be a number in 0..1 or a name; got 'west'"),
        (new, ["--node", 0, "--judge", 7], "node must be a number in 0..1 or a name; got 7"),
        (new, ["--device", "cuda:999"], "device must be one that"),
        (new, ["--code", tmp_path / "nowhere"], "folder must hold the modules of own networks"),
    ):
        done = call("predict", run, source, *more)
        assert done.returncode == 2, words
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert table(call("predict", run, new).stdout)  # and the file that was to be overwritten is as it was


def test_what_is_wrong_with_a_mesh_is_told(run: Path, new: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished, ignore=shutil.ignore_patterns("mesh"))
    card = json.loads((run / "mesh" / "mesh.json").read_text())
    lost = tmp_path / "lost"
    shutil.copytree(run / "mesh", lost)
    card["nodes"][1]["encoder"]["name"] = "no_such_module:Narrow"
    (lost / "mesh.json").write_text(json.dumps(card))
    for folder, words in (
        (unfinished, f"ratemesh resume {unfinished}"),
        (tmp_path / "nothing", "path must be a saved mesh or the folder of a run"),
        (lost, "must be importable as 'module:Class'; got 'no_such_module:Narrow'"),
    ):
        done = call("predict", folder, new)
        assert done.returncode == 2
        assert words in done.stderr


def test_code_that_came_with_a_mesh_is_not_run(run: Path, new: Path, tmp_path: Path, monkeypatch) -> None:
    """A card may name a module; what lies beside the card is its sender's."""
    sent = tmp_path / "sent"
    shutil.copytree(run, sent)
    (sent / "sent_net.py").write_text("raise SystemExit('ran')\n")
    card = json.loads((sent / "mesh" / "mesh.json").read_text())
    card["nodes"][1]["encoder"]["name"] = "sent_net:Narrow"
    (sent / "mesh" / "mesh.json").write_text(json.dumps(card))
    (sent / "config.toml").write_text(f"folder = '{sent}'\n")
    done = call("predict", sent, new)
    assert done.returncode == 2
    assert "sent_net" in done.stderr


def test_networks_that_only_python_has_are_told(tmp_path: Path) -> None:
    X, y = samples(0)
    mesh = rm.Mesh([rm.Node(Forgetful(8), X, WORDS[y])]).fit(rounds=1, progress=False)
    mesh.save(tmp_path / "mesh")
    np.savez(tmp_path / "new.npz", x=X)
    done = call("predict", tmp_path / "mesh", tmp_path / "new.npz")
    assert done.returncode == 2
    assert "networks=[" in done.stderr
