"""A run that collapses is told so, once, while it goes on; one that does not is left alone."""

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.health import LASTS, Health
from ratemesh.metrics.geometry import occupied
from test_experiment import outcome, stop_at, tiny
from toy_runs import SMOKE


def record(t: int, *nodes: dict[str, Any]) -> dict[str, Any]:
    well = {"feature_rank": 5.0, "feature_spread": 0.8, "reduction": 3.0}
    return {"round": t, "nodes": [{**well, **node} for node in nodes]}


def told(*rounds: dict[str, Any], health: Health | None = None) -> list[tuple[str, int]]:
    """Return kinds and rounds of what a run of one sick and one healthy node is told."""
    health = health or Health()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatemeshWarning)
        found = [f for t, node in enumerate(rounds, 1) for f in health.see(record(t, {}, node))]
    assert all(finding.node == 1 for finding in found)
    return [(finding.kind, finding.round) for finding in found]


def test_numbers_of_features_that_collapse() -> None:
    y = torch.arange(8) % 2
    line = torch.eye(4)[:1].repeat(8, 1)
    both = occupied(ClassStats.of(line, y, 2))
    assert both == pytest.approx({"feature_rank": 1, "feature_spread": 0}, abs=1e-3)
    signs = line * (1 - 2 * y)[:, None]
    assert occupied(ClassStats.of(signs, y, 2)) == pytest.approx({"feature_rank": 1, "feature_spread": 1})
    even = torch.eye(4).repeat(2, 1)
    assert occupied(ClassStats.of(even, torch.arange(8) // 4, 2)) == pytest.approx(
        {"feature_rank": 4, "feature_spread": math.sqrt(3) / 2}
    )


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("feature_rank", [1.02, 1.02, 1.03, 1.02, 1.01, 1.01], [("rank", 4)]),
        ("feature_rank", [1.02, 1.05, 1.08, 1.09, 1.3, 2.0], []),  # it grows: how every run begins
        ("feature_rank", [5, 3, 1.05, 1.05, 1.04, 1.04], [("rank", 6)]),
        ("feature_spread", [0.01] * 6, [("constant", 4)]),
        ("feature_spread", [0.01, 0.02, 0.04, 0.08, 0.2, 0.4], []),
        ("reduction", [3, 9, 4, 4, 4, 4, 4], [("falling", 6)]),
        ("reduction", [3, 9, 4, 4, 4, 5, 9], []),  # it came back
        ("reduction", [0.0] * 6, []),
        ("reduction", [3, math.nan, None, 9, math.nan, None, 9], []),
    ],
)
def test_what_lasts_is_told_once(key: str, values: list[Any], expected: list[tuple[str, int]]) -> None:
    assert told(*({key: value} for value in values)) == expected


def test_constant_features_are_not_told_twice() -> None:
    assert told(*[{"feature_rank": 1.0, "feature_spread": 0.0}] * 4) == [("constant", 4)]


def test_words_name_round_node_number_and_a_remedy_that_fits() -> None:
    health = Health(nodes=[7])
    for t in range(1, LASTS):
        assert health.see(record(t, {"feature_rank": 1.01, "coupling": 1.0})) == []
    with pytest.warns(RatemeshWarning, match=r"round 4: features of node 7 .* rank 1\.01 .*method\.gamma"):
        health.see(record(LASTS, {"feature_rank": 1.01, "coupling": 1.0}))
    alone = [record(t, {"feature_spread": 0.01, "coupling": 0.0}) for t in range(1, LASTS + 1)]
    (finding,) = Health(alone).found
    assert "method.gamma" not in finding.words
    assert "Lower local.lr" in finding.words


COLLAPSE = tiny(rounds=10, preset="paper", method={"gamma": 50.0})  # printed: coupled from the start, Adam at 0.1


def test_a_run_that_collapses_is_told_and_remembers_it(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RatemeshWarning)
        whole = run(COLLAPSE, tmp_path / "run")
    said = [str(w.message) for w in caught if str(w.message).startswith("round ")]
    assert whole.metrics["collapse"] == said
    assert any(re.search(r"features of node \d.* effective rank 1\.0\d", words) for words in said)
    records = [json.loads(line) for line in (whole.folder / "rounds.jsonl").read_text().splitlines()]
    kept = [(r["round"], finding) for r in records for finding in r.get("collapse", ())]
    assert sorted(finding["kind"] for _, finding in kept) == ["falling", "rank"]
    t, first = kept[0]
    assert said[0].startswith(f"round {t}: ")
    assert records[t - 1]["nodes"][first["node"]]["feature_rank"] == first["value"]


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_a_resumed_run_says_the_same_in_its_files(tmp_path: Path) -> None:
    whole = run(COLLAPSE, tmp_path / "whole").folder
    for t in (3, 6):
        cut = tmp_path / f"cut-{t}"
        with pytest.raises(KeyboardInterrupt):
            run(COLLAPSE, cut, progress=stop_at(t))
        resume(cut)
        assert outcome(cut) == outcome(whole)


@pytest.mark.parametrize(
    "changes", [{}, {"method": "dsgd"}, {"method": "fedproto"}, {"graph": {"name": "empty", "nodes": 3}}]
)
def test_healthy_runs_are_left_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    """Warnings are errors here: what is told of a healthy run would end it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="round ", category=RatemeshWarning)
        found = run(tiny(rounds=8, **changes), tmp_path / "run").metrics
    assert "collapse" not in found


def test_smoke_and_digits_are_healthy(tmp_path: Path) -> None:
    assert "collapse" not in run(SMOKE, tmp_path / "smoke", overrides=["rounds=12"]).metrics
    digits = run(SMOKE.with_name("digits.toml"), tmp_path / "digits", overrides=["rounds=6", "graph.nodes=4"]).metrics
    assert "collapse" not in digits
