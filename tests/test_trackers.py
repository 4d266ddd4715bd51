"""What --track writes to the real TensorBoard, Weights & Biases and MLflow, read back; nothing leaves the machine."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratemesh.errors import InputError
from ratemesh.experiment.storage import read_json
from ratemesh.report.live import Live
from ratemesh.report.trackers import TRACKERS, Tracked, final, scalars
from test_cli import SMOKE, call

pytest.importorskip("wandb")
pytest.importorskip("mlflow")

STOP = """
import sys
from pathlib import Path
from ratemesh.errors import StopTraining
from ratemesh.experiment.experiment import resume, run
from ratemesh.report.live import Live
folder, names = Path(sys.argv[2]), sys.argv[4:]
def stop(record):
    if record["round"] == 2:
        raise KeyboardInterrupt
try:
    with Live(names, 0) as live:
        run(sys.argv[1], folder, overrides=["rounds=3"], progress=live.track(folder, 3, stop))
except KeyboardInterrupt:
    pass
with Live(names, 0) as live:
    resume(folder, progress=live.track(folder, 3, lambda record: None))
"""


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing may be sent, and no server is there."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))}
    return {**own, "WANDB_MODE": "offline", **more}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that all three tracked at once, started in the folder above it."""
    at = tmp_path_factory.mktemp("tracked")
    words = ["run", str(SMOKE), "--set", "rounds=2", "--out", "mine", "--project", "letters", "--figures-every", "2"]
    words += [word for name in TRACKERS for word in ("--track", name)]
    command = [sys.executable, "-m", "ratemesh", *words]
    done = subprocess.run(command, cwd=at, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return at / "mine"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was interrupted after round 2 of 3, and resumed; without figures."""
    at = tmp_path_factory.mktemp("resumed")
    command = [sys.executable, "-c", STOP, str(SMOKE), "run", "--", *TRACKERS]
    done = subprocess.run(command, cwd=at, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return at / "run"


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the records of a W&B file: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    at, part = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:
            yield part
            part = b""


def wandb_run(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], Any]:
    """Return history, summary and the run's own record of all that W&B kept below a folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    history, summary, run = [], {}, None
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for chunk in chunks(file.read_bytes()):
            record = Record()
            record.ParseFromString(chunk)
            if record.HasField("history"):
                items = record.history.item
                history.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            elif record.HasField("summary"):
                summary |= {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update}
            elif record.HasField("run"):
                run = record.run
    return history, summary, run


def mlflow_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return MLflow's client and what it knows of the run."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=(folder.parent / "mlruns").as_uri())
    return client, client.get_run(read_json(folder / "trackers.json")["mlflow"])


def test_wandb_keeps_every_round_the_figures_and_the_end(tracked: Path) -> None:
    history, summary, run = wandb_run(tracked)
    for record, kept in zip(rounds_of(tracked), history, strict=True):
        assert kept["_step"] == record["round"]
        assert {key: kept[key] for key in scalars(record)} == pytest.approx(scalars(record))
    assert history[-1]["figures/network/_type"] == "image-file"
    assert (run.project, run.display_name, run.run_id) == (
        "letters",
        "mine",
        read_json(tracked / "trackers.json")["wandb"],
    )
    ends = final(read_json(tracked / "metrics.json"))
    assert {key: summary[key] for key in ends} == pytest.approx(ends)


def test_mlflow_keeps_every_round_the_settings_the_figures_and_the_end(
    tracked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, run = mlflow_run(tracked, monkeypatch)
    for key in ("reduction", "evaluation/acc_cross", "node-2/total"):
        kept = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]
        assert kept == [(record["round"], pytest.approx(scalars(record)[key])) for record in rounds_of(tracked)]
    ends = final(read_json(tracked / "metrics.json"))
    assert {key: run.data.metrics[key] for key in ends} == pytest.approx(ends)
    assert (run.data.params["rounds"], run.data.params["method.name"]) == ("2", "alg1")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "mine")
    assert client.get_experiment(run.info.experiment_id).name == "letters"
    files = [file.path for file in client.list_artifacts(run.info.run_id, "figures/round-000002")]
    assert "figures/round-000002/network.png" in files


def test_tensorboard_gets_the_end_too(tracked: Path) -> None:
    code = (
        "import sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator(sys.argv[1]); events.Reload()\n"
        "print(events.Scalars('final/acc_cross')[0].value, len(events.Scalars('reduction')))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tracked / "tensorboard")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    value, rounds = done.stdout.split()[-2:]
    assert float(value) == pytest.approx(read_json(tracked / "metrics.json")["acc_cross"], rel=1e-5)
    assert int(rounds) == 2


def test_a_resumed_run_goes_on_where_it_is_filed(resumed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, summary, _ = wandb_run(resumed)
    assert [kept["_step"] for kept in history] == [1, 2, 3]
    assert len({file.name for file in (resumed / "wandb").glob("offline-run-*/*.wandb")}) == 1  # one run, in two files
    assert "final/acc_cross" in summary
    client, run = mlflow_run(resumed, monkeypatch)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "reduction")] == [1, 2, 3]
    assert run.info.status == "FINISHED"
    assert len(client.search_runs([run.info.experiment_id])) == 1


@pytest.mark.parametrize("name", TRACKERS)
def test_without_the_package_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].package, None)
    with pytest.raises(InputError, match=rf"--track {name} must have .* pip install 'ratemesh\[{name}\]'"):
        Live([name])


def test_an_unknown_tracker_and_figures_for_none_are_refused(tmp_path: Path) -> None:
    done = call("run", SMOKE, "--out", tmp_path / "a", "--track", "wandbb")
    assert done.returncode == 2
    assert "--track must be a known tracker; got 'wandbb'. Did you mean 'wandb'?" in " ".join(done.stderr.split())
    done = call("run", SMOKE, "--out", tmp_path / "a", "--figures-every", 2)
    assert done.returncode == 2
    assert "--figures-every must come with --track" in done.stderr
    assert not (tmp_path / "a").exists()


def test_numbers_that_are_lost_are_left_out() -> None:
    record = {
        "round": 1,
        "a": 1,
        "b": float("nan"),
        "c": None,
        "evaluation": {"d": 0.5},
        "nodes": [{"a": float("inf")}],
    }
    assert scalars(record) == {"a": 1.0, "evaluation/d": 0.5}
    assert final({"schema": 1, "acc": 0.5, "method": "x", "stopped_early": False}) == {
        "final/acc": 0.5,
        "final/stopped_early": 0.0,
    }


def test_settings_have_dotted_names(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 2\n[method]\nname = 'alg1'\n[method.gauge]\nenabled = true\n")
    expected = {"rounds": 2, "method.name": "alg1", "method.gauge.enabled": True}
    assert Tracked(tmp_path, 1).settings() == expected
