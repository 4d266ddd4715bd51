"""The command as a user meets it: exit codes, words, no tracebacks; in real processes where that could differ."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import ratemesh
from ratemesh.cli.main import app
from toy_cli import PLAIN, Done, call

ROOT = Path(ratemesh.__file__).parents[2]
SMOKE = ROOT / "experiments" / "smoke.toml"
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def call_process(*words: object) -> Done:
    command = [sys.executable, "-m", "ratemesh.cli.main", *map(str, words)]
    environment = {**os.environ, **PLAIN}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("smoke") / "run"
    return folder, call_process("run", SMOKE, "--out", folder)


def test_version_and_overview() -> None:
    assert call("--version").stdout == f"ratemesh {ratemesh.__version__}\n"
    overview = call("--help").stdout
    assert all(command in overview for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert re.search(rf"Example: ratemesh {command}\b", done.stdout)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", ["alg1", "gamma = ", "coupling.", "schedule = late", "codec = packed"]),
        ("codecs", ["packed", "half", "int8", "lowrank", "energy = ", "delta", "inner = "]),
        ("encoders", ["mlp", "conv4", "width = 1.0"]),
        ("datasets", ["digits", "subspaces", "test_fraction = 0.2"]),
        ("topologies", ["erdos_renyi", "ring", "grid", "star", "complete", "empty", "edge_file", "path required"]),
        ("partitions", ["stratified", "iid", "labels required", "dirichlet", "alpha = 0.5", "shards", "quantity"]),
        ("engines", ["inprocess", "workers = 0", "ray", "num_gpus = 0"]),
        ("presets", ["default", "table", "images", "plain", "paper", "paper-stable"]),
    ],
)
def test_list_shows_names_and_settings(what: str, expected: list[str]) -> None:
    out = call("list", what).stdout
    assert [word for word in expected if word not in out] == []


def test_run_prints_plain_lines_and_says_where_the_results_are(smoke: tuple[Path, Done]) -> None:
    folder, done = smoke
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(
        r"smoke  round 1/4  3 nodes  ΔR [\d.]+  disagreement [\d.]+  test own [\d.]+ % cross [\d.]+ %  about \d+ s",
        lines[0],
    )
    assert lines[-1] == f"Results: {folder}"
    assert "\x1b" not in done.stdout
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 4


def test_resume_of_a_complete_run_says_so(smoke: tuple[Path, Done]) -> None:
    done = call("resume", smoke[0])
    assert done.returncode == 0
    assert "complete; nothing was changed" in done.stdout


def test_overrides_and_workers_reach_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = call("run", SMOKE, "--set", "rounds=1", "--set", "method.gamma=2.5", "--workers", 2, "--out", folder)
    assert done.returncode == 0, done.stderr
    config = (folder / "config.toml").read_text()
    assert "gamma = 2.5" in config
    assert "workers = 2" in config


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "no-such.toml"], "config must be a readable TOML file; got 'no-such.toml'"),
        (["run", SMOKE, "--set", "metod.gamma=1"], "metod is not a setting. Did you mean 'method'?"),
        (["run", SMOKE, "--set", "graph.name=rong"], "Did you mean 'ring'?"),
        (["run", SMOKE, "--set", "local.batch_size=1"], "local.batch_size"),
        (["run", SMOKE, "--out", ROOT / "src"], "out must be a new or empty folder"),
        (["resume", ROOT / "src"], "must be a run folder"),
        (["list", "method"], "Did you mean 'methods'?"),
        (["demo", "--out", ROOT / "src"], "out must be a new or empty folder"),
    ],
)
def test_a_users_error_is_one_message_and_exit_code_2(words: list[object], expected: str) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert expected in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stdout + done.stderr


def test_a_disconnected_edge_file_names_the_components(tmp_path: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1  # first pair\n2 3\n")
    done = call("run", SMOKE, "--set", f"graph={{name='edge_file', nodes=4, path='{edges}'}}", "--out", tmp_path / "r")
    assert done.returncode == 2
    assert "2 components: {0, 1}, {2, 3}" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_lost_loss_is_told_without_a_traceback(tmp_path: Path) -> None:
    done = call_process("run", SMOKE, "--set", "local.lr=1e38", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert re.search(r"of node \d must be finite; got \w+ in round 1, class \d", done.stderr)
    assert "Traceback" not in done.stderr


def test_warnings_are_one_line(tmp_path: Path) -> None:
    done = call("run", SMOKE, "--set", "d=5", "--set", "rounds=1", "--out", tmp_path / "run")
    assert done.returncode == 0
    assert re.match(r"warning d must be at least the sum of the class ranks \(Theorem 1\); got d = 5 < 6", done.stderr)
    assert "site.py" not in done.stderr


def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ratemesh.cli.main", "run", str(SMOKE), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other end of the terminal is closed
        pass
    assert process.wait() == 0
    assert "4/4" in shown.decode()
    assert "━" in shown.decode()
    assert "round 1/4" not in shown.decode()
