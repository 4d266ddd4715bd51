"""Interrupted runs: resumed after kill -9, a full disk or a torn file; refused with other settings or data."""

import json
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratemesh.errors import InputError, NonFiniteError, RatemeshError
from ratemesh.experiment import records
from ratemesh.experiment.experiment import resume, run
from test_experiment import TINY, outcome, reference, stop_at, tiny

__all__ = ["reference"]


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
            [sys.executable, "-m", "ratemesh", "resume", str(folder)],
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


def test_resuming_a_complete_run_changes_nothing(reference: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    assert resume(reference).metrics == json.loads((reference / "metrics.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


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
