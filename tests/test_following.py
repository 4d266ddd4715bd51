"""What a run tells on its way and of its end: callbacks that may stop it, curves, and the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

import ratemesh
from ratemesh.cli import screen
from ratemesh.errors import StopTraining
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.records import RunFolder
from ratemesh.report.figures import curves
from ratemesh.report.runs import open_run
from test_experiment import tiny
from test_stopping import DATA, metrics_of, stopped, stopping

__all__ = ["stopped"]


def test_callbacks_are_all_called_and_one_may_end_the_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(record: Any) -> None:
        if record["round"] == 3:
            raise StopTraining("enough is enough")

    done = run(
        tiny(output={"checkpoint_every": 5}), tmp_path / "run", progress=[enough, lambda r: seen.append(r["round"])]
    )
    assert seen == [1, 2, 3]
    assert (done.metrics["rounds_played"], done.metrics["judged_round"], done.metrics["rounds"]) == (3, 3, 6)
    assert done.metrics["stop_reason"] == "enough is enough"
    assert ratemesh.StopTraining is StopTraining
    (done.folder / "metrics.json").unlink()  # as if it had been killed before it was judged
    again = resume(done.folder, progress=lambda r: seen.append(r["round"]))
    assert (seen, again.metrics) == ([1, 2, 3], done.metrics)


def test_a_run_that_a_callback_ended_ends_with_its_best_round_too(tmp_path: Path) -> None:
    def enough(record: Any) -> None:
        if record["round"] == 6:
            raise StopTraining

    found = run(stopping(best=True), tmp_path / "run", progress=enough).metrics
    assert (found["rounds_played"], found["stop_reason"]) == (6, "a callback asked for it")
    assert found["judged_round"] == found["best_round"] <= 6


def test_curves_tell_of_validation_samples_and_the_test_samples_wait_for_the_end(stopped: Path) -> None:
    opened = open_run(stopped)
    assert opened.validated
    assert not any(key.startswith("acc_") for table in opened.evaluations for key in table)
    found = curves.points(opened)
    own = [table["val_acc_own"] for table in opened.evaluations]
    assert [point.accuracy["acc_own"] for point in found] == [*own, opened.metrics["val_acc_own"]]  # restored: one more
    drawn = curves.draw_accuracy([opened], stopped.parent / "figure", formats=["svg"])
    assert "run, validation samples ends with" in drawn.alt


def test_both_parts_are_looked_at_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = run(tiny(rounds=1, data=DATA, output={"evaluate": "both"}), tmp_path / "run").folder
    (record,) = RunFolder(folder).records()
    assert {"acc_cross", "val_acc_cross"} <= record["evaluation"].keys()
    assert not open_run(folder).validated


def test_fewer_samples_are_looked_at_where_that_is_asked_for_every_class_in_proportion(tmp_path: Path) -> None:
    folder = run(tiny(rounds=1, output={"evaluate_samples": 6}), tmp_path / "run").folder
    (record,) = RunFolder(folder).records()
    sixths = 6 * record["evaluation"]["acc_average"]
    assert sixths == pytest.approx(round(sixths))
    whole = 18 * json.loads((folder / "metrics.json").read_text())["acc_average"]
    assert whole == pytest.approx(round(whole))


def test_the_terminal_tells_held_out_numbers_and_how_the_run_ended(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = RunFolder(stopped).records()
    on_round = screen.Board().follow("mine", 12)
    for record in records:
        on_round(record)
    screen.ending(metrics_of(stopped))
    screen.console.print(screen.view("mine", records, 12))
    said = capsys.readouterr().out
    last = records[-1]["evaluation"]
    assert f"val. own {100 * last['val_acc_own']:.1f} % cross {100 * last['val_acc_cross']:.1f} %" in said
    assert f"Stopped after round {len(records)} of 12: val_acc_cross has not been better" in said
    assert f"Judged and kept: round {metrics_of(stopped)['best_round']}, the best by val_acc_cross" in said
    assert "Accuracy, across nodes, validation" in said
