"""Run folders: complete, repeatable, resumable after kill -9, and never overwritten."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ratemesh
from ratemesh.errors import InputError, NonFiniteError, RatemeshError, RatemeshWarning
from ratemesh.experiment import records
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.storage import read_tensors

TINY: dict[str, Any] = {
    "rounds": 6,
    "d": 8,
    "data": {"name": "subspaces", "classes": 3, "ambient": 8, "rank": 2, "per_class": 24},
    "graph": {"name": "ring", "nodes": 4},
    "encoders": [{"name": "mlp", "hidden": [12]}, {"name": "mlp", "hidden": [8, 8]}],
    "local": {"epochs": 1, "batch_size": 8},
    "method": {"coupling": {"start": 3, "balance": 0}},
    "engine": {"workers": 1},
}


def tiny(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "rounds.jsonl").read_bytes(), (folder / "metrics.json").read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(TINY, tmp_path_factory.mktemp("reference") / "run").folder


def test_a_run_leaves_what_it_promises(reference: Path) -> None:
    rounds = [json.loads(line) for line in (reference / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == [1, 2, 3, 4, 5, 6]
    assert all(len(record["nodes"]) == 4 for record in rounds)
    assert [record["coupling"] for record in rounds] == [0, 0, 1, 1, 1, 1]
    metrics = json.loads((reference / "metrics.json").read_text())
    accuracies = [metrics[key] for key in ("acc_average", "acc_energy", "acc_node")]
    assert all(0 <= value <= 1 for value in accuracies)
    assert metrics["bytes_total"] == sum(record["bytes"] for record in rounds) > 0
    assert metrics["sample_passes"] == (6 + 2) * 72  # two epochs of warm start
    assert "gauge" in metrics["method"]
    kept = read_tensors(reference / "features.safetensors")
    assert kept["Z_test"].shape == (4, 18, 8)
    assert kept["Z_train"].shape == (72, 8)
    assert kept["node_train"].bincount().tolist() == [18, 18, 18, 18]
    for name in ("config.toml", "environment.json", "timing.jsonl", "features-initial.safetensors"):
        assert (reference / name).stat().st_size > 0


def test_the_same_configuration_gives_the_same_bytes_for_any_number_of_workers(reference: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 4):
        folder = run(tiny(engine={"workers": workers}), tmp_path / str(workers)).folder
        assert outcome(folder) == outcome(reference)


def test_another_seed_gives_another_run(reference: Path, tmp_path: Path) -> None:
    assert outcome(run(tiny(seed=1), tmp_path / "other").folder)[0] != outcome(reference)[0]


def test_a_resolved_configuration_runs_again_to_the_same_end(reference: Path, tmp_path: Path) -> None:
    assert outcome(run(reference / "config.toml", tmp_path / "again").folder) == outcome(reference)


def test_same_init_and_different_init(tmp_path: Path) -> None:
    equal, differ = (run(tiny(rounds=1, same_init=s), tmp_path / str(s)).folder for s in (True, False))
    Z = {f: read_tensors(f / "features-initial.safetensors")["Z_test"] for f in (equal, differ)}
    assert torch.equal(Z[equal][0], Z[equal][2])  # nodes 0 and 2 share an architecture
    assert not torch.allclose(Z[differ][0], Z[differ][2])


def start(folder: Path, config: Path) -> subprocess.Popen[bytes]:
    code = f"import ratemesh; ratemesh.run({str(config)!r}, {str(folder)!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("workers", [1, 2])
def test_resume_after_kill_9_equals_not_stopping(workers: int, reference: Path, tmp_path: Path) -> None:
    """Kill at a random moment, as often as it takes, and resume in between."""
    text = (reference / "config.toml").read_text().replace("workers = 1", f"workers = {workers}")
    config = tmp_path / "config.toml"
    config.write_text(text)
    folder = tmp_path / "run"
    draw = random.Random(workers)
    process = start(folder, config)
    seen = 0
    for stop_after in (1, 3, 4):
        while process.poll() is None and seen < stop_after:
            time.sleep(0.002)
            done = folder / "rounds.jsonl"
            seen = done.read_bytes().count(b"\n") if done.exists() else 0
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (folder / "metrics.json").exists():
            break
        process = subprocess.Popen(
            [sys.executable, "-m", "ratemesh.cli.main", "resume", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    process.wait()
    resume(folder)
    assert outcome(folder) == outcome(reference)


def test_resume_of_a_torn_record_and_a_sparse_checkpoint(reference: Path, tmp_path: Path) -> None:
    """Checkpoints every 4 rounds, the file cut in the middle of a line: the rest is played again."""
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny(output={"checkpoint_every": 4}), folder, progress=stop_at(5))
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 6, "expa')
    assert json.loads((folder / "checkpoint.json").read_text())["round"] == 4
    resume(folder)
    assert outcome(folder) == outcome(reference)


def stop_at(t: int) -> Any:
    def progress(record: dict[str, Any]) -> None:
        if record["round"] == t:
            raise KeyboardInterrupt

    return progress


def test_resuming_a_complete_run_changes_nothing(reference: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    assert resume(reference).metrics == json.loads((reference / "metrics.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


def test_an_existing_folder_is_left_alone(reference: Path, tmp_path: Path) -> None:
    before = outcome(reference)
    with pytest.raises(InputError, match=r"out must be a new or empty folder.*ratemesh resume"):
        run(TINY, reference)
    assert outcome(reference) == before
    occupied = tmp_path / "file"
    occupied.write_text("mine")
    with pytest.raises(InputError, match="out must be a new or empty folder"):
        run(TINY, occupied)
    assert occupied.read_text() == "mine"


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(TINY, folder, progress=stop_at(2))
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("gamma = ", "gamma = 1"))
    before = (folder / "rounds.jsonl").read_bytes()
    with pytest.raises(InputError, match="belongs to another configuration"):
        resume(folder)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_other_data_under_the_same_name_are_refused(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(48, 8)).astype("float32"), np.arange(48) % 3
    file = tmp_path / "own.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(tiny(data={"name": "npz", "path": str(file)}), folder, progress=stop_at(2))
    own = file.read_bytes()
    np.savez(file, x_train=x + (np.arange(48) == 47)[:, None], y_train=y, x_test=x, y_test=y)  # one sample
    with pytest.raises(InputError, match=r'was trained on other data .*\[data\] name = "npz" have changed'):
        resume(folder)
    file.write_bytes(own)
    assert resume(folder).metrics["sample_passes"] == (6 + 2) * 48


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(TINY, folder, progress=stop_at(1))
    with records.RunFolder(folder).locked(), pytest.raises(InputError, match="in use by another process"):
        resume(folder)


def test_resume_needs_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must be a run folder; it has no config.toml"):
        resume(tmp_path)


def test_a_lost_loss_names_node_class_and_round_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(TINY, folder, progress=stop_at(2))
    states = sorted((folder / "checkpoints" / "round-000002").iterdir())
    poison(states[3])
    with pytest.raises(NonFiniteError, match=r"node 3 must be finite; got nan in round 3, class [012].*Lower local.lr"):
        resume(folder)
    assert json.loads((folder / "checkpoint.json").read_text())["round"] == 2
    wild = tiny(local={"lr": 1e38, "epochs": 3})
    with pytest.raises(NonFiniteError, match=r"of node \d must be finite.* at the start of round 1, class"):
        run(wild, tmp_path / "warm")
    with pytest.raises(NonFiniteError, match=r"of node \d must be finite.* in round 1, class"):
        run({**wild, "method": {"warm_start": {"epochs": 0}}}, tmp_path / "cold")


def poison(path: Path) -> None:
    """Put one NaN into a saved weight, as a diverging step would."""
    from safetensors.torch import load_file, save_file

    state = load_file(path)
    name = next(key for key in state if key.startswith("modules.network") and key.endswith("weight"))
    state[name].view(-1)[0] = torch.nan
    save_file(state, path)


def test_a_full_disk_keeps_the_last_good_checkpoint(reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def fill_up(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignore = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(RatemeshError, match="cannot write"):
            run(TINY, folder, progress=fill_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignore)
    assert json.loads((folder / "checkpoint.json").read_text())["round"] == 2
    resume(folder)
    assert outcome(folder) == outcome(reference)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d": 4}, "d must be at least the sum of the class ranks"),
        ({"method": {"eps2": 9.0}}, "eps2 must satisfy"),
        ({"partition": "iid", "graph": {"name": "ring", "nodes": 6}}, "Assumption 1 does not hold"),
    ],
)
def test_what_the_theory_does_not_cover_is_a_warning(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.warns(RatemeshWarning, match=words):
        run(tiny(rounds=1, **changes), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graph": {"name": "ring", "nodes": 60}}, "nodes must leave at least 2 samples each"),
        ({"encoders": [{"name": "conv4"}]}, "images of at least 8×8"),
        ({"data": {"name": "subspaces", "rank": 9, "ambient": 8}}, "data.rank must not exceed"),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(tiny(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_centralised_and_independent_are_configurations(tmp_path: Path) -> None:
    for nodes, name in ((1, "Centralised"), (3, "Independent")):
        result = run(tiny(rounds=1, graph={"name": "empty", "nodes": nodes}), tmp_path / name)
        assert result.metrics["method"].startswith(name)
        assert result.metrics["bytes_total"] == 0


def test_the_default_folder_is_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [ratemesh.run(tiny(rounds=1)).folder for _ in range(2)] == [Path("runs/run-001"), Path("runs/run-002")]


def test_two_processes_are_really_used(tmp_path: Path) -> None:
    children: set[int] = set()

    def look(record: dict[str, Any]) -> None:
        mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        children.update(int(pid) for pid in mine.split())

    run(tiny(rounds=1, engine={"workers": 2}), tmp_path / "run", progress=look)
    assert len(children) >= 2
