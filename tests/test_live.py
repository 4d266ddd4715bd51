"""Following and comparing runs: watch, TensorBoard, compare."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ratemesh.cli.screen import sparkline, view
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.report.figures import FIGURES
from ratemesh.studies.compare import check_comparable, load_configs
from test_cli import SMOKE, call


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "run"
    assert call("run", SMOKE, "--out", folder, "--tensorboard").returncode == 0
    return folder


def test_watch_shows_curves_and_every_node(smoke: Path) -> None:
    done = call("watch", smoke)
    assert done.returncode == 0, done.stderr
    assert "round 4 of 4" in done.stdout
    for word in ("ΔR", "disagreement", "class overlap", "▁", "█"):
        assert word in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == ["0", "1", "2"]


def test_watch_of_a_run_without_rounds_says_so() -> None:
    console = Console(record=True, width=80)
    console.print(view("mine", [], 4))
    assert "mine: no round is recorded yet" in console.export_text()


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [([3.0], 5, "▁"), ([1, 1, 1], 5, "▁▁▁"), ([0, 7], 5, "▁█"), (list(range(100)), 3, "▁▅█")],
)
def test_sparklines(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


def test_tensorboard_gets_every_number_and_figures(smoke: Path) -> None:
    pytest.importorskip("tensorboard")
    code = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "print(*[(tag, [i.step for i in events.Images(tag)]) for tag in events.Tags()['images']], sep=';')\n"
        "print(*[s.value for s in events.Scalars('reduction')])\n"
        "print(*sorted(events.Tags()['scalars']))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(smoke / "tensorboard")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    images, values, tags = done.stdout.splitlines()[-3:]
    steps = dict(ast.literal_eval(image) for image in images.split(";"))
    along = FIGURES.keys() - {"cosine", "accuracy-cost", "language"}
    assert steps == {
        **{f"figures/{name}": [1, 2, 4] for name in along},
        "figures/cosine": [1, 4],  # features are there before and after
        "figures/accuracy-cost": [4],
        "figures/language": [4],
    }
    rounds = [json.loads(line) for line in (smoke / "rounds.jsonl").read_text().splitlines()]
    assert [float(v) for v in values.split()] == pytest.approx([r["reduction"] for r in rounds], rel=1e-5)
    assert {"disagreement", "bytes", "node-0/expand", "node-2/total"} <= set(tags.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "differ in seed"),
        ({"data": {"name": "subspaces"}}, "differ in data"),
        ({"graph": {"name": "ring", "nodes": 3}}, "differ in graph.nodes"),
        ({"rounds": 3}, r"differ in rounds × local.epochs and warm start \(24 against 3\)"),
    ],
)
def test_only_what_shares_data_seed_and_budget_is_compared(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_comparable({"a": make_config({}), "b": make_config(change)})


def test_the_same_budget_in_other_rounds_is_fine() -> None:
    tables = {"a": {"rounds": 10, "local": {"epochs": 4}}, "b": {"rounds": 20, "local": {"epochs": 2}}}
    check_comparable({name: make_config(table) for name, table in tables.items()})


def test_names_must_differ() -> None:
    with pytest.raises(InputError, match="different file names"):
        load_configs([Path("a.toml"), Path("other/a.toml")])


def test_compare_runs_all_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    other = tmp_path / "printed.toml"
    other.write_text(SMOKE.read_text().split("[method]")[0].replace('"plain"', '"paper-stable"'))
    words = ("compare", SMOKE, other, "--set", "rounds=2", "--set", "engine.workers=1", "--trials", 2)
    done = call(*words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "smoke" in done.stdout
    assert "printed" in done.stdout
    metrics = sorted((tmp_path / "out").rglob("metrics.json"))
    assert len(metrics) == 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Two settings on subspaces" in page
    assert "means over 2 trials (seeds 0 and 1)" in page
    metrics[0].unlink()
    (tmp_path / "out" / "printed" / "trial-2" / "metrics.json").unlink()
    again = call(*words[:-1], 3, "--out", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert set(metrics) < set((tmp_path / "out").rglob("metrics.json"))
    assert "means over 3 trials (seeds 0, 1 and 2)" in (tmp_path / "out" / "report.html").read_text()
