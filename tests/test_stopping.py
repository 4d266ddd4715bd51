"""Held-out numbers on the way, the best round, and stopping for want of a better one."""

import json
import math
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import OutputSpec, make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.launch import launch
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.stopping import Course, StoppingSpec
from ratemesh.experiment.storage import read_tensors
from ratemesh.metrics.table import GLIMPSED, METRICS
from test_experiment import TINY, outcome, stop_at, tiny

DATA = {**TINY["data"], "validation": 0.25}
CONSTANT = {"epochs": 1, "batch_size": 8, "schedule": "constant"}


def stopping(rounds: int = 12, **settings: Any) -> dict[str, Any]:
    """Return a run whose rates do not depend on its rounds, so that its best round can be played again alone."""
    return tiny(rounds=rounds, data=DATA, local=CONSTANT, stopping=settings, output={"evaluate_every": 1})


def told(value: Any, t: int, metric: str = "val_acc_cross") -> dict[str, Any]:
    return {"round": t, "evaluation": {metric: value}}


def course(values: list[Any], **settings: Any) -> Course:
    """Return the course of a run that is told these values until it stops."""
    out = Course(StoppingSpec(**settings))
    for t, value in enumerate(values, 1):
        out.see(told(value, t))
        if out.reason:
            break
    return out


@pytest.mark.parametrize(("rounds", "due"), [(1, [1]), (4, [1, 2, 3, 4]), (25, [3, 6, 9, 12, 15, 18, 21, 24, 25])])
def test_by_itself_a_run_is_evaluated_about_ten_times_and_at_its_end(rounds: int, due: list[int]) -> None:
    assert [t for t in range(1, rounds + 1) if OutputSpec().evaluates(t, rounds)] == due
    assert not any(OutputSpec(evaluate_every=0).evaluates(t, rounds) for t in range(1, rounds + 1))
    assert [t for t in range(1, 8) if OutputSpec(evaluate_every=3).evaluates(t, 7)] == [3, 6]


