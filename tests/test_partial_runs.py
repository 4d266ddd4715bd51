"""Runs whose nodes hold different labels, or send no statistics: records, network, costs and report of them."""

import json
import math
from pathlib import Path

import pytest
import torch

from ratemesh.cli import screen
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.encoders import ENCODERS
from ratemesh.experiment.experiment import run
from ratemesh.experiment.storage import read_json
from ratemesh.report.figures import curves
from ratemesh.report.live import open_underway
from ratemesh.report.runs import open_run
from ratemesh.report.summary import cost_of
from ratemesh.report.wording import in_percent
from toy_runs import SMOKE, copier, on, page

pytestmark = pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")

APART = ["rounds=2", "graph.name=complete", "method=alg3", 'partition={name="labels", labels=[[0, 1], [2], [0, 1]]}']
"""Node 1 shares no label with anybody; clusters are {0, 1} and {1, 2}."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(SMOKE, tmp_path_factory.mktemp("partial") / "apart", overrides=APART).folder


@pytest.fixture(scope="module")
def dsgd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(SMOKE, tmp_path_factory.mktemp("partial") / "dsgd", overrides=["rounds=1", "method=dsgd"]).folder


def test_who_shares_no_class_neither_agrees_nor_disagrees(apart: Path) -> None:
    for line in (apart / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        first, alone, last = (node["disagreement"] for node in record["nodes"])
        assert alone is None
        assert record["disagreement"] == pytest.approx((first + last) / 2)
        assert min(first, last) > 0.05
    edges = {tuple(edge["ends"]): edge["disagreement"] for edge in read_json(apart / "network.json")["edges"]}
    assert edges[0, 1] is edges[1, 2] is None
    # a node's own record knows the neighbour's statistics of before the round; the edge, those of after it
    assert edges[0, 2] == pytest.approx(read_json(apart / "metrics.json")["disagreement"])


def test_replicas_count_once_in_what_dsgd_would_send(apart: Path) -> None:
    network = ENCODERS["mlp"](name="mlp", hidden=(32,)).network((16,), 16)
    cost = cost_of(open_run(apart))
    assert cost.dsgd == cost.dsgd_alike == 6 * 4 * sum(p.numel() for p in network.parameters())


def test_accuracies_of_partial_labels_are_percentages_with_names(apart: Path) -> None:
    words = page(apart).text
    assert "acc_" not in words.partition("Settings")[0]
    assert "Accuracy, label-aware" in words
    own = read_json(apart / "metrics.json")["acc_held"]
    assert f"among all {100 * own:.1f} %" in words
    assert "Longest chain of turns" in words


def test_partial_labels_stand_beside_all_labels_each_with_its_own_accuracy(apart: Path, smoke: Path) -> None:
    some, whole = (read_json(folder / "metrics.json") for folder in (apart, smoke))
    aware, fused, averaged = some["acc_label_aware"], whole["acc_energy"], whole["acc_average"]
    found = page(apart, smoke)
    assert f"{in_percent(aware)} accuracy, label-aware; nodes hold some labels" in found.text
    assert f"{in_percent(averaged)} accuracy, features averaged" in found.text
    assert f"reach {in_percent(aware)} label-aware (apart), where nodes with all of them reach" in found.text
    row = found.text.partition("Accuracy, label-aware")[2].partition("Accuracy, own")[0]
    assert f"{in_percent(aware)} {in_percent(fused)} nodes hold all labels: the fused one" in row


def test_beside_the_paper_s_table_the_accuracy_is_said_to_be_another(apart: Path, tmp_path: Path) -> None:
    text = page(copier(apart, tmp_path)("some", on("mnist"))).text
    aware = read_json(apart / "metrics.json")["acc_label_aware"]
    assert f"{100 * aware:.2f} % label-aware, not averaged" in text
    assert "ours, some labels a node: 2 rounds" in text
    assert "Table I is of i.i.d. data" in text


def test_the_terminal_shows_it_first(apart: Path, smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [read_json(folder / "metrics.json") for folder in (apart, smoke)]
    screen.table(rows)
    shown = capsys.readouterr().out
    assert f"{100 * rows[0]['acc_label_aware']:.1f} %" in shown
    assert "label-" in shown
    screen.table(rows[1:])
    assert "label-" not in capsys.readouterr().out


def test_with_all_labels_everywhere_label_aware_is_fused() -> None:
    """So a run without it may stand there with the fused accuracy."""
    draw = torch.Generator().manual_seed(0)
    Z = torch.nn.functional.normalize(torch.randn(3, 200, 6, generator=draw, dtype=torch.float64), dim=2)
    y = torch.arange(200) % 4
    judge = SubspaceJudge("energy", rank=1).fit_stats(ClassStats.sum(ClassStats.of(z, y, 4) for z in Z))
    assert judge.score(Z, y, torch.ones(3, 1, 4)) == judge.score(Z, y)


def test_clusters_are_known_while_a_run_is_under_way(apart: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "rounds.jsonl", "checkpoint.json", "checkpoints", "network.json"):
        (tmp_path / name).symlink_to(apart / name)
    nodes = open_underway(tmp_path).network["nodes"]
    assert [node["cluster"] for node in nodes] == [0, 0, 1]
    assert [node["cluster"] for node in read_json(apart / "network.json")["nodes"]] == [0, 0, 1]


def test_a_run_that_sends_no_statistics_says_why_it_has_no_disagreement(dsgd: Path, tmp_path: Path) -> None:
    opened = open_run(dsgd)
    drawn = curves.draw_consensus([opened], tmp_path / "consensus", formats=["png"])
    assert drawn.notes == ("dsgd: no disagreement is recorded; its nodes do not send statistics.",)
    assert all(math.isnan(value) for value in opened.curve("disagreement").mean)
    assert "D-SGD" in page(dsgd).text
