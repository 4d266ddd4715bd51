"""The package as people install it: built, in a clean environment, run from an empty folder far from its source."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ratemesh

ROOT = Path(ratemesh.__file__).parents[2]
EXPERIMENTS = {file.name for file in (ROOT / "experiments").glob("*.toml")}
TABLES = "ratemesh/experiment/tables/"

pytestmark = [pytest.mark.package, pytest.mark.timeout(1800)]


def run(*command: object, cwd: Path, **more: str) -> str:
    """Run a command without this environment's way to ratemesh; return what it says."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env={**clean, **more}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both: python -m build makes the wheel out of the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a clean environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    (wheel,) = built.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return python.with_name("ratemesh")


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_package_and_its_experiments_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    ignored = {"__pycache__"}
    source = {p for p in (ROOT / "src").rglob("*") if p.is_file() and not ignored & set(p.parts)}
    expected = {p.relative_to(ROOT / "src").as_posix() for p in source} | {TABLES + name for name in EXPERIMENTS}
    assert names(wheel) == expected
    assert wheel.stat().st_size < 1_000_000


def test_the_sdist_holds_what_the_wheel_is_made_of_and_little_else(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in inside if name.startswith(("tests", "docs", "benchmarks")) or name.endswith(".png")}
    assert {"README.md", "LICENSE", "pyproject.toml"} <= inside
    assert sdist.stat().st_size < 1_000_000
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)  # not out of the sdist
    (direct,), (wheel,) = tmp_path.glob("*.whl"), built.glob("*.whl")
    assert names(direct) == names(wheel)


def test_it_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    def call(*words: str) -> str:
        return run(installed, *words, cwd=tmp_path, OMP_NUM_THREADS="1")

    assert call("--version") == f"ratemesh {ratemesh.__version__}\n"
    assert "checkpoint_every = " in call("list", "settings")
    assert {f"{line.split('  ')[0]}.toml" for line in call("list", "experiments").splitlines()} == EXPERIMENTS
    assert call("run", "smoke", "--out", "smoke").endswith("Results: smoke\n")
    assert call("run", "digits", "--set", "rounds=2", "--out", "digits").endswith("Results: digits\n")
    assert (tmp_path / "digits" / "metrics.json").is_file()
    assert "Summary: demo/summary.json" in call("demo", "--rounds", "2", "--out", "demo").replace("\\", "/")
    assert call("report", "smoke", "-o", "page.html").startswith("Report: page.html")


def test_a_new_project_runs_where_only_the_wheel_is(installed: Path, tmp_path: Path) -> None:
    run(installed, "new", "mine", cwd=tmp_path)
    project = tmp_path / "mine"
    run(installed.with_name("python"), "make_data.py", cwd=project)
    run(installed, "run", "mesh.toml", "--set", "rounds=2", "--out", "run", cwd=project, OMP_NUM_THREADS="1")
    run(installed, "predict", "run", "new.csv", "-o", "labels.csv", cwd=project)
    assert (project / "labels.csv").read_text().startswith("row,label\n")
