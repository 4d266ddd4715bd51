"""The table of metrics has a row for every number of a run, and every place that shows numbers reads it."""

import json
import re
from pathlib import Path

import pytest

from ratemesh.cli import screen
from ratemesh.experiment.trials import Interval, TrialsResult
from ratemesh.metrics.table import BY_AVERAGE, BY_HOLDERS, COLUMNS, CURVES, MATRICES, METRICS, Metric, label_of
from ratemesh.report.figures import curves
from ratemesh.studies.demo import summarise
from toy_runs import Copy, edited, page

EXPLAINED = ("_floor", "_n")
NOT_NUMBERS = {"schema", "method", "undefined", "stopped_early", *MATRICES}


def test_every_number_of_a_run_has_a_row(smoke: Path) -> None:
    found = json.loads((smoke / "metrics.json").read_text())
    assert {key for key in found if not key.endswith(EXPLAINED)} - NOT_NUMBERS <= METRICS.keys()


def test_what_is_recorded_every_round_has_a_name(smoke: Path) -> None:
    record = json.loads((smoke / "rounds.jsonl").read_text().splitlines()[0])
    assert CURVES.keys() <= record.keys()
    assert CURVES.keys() <= record["nodes"][0].keys()


def test_names_in_the_table_are_rows_of_it() -> None:
    named = {key for column in COLUMNS.values() for key in column.metrics}
    for how in (BY_AVERAGE, BY_HOLDERS):
        named |= {how.metric, how.alone, *how.beside}
        assert all(METRICS[key].unit == "percent" for key in (how.metric, how.alone, *how.beside))
        assert all(METRICS[key].short for key in how.beside)
    assert named <= METRICS.keys()
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)


def test_one_row_shows_a_new_metric_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smoke: Path, copy: Copy
) -> None:
    """The recipe of CONTRIBUTING: a row, and the terminal, the page and the demonstration have it."""
    row = Metric("Fresh number", "never seen before", "percent", "high", 2, "fre- sh")
    monkeypatch.setitem(METRICS, "fresh", row)
    monkeypatch.setattr(screen.console, "_width", 110)  # the columns that there are fill a narrow terminal
    metrics = {**json.loads((smoke / "metrics.json").read_text()), "fresh": 0.12345}
    screen.table([metrics])
    screen.comparison(["a"], [TrialsResult(smoke, "a", {"fresh": Interval(0.5, 0.25, (0.25, 0.75))})])
    shown = capsys.readouterr().out
    assert "12.35 %" in shown
    assert re.search(r"50\.00 ±\s+25\.00 %", shown.replace("–", ""))
    assert summarise(metrics)["fresh"] == 0.12345
    assert "Fresh number never seen before 12.3 %" in page(copy("new", edited("metrics.json", fresh=0.12345))).text
    assert "Fresh number" not in page(smoke).text  # that run does not have it


def test_the_terminal_s_columns_are_those_of_the_table(capsys: pytest.CaptureFixture[str], smoke: Path) -> None:
    metrics = json.loads((smoke / "metrics.json").read_text())
    screen.table([metrics])
    line = next(line for line in capsys.readouterr().out.splitlines() if "kB" in line)
    accuracies = [f"{100 * metrics[key]:.1f} %" for key in ("acc_own", "acc_cross", "retrieval_cross", "acc_average")]
    geometry = [f"{metrics[key]:.3f}" for key in ("disagreement", "overlap")]
    ranks = f"{metrics['rank_min']:.1f}–{metrics['rank_max']:.1f}"
    assert line.split()[-13:] == " ".join([*accuracies, *geometry, ranks, "76.1 kB"]).split()


def test_a_partial_run_shows_the_label_aware_accuracy_and_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], smoke: Path
) -> None:
    metrics = json.loads((smoke / "metrics.json").read_text()) | {"rank_max": 12.3, "bytes_total": 12.3e6}
    screen.table([metrics | {"acc_label_aware": 0.4321}])
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("43.2 %", f"{metrics['rank_min']:.1f}–12.3", "12.3 MB", "label-"))
    assert "1-NN" not in shown.partition("On held-out")[0]


def test_trials_are_printed_by_labels_in_the_order_of_the_table(
    capsys: pytest.CaptureFixture[str], smoke: Path
) -> None:
    keys = ("wccr_floor", "overlap", "acc_cross", "acc_own", "unheard")
    screen.intervals(TrialsResult(smoke, "a", {key: Interval(0.5, 0.25, (0.25, 0.75)) for key in keys}))
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("0.5")[0].strip() for line in lines if "0.25" in line]
    assert names == ["Accuracy, own", "Accuracy, across nodes", "Class overlap", "WCCR, without structure", "unheard"]
    assert label_of("cka_paired_n") == "CKA, same samples, samples"


def test_panels_of_accuracy_against_cost_are_rows_of_the_table() -> None:
    assert list(curves.KINDS) == [
        "acc_own",
        "acc_cross",
        "acc_average",
        "acc_energy",
        "acc_node",
        "acc_gaussian",
        "acc_label_aware",
    ]
    assert {key: METRICS[key].panel for key in curves.KINDS} == curves.KINDS
