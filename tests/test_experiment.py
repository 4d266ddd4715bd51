"""Run folders: complete, repeatable, and never overwritten."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ratemesh
from ratemesh.encoders import ENCODERS
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.experiment import run
from ratemesh.experiment.storage import read_tensors

TINY: dict[str, Any] = {
    "preset": "plain",
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


def stop_at(t: int) -> Any:
    def progress(record: dict[str, Any]) -> None:
        if record["round"] == t:
            raise KeyboardInterrupt

    return progress


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


def test_the_network_is_told_at_the_start_and_completed_at_the_end(tmp_path: Path) -> None:
    def network() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "run" / "network.json").read_text())
        return found

    told: list[dict[str, Any]] = []
    run(tiny(rounds=1), tmp_path / "run", progress=lambda _: told.append(network()))
    start, end = told[0], network()
    assert {key: start[key] for key in ("schema", "d", "num_classes", "classes", "shape")} == {
        "schema": 1,
        "d": 8,
        "num_classes": 3,
        "classes": ["0", "1", "2"],
        "shape": [8],
    }
    built = [ENCODERS["mlp"](name="mlp", hidden=hidden).network((8,), 8) for hidden in ((12,), (8, 8))]
    trained = [sum(p.numel() for p in network.parameters()) for network in built]
    assert [node["parameters"] for node in start["nodes"]] == trained * 2
    kinds = [node["architecture"] for node in start["nodes"]]
    assert kinds[:2] == kinds[2:]
    assert kinds[0] != kinds[1]
    assert [sum(node["counts"]) for node in start["nodes"]] == [node["samples"] for node in start["nodes"]] == [18] * 4
    assert [edge["disagreement"] for edge in start["edges"]] == [None] * 4
    assert all(edge.pop("disagreement") > 0 for edge in end["edges"])
    assert {**start, "edges": [{"ends": edge["ends"]} for edge in start["edges"]]} == end


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
        (
            {"d": 100_000},
            r"d must leave room .* 4 nodes with 3 matrices 100000 × 100000 need 3.84e\+03 GB or more, .* Lower d",
        ),
        ({"d": 10**12}, "d must leave room for the class statistics"),
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
