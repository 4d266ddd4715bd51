"""Damaged, foreign and hostile run folders in the report, and costs that have to be worked out."""

import json
import math
from pathlib import Path

import pytest
import torch

from ratemesh.encoders import ENCODERS
from ratemesh.errors import InputError
from ratemesh.experiment.storage import read_tensors, write_tensors
from ratemesh.report.folders import open_runs
from ratemesh.report.page import write_report
from ratemesh.report.runs import open_run
from ratemesh.report.summary import cost_of
from toy_runs import Copy, Damage, edited, page, without


def test_costs_agree_with_the_formulas(smoke: Path) -> None:
    cost = cost_of(open_run(smoke))
    K, d, directed = 3, 16, 6  # a ring of three
    network = ENCODERS["mlp"](name="mlp", hidden=(32,)).network((16,), d)
    assert cost.full == cost.held == directed * K * d * d * 4
    assert cost.packed == directed * K * d * (d + 1) // 2 * 4
    sketch = K * (d * 48 // 2 + 48 + 3 * 4)  # C in four bits, its means in eight, two scales, a variance
    assert cost.measured == cost.packed + directed * (4 * (K + K * d + 1) + sketch)  # counts, class means, hops
    assert cost.dsgd == cost.dsgd_alike == directed * 4 * sum(p.numel() for p in network.parameters())
    assert cost.seconds > 0
    assert cost.notes == ()


@pytest.mark.parametrize(
    "damage",
    [
        without("network.json"),
        edited("network.json", d=None),
        edited("network.json", nodes=[{"index": 0, "encoder": "mlp"}]),
        edited("network.json", edges=[{"ends": [0, 7]}]),
    ],
)
def test_without_a_whole_network_no_formula_is_filled_in(damage: Damage, copy: Copy, smoke: Path) -> None:
    folder = copy("lost", damage)
    cost = cost_of(open_run(folder))
    assert cost.measured == cost_of(open_run(smoke)).measured
    assert all(math.isnan(value) for value in (cost.full, cost.held, cost.packed, cost.dsgd, cost.dsgd_alike))
    (note,) = cost.notes
    assert "network.json does not tell" in note
    words = page(folder).text
    assert f"lost: {note}" in words
    assert "Formula of Remark 4" in words
    assert "not known" in words


def changed_node(index: int, **changes: object) -> Damage:
    def edit(folder: Path) -> None:
        nodes = json.loads((folder / "network.json").read_text())["nodes"]
        nodes[index] |= changes
        edited("network.json", nodes=nodes)(folder)

    return edit


def test_only_nodes_of_one_architecture_exchange_parameters(copy: Copy) -> None:
    plain = cost_of(open_run(copy("plain")))
    own = plain.dsgd / 4 / 6
    cost = cost_of(open_run(copy("mixed", changed_node(1, architecture="wider", parameters=own + 1000))))
    assert cost.dsgd == plain.dsgd + 2 * 4 * 1000
    assert cost.dsgd_alike == plain.dsgd / 3  # one edge of three joins equal networks


def test_classes_that_a_node_lacks_are_not_counted_by_remark_4(copy: Copy) -> None:
    cost = cost_of(open_run(copy("lacking", changed_node(2, counts=[40, 0, 0]))))
    assert cost.full == 6 * 3 * 16 * 16 * 4
    assert cost.held == (2 * (3 + 3 + 1)) * 16 * 16 * 4


@pytest.mark.parametrize(
    ("damages", "expected"),
    [
        ([without("metrics.json")], ["incomplete: 4 of 4 rounds", "metrics.json is missing", "ratemesh resume"]),
        ([edited("metrics.json", schema=2)], ["metrics.json has schema 2", "Update ratemesh", "numbers unreadable"]),
        ([edited("network.json", schema=9)], ["network.json has schema 9", "smoke"]),
        ([without("features.safetensors")], ["no features were kept after training; features.safetensors is missing"]),
        ([without("rounds.jsonl")], ["no round is recorded", "not known"]),
        ([without("environment.json")], ["versions and machine are not known"]),
        ([lambda f: (f / "metrics.json").write_text("{")], ["must be a readable JSON file"]),
        ([lambda f: (f / "features.safetensors").write_bytes(b"x")], ["must be a readable safetensors file"]),
        ([lambda f: (f / "rounds.jsonl").write_text('3\n{"round": 1}\n{"ro')], ["Measured", "not known"]),
        ([lambda f: (f / "config.toml").write_text("= broken")], ["config.toml cannot be read"]),
        (
            [lambda f: write_tensors(f / "features.safetensors", {"Z": torch.zeros(1)})],
            ["must hold training features; it has no 'Z_train'"],
        ),
    ],
)
def test_gaps_are_told_and_the_rest_is_shown(
    damages: list[Damage], expected: list[str], smoke: Path, copy: Copy
) -> None:
    found = page(smoke, copy("damaged", *damages))
    assert [word for word in expected if word not in found.text] == []
    assert "Accuracy, averaged" in found.text  # of the run that is whole
    alone = page(copy("alone", *damages))
    assert "alone" in alone.text
    assert [word for word in expected if word not in alone.text and word != "smoke"] == []


def test_features_that_are_not_numbers_are_left_out(copy: Copy) -> None:
    def spoil(folder: Path) -> None:
        tensors = read_tensors(folder / "features.safetensors")
        tensors["Z_train"][0, 0] = math.nan
        write_tensors(folder / "features.safetensors", tensors)

    spoiled = open_run(copy("spoiled", spoil))
    assert spoiled.features is None
    assert any("not finite" in note for note in spoiled.notes)


def test_foreign_folders_are_named_and_the_others_shown(smoke: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign" / "inside").mkdir(parents=True)
    found = page(smoke, tmp_path / "foreign", tmp_path / "gone")
    assert f"'{tmp_path / 'foreign'}' must be a run folder; it has no config.toml" in found.text
    assert f"'{tmp_path / 'gone'}' must be a run folder; it is not a folder" in found.text
    with pytest.raises(InputError, match=r"foreign' must be a run folder; .* Give the --out of a run"):
        write_report([tmp_path / "foreign"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("name", ["report", "config.toml", "report.pdf", ""])
def test_only_html_files_are_written(name: str, smoke: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output must be an HTML file; got .* Give a name that ends in \.html"):
        write_report([smoke], tmp_path / name)


def test_folders_of_runs_are_opened_and_names_told_apart(copy: Copy, tmp_path: Path) -> None:
    copy("grid/a/same")
    copy("grid/b/same")
    runs, notes = open_runs([tmp_path / "grid", tmp_path / "grid" / "b" / "same"])
    assert [run.name for run in runs] == ["a/same", "b/same"]
    assert notes == []


def test_nothing_in_a_run_folder_becomes_markup(copy: Copy) -> None:
    evil = "<img src=x onerror=alert(1)>\"'&"
    folder = copy(
        evil.replace("/", ""),
        edited("metrics.json", method=evil, **{evil: evil}, undefined=[evil]),
        edited("environment.json", python=evil, packages={evil: evil}),
        lambda f: (f / "config.toml").write_text(f"{json.dumps(evil)} = {json.dumps(evil)}\n[data]\nname = '<b>x</b>'"),
        lambda f: (f / "network.json").write_text(json.dumps({"schema": 99, "x": evil})),
    )
    found = page(folder)
    assert found.text.count(evil) > 5
    assert not found.all("img", src="x")
    assert not any("onerror" in given for _, given in found.tags)
    assert "<b>x</b>" in found.text
    assert len(found.all("script")) == 1