@pytest.mark.parametrize(
    ("values", "settings", "best", "played"),
    [
        ([0.5, 0.6, 0.6, 0.5, 0.9], {"patience": 2}, 2, 4),
        ([0.5, 0.6, 0.6, 0.7, 0.5], {"patience": 2}, 4, 5),  # a better one starts the waiting anew
        ([0.5, 0.55, 0.6, 0.61], {"patience": 3, "least": 0.2}, 1, 4),
        ([0.5, 0.5, 0.5, 0.5], {"patience": 3}, 1, 4),  # all equal: the first is as good as any
        ([0.5, None, math.nan, 0.9], {"patience": 2}, 1, 3),  # what is lost is no better
        ([0.5, 0.2, 0.1, 0.3], {"best": True}, 1, 4),
        ([0.5, 0.2], {}, None, 2),
    ],
)
def test_the_rule(values: list[Any], settings: dict[str, Any], best: int | None, played: int) -> None:
    found = course(values, **settings)
    assert (found.best, found.played) == (best, played)
    assert bool(found.reason) == (bool(settings.get("patience")) and found._waited >= settings["patience"])


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1), st.just(math.nan)), max_size=20),
    st.integers(0, 4),
    st.floats(0, 0.3),
)
def test_a_course_read_again_from_its_records_is_the_same(values, patience, least):
    spec = StoppingSpec(patience=patience, least=least, best=True)
    records = [told(value, t) for t, value in enumerate(values, 1)]
    once, cut = Course(spec, records), Course(spec, records[: len(records) // 2])
    for record in json.loads(json.dumps(records[len(records) // 2 :]).replace("NaN", "null")):
        cut.see(record)
    assert repr(once.numbers(20)) == repr(cut.numbers(20))
    known = [v for v in values if v is not None and not math.isnan(v)]
    assert (once.best is None) == (not known)
    if known:
        assert once.value >= max(known) - least


def test_without_any_number_nothing_stops_and_nothing_is_restored() -> None:
    with pytest.warns(RatemeshWarning, match=r"'val_acc_cross' is no number in round 1 .* nothing to choose rounds by"):
        found = course([math.nan] * 6, patience=2)
    assert (found.best, found.restored, found.reason, found.played) == (None, None, "", 6)


def test_one_node_goes_by_its_own_accuracy(tmp_path: Path) -> None:
    table = {**stopping(3, best=True), "graph": {"name": "empty", "nodes": 1}, "encoders": ["mlp"]}
    with pytest.warns(RatemeshWarning, match="'val_acc_own' is gone by instead"):
        assert run(table, tmp_path / "run").metrics["best_metric"] == "val_acc_own"


@pytest.mark.parametrize("metric", ["acc_cross", "val_acc_knn", "total"])
def test_nothing_is_chosen_by_test_samples_or_by_what_rounds_do_not_tell(metric: str) -> None:
    with pytest.raises(InputError, match=rf"stopping\.metric must be .*validation samples.*; got '{metric}'"):
        make_config({"stopping": {"metric": metric}})


def test_every_number_of_an_evaluation_can_be_chosen_by(tmp_path: Path) -> None:
    partial = {"partition": {"name": "labels", "labels": [[0, 1], [1, 2], [0, 2], [0, 1, 2]]}}
    found: set[str] = set()
    for name, changes in {"all": {}, "partial": partial}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RatemeshWarning)
            folder = run(tiny(rounds=1, data=DATA, **changes), tmp_path / name).folder
        found |= RunFolder(folder).records()[0]["evaluation"].keys() - {"sample_passes"}
    assert found == {f"val_{key}" for key in GLIMPSED}
    assert found <= METRICS.keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": TINY["data"]}, r"must have validation samples .*data\.validation = 0\.1"),
        ({"output": {"evaluate_every": 0}}, r"evaluated rounds to choose among; output\.evaluate_every is 0"),
        ({"output": {"evaluate_every": 13}}, "evaluated rounds to choose among"),
    ],
)
def test_a_run_without_numbers_to_choose_by_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        run({**stopping(patience=1), **changes}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sites_of_their_own_do_not_stop_early(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stopping must be off for sites .* use `ratemesh run`"):
        launch(make_config(stopping(patience=1)), tmp_path / "mesh", insecure=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(stopping(patience=2), tmp_path_factory.mktemp("stopped") / "run").folder


def metrics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def states(folder: Path, t: int) -> list[dict[str, torch.Tensor]]:
    return [read_tensors(file) for file in sorted(RunFolder(folder).states(t).iterdir())]


def test_a_run_stops_and_ends_with_the_best_round(stopped: Path, tmp_path: Path) -> None:
    found = metrics_of(stopped)
    records = RunFolder(stopped).records()
    values = [record["evaluation"]["val_acc_cross"] for record in records]
    best, played = found["best_round"], found["rounds_played"]
    assert found["stopped_early"]
    assert (played, found["judged_round"], found["rounds"]) == (len(records), best, 12)
    assert played == best + 2 < 12
    assert values.index(max(values)) + 1 == best
    assert found["best_value"] == max(values)
    assert f"val_acc_cross has not been better than {max(values):.4g} of round {best}" in found["stop_reason"]
    assert found["bytes_total"] == sum(record["bytes"] for record in records)
    alone = run({**stopping(best), "stopping": {}}, tmp_path / "alone")  # the same rounds, and no more of them
    assert {key: alone.metrics[key] for key in METRICS if key.startswith("acc_") and key in found} == {
        key: found[key] for key in METRICS if key.startswith("acc_") and key in found
    }
    mine, theirs = (read_tensors(folder / "features.safetensors") for folder in (stopped, alone.folder))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert found["sample_passes"] == alone.metrics["sample_passes"] + (played - best) * 60  # what was spent is told


def test_the_best_and_the_last_states_are_kept(stopped: Path) -> None:
    found = metrics_of(stopped)
    kept = sorted(path.name for path in (stopped / "checkpoints").iterdir())
    assert kept == [f"round-{t:06d}" for t in (found["best_round"], found["rounds_played"])]
    assert RunFolder(stopped).judged_states() == RunFolder(stopped).states(found["best_round"])
    a, b = (states(stopped, t)[0] for t in (found["best_round"], found["rounds_played"]))
    assert not torch.equal(a["V"], b["V"])


def test_best_alone_plays_all_rounds(stopped: Path, tmp_path: Path) -> None:
    found = run(stopping(best=True), tmp_path / "run").metrics
    assert (found["rounds_played"], found["stopped_early"]) == (12, False)
    values = [record["evaluation"]["val_acc_cross"] for record in RunFolder(tmp_path / "run").records()]
    assert found["judged_round"] == found["best_round"] == values.index(max(values)) + 1
    last = run(stopping(best=True, restore=False), tmp_path / "last").metrics
    assert (last["best_round"], last["judged_round"]) == (found["best_round"], 12)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("every", [1, 5])
def test_resuming_at_any_round_equals_not_stopping(every: int, workers: int, stopped: Path, tmp_path: Path) -> None:
    table = {**stopping(patience=2), "output": {"evaluate_every": 1, "checkpoint_every": every}}
    table["engine"] = {"workers": workers}
    played = metrics_of(stopped)["rounds_played"]
    for t in range(1, played + 1, 1 if workers == 1 else 3):
        folder = tmp_path / f"cut-{t}"
        with pytest.raises(KeyboardInterrupt):
            run(table, folder, progress=stop_at(t))
        resume(folder)
        assert outcome(folder) == outcome(stopped)


def test_resume_after_kill_9_at_any_time_equals_not_stopping(stopped: Path, tmp_path: Path) -> None:
    config, folder, draw = tmp_path / "config.toml", tmp_path / "run", random.Random(0)
    config.write_text((stopped / "config.toml").read_text())
    code = f"import ratemesh; ratemesh.run({str(config)!r}, {str(folder)!r})"
    words = ["-c", code]
    for stop_after in (1, 3, 5, 7):
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rounds = folder / "rounds.jsonl"
        while process.poll() is None and (not rounds.exists() or rounds.read_bytes().count(b"\n") < stop_after):
            time.sleep(0.002)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (folder / "metrics.json").exists():
            break
        words = ["-m", "ratemesh", "resume", str(folder)]
    resume(folder)
    assert outcome(folder) == outcome(stopped)


def test_what_is_evaluated_decides_where_rounds_are_chosen_by_it(tmp_path: Path) -> None:
    def print_of(**changes: Any) -> str:
        return make_config({**stopping(patience=2), **changes}).digest()

    assert print_of() != print_of(output={"evaluate_every": 2})
    assert print_of() != print_of(stopping={"patience": 3})
    off = [print_of(stopping={}, output={"evaluate_every": every}) for every in (0, 2)]
    assert off[0] == off[1]
