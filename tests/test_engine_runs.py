"""Whole runs on engines outside this process: records, metrics, checkpoints and resuming as in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.storage import read_tensors
from test_experiment import TINY
from toy_engines import ALONE, NODES

pytestmark = [
    pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning"),
    pytest.mark.skipif(not ALONE, reason="in a network of its own: test_ray.py runs this file there"),
]

TABLE = {**TINY, "rounds": 4, "graph": {"name": "complete", "nodes": NODES}, "output": {"evaluate_every": 2}}
APART = {"name": "labels", "labels": [[0, 1], [2], [0, 1], [1, 2]]}
METHODS: dict[str, dict[str, Any]] = {
    "alg1": {"method": {"name": "alg1", "coupling": {"start": 2}}},
    "alg1, deltas in int8": {"method": {"name": "alg1", "codec": {"name": "delta", "inner": "int8"}}},
    "alg3": {"method": {"name": "alg3", "coupling": {"start": 2}}, "partition": APART},
    "alg1_weights": {"method": {"name": "alg1_weights", "coupling": {"start": 2}}},
    "dsgd": {"method": "dsgd"},
    "best round": {"data": {**TINY["data"], "validation": 0.25}, "stopping": {"best": True}},
}


def everything(folder: Path) -> dict[str, Any]:
    """All that a run leaves and that must repeat."""
    texts = {name: (folder / name).read_text() for name in ("rounds.jsonl", "metrics.json", "network.json")}
    states = {path.name: read_tensors(path) for path in folder.rglob("*.safetensors")}
    return {**texts, **{f"{file} {key}": value for file, state in states.items() for key, value in state.items()}}


def assert_same(one: Path, other: Path) -> None:
    a, b = everything(one), everything(other)
    assert a.keys() == b.keys()
    assert [key for key in a if not (torch.equal if torch.is_tensor(a[key]) else str.__eq__)(a[key], b[key])] == []


@pytest.mark.parametrize("words", METHODS)
def test_ray_gives_the_same_run_to_the_bit_also_when_resumed(words: str, tmp_path: Path) -> None:
    table = {**TABLE, **METHODS[words]}
    here = run({**table, "engine": {"workers": 1}}, tmp_path / "here").folder

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    abroad = tmp_path / "abroad"
    with pytest.raises(KeyboardInterrupt):
        run({**table, "engine": "toy_engines:SharedRay"}, abroad, progress=stop)
    resume(abroad)
    assert_same(here, abroad)
