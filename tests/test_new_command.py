"""`ratemesh new`: what it writes runs as it is, as a user would type it."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toy_cli import call

RATEMESH = [sys.executable, "-m", "ratemesh"]


def typed(folder: Path, *words: object) -> str:
    """Run a command as a process of its own, from a folder, and return what it said."""
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=quiet, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def labels(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["label"] for row in csv.DictReader(file)]


def test_a_table_from_the_first_command_to_labels(tmp_path: Path) -> None:
    """Written here, run from its folder and from another one; network.py is found from both."""
    project = tmp_path / "my mesh"
    said = typed(tmp_path, *RATEMESH, "new", "my mesh")
    assert "cd 'my mesh'" in said
    assert (project / "README.md").read_text().startswith("# my mesh\n")
    assert "new.csv: 69 rows" in typed(project, sys.executable, "make_data.py")
    typed(project, *RATEMESH, "run", "mesh.toml", "--out", "run", "--set", "rounds=2", "--workers", 1)
    typed(tmp_path, *RATEMESH, "predict", project / "run", project / "new.csv", "-o", "labels.csv")
    found = labels(tmp_path / "labels.csv")
    assert len(found) == 69
    assert set(found) == {"malignant", "benign"}
    said = typed(project, *RATEMESH, "predict", "run", "data/test.csv", "-o", "judged.csv")
    accuracy = float(said.split("in the file: ")[1].split(" %")[0])
    assert accuracy > 90
    assert "node-1.safetensors" in typed(project, *RATEMESH, "export", "run", "--node", 1, "--format", "safetensors")


def test_the_same_in_python(tmp_path: Path) -> None:
    project = tmp_path / "p"
    assert call("new", project).returncode == 0
    typed(project, sys.executable, "make_data.py")
    script = (project / "train.py").read_text()
    assert len(script.splitlines()) < 20
    (project / "train.py").write_text(script.replace("rounds=24", "rounds=2"))
    said = typed(tmp_path, sys.executable, project / "train.py")
    assert "malignant" in said
    assert "benign" in said
    assert (project / "trained" / "mesh.json").is_file()


def test_pictures_from_the_first_command_to_labels(tmp_path: Path) -> None:
    project = tmp_path / "p"
    assert "ratemesh predict run new -o labels.csv" in call("new", project, "--kind", "images").stdout
    typed(project, sys.executable, "make_data.py")
    few = ["--set", "rounds=1", "--set", "local.epochs=1", "--workers", 1]
    typed(project, *RATEMESH, "run", "mesh.toml", "--out", "run", *few)
    typed(project, *RATEMESH, "predict", "run", "new", "-o", "labels.csv")
    assert len(labels(project / "labels.csv")) == 97
    compile((project / "train.py").read_text(), "train.py", "exec")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_there_is_not_touched(tmp_path: Path, what: str) -> None:
    place = tmp_path / "mine"
    if what == "file":
        place.write_text("kept")
    else:
        place.mkdir()
        (place / "network.py").write_text("kept")
    done = call("new", place)
    assert done.returncode == 2
    assert f"folder must be a new or empty folder; '{place}' exists" in done.stderr
    assert (place if what == "file" else place / "network.py").read_text() == "kept"
