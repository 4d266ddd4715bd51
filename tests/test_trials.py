"""Several seeds: intervals as the paper reports them, and trials that can be interrupted."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.trials import Interval, is_trials, more_trials, resume_trials, run_trials
from test_experiment import TINY, stop_at, tiny


def test_five_values_use_the_papers_factor() -> None:
    """mean ± 1.241 s for five seeds (t_{0.975,4}/√5)."""
    values = [0.1, 0.4, 0.2, 0.9, 0.5]
    interval = Interval.of(values)
    assert interval.mean == pytest.approx(np.mean(values))
    assert interval.half_width == pytest.approx(1.2417 * np.std(values, ddof=1), rel=1e-3)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(-5, 5))
def test_an_interval_moves_with_its_values(values: list[float], shift: float) -> None:
    one, other = Interval.of(values), Interval.of([v + shift for v in values])
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-9)
    assert other.half_width == pytest.approx(one.half_width, abs=1e-6)


def test_one_value_has_no_interval() -> None:
    assert Interval.of([0.5]).half_width == float("inf")


def test_trials_are_the_single_runs_of_their_seeds(tmp_path: Path) -> None:
    config = make_config(tiny(rounds=2, seed=3))
    result = run_trials(config, tmp_path / "trials", 2)
    single = run(tiny(rounds=2, seed=4), tmp_path / "single")
    assert json.loads((tmp_path / "trials/trial-2/metrics.json").read_text()) == single.metrics
    assert result.metrics["reduction"].values[1] == single.metrics["reduction"]
    summary = json.loads((tmp_path / "trials/trials.json").read_text())
    assert summary["seeds"] == [3, 4]
    assert summary["complete"] is True
    assert summary["metrics"]["acc_energy"]["mean"] == result.metrics["acc_energy"].mean


def test_trials_of_one_node_leave_out_what_one_node_cannot_have(tmp_path: Path) -> None:
    """Disagreement is NaN in a run that has just ended, and nothing in one that is read: both are no number."""
    alone = make_config(tiny(rounds=1, graph={"name": "empty", "nodes": 1}))
    fresh = run_trials(alone, tmp_path / "trials", 2)
    assert not {"disagreement", "acc_cross", "cross_matrix"} & fresh.metrics.keys()
    assert fresh.metrics["reduction"].half_width > 0
    assert resume_trials(tmp_path / "trials").metrics == fresh.metrics


def test_interrupted_trials_go_on(tmp_path: Path) -> None:
    config = make_config({**TINY, "rounds": 3})
    whole = run_trials(config, tmp_path / "whole", 2)
    calls = iter([lambda record: None, stop_at(2)])
    with pytest.raises(KeyboardInterrupt):
        run_trials(config, tmp_path / "cut", 2, progress=lambda name, rounds: next(calls))
    assert is_trials(tmp_path / "cut")
    assert json.loads((tmp_path / "cut/trials.json").read_text())["complete"] is False
    assert resume_trials(tmp_path / "cut").metrics == whole.metrics


def test_more_trials_may_follow_but_never_fewer(tmp_path: Path) -> None:
    config = make_config({**TINY, "rounds": 1})
    first = run_trials(config, tmp_path / "t", 1)
    more_trials(tmp_path / "t", 2)
    second = resume_trials(tmp_path / "t")
    assert second.metrics["reduction"].values[:1] == first.metrics["reduction"].values
    assert len(second.metrics["reduction"].values) == 2
    with pytest.raises(InputError, match=r"holds, 2; got 1\. Give --trials 2, or another --out"):
        more_trials(tmp_path / "t", 1)


def test_trials_that_cannot_start_leave_nothing_in_the_way(tmp_path: Path) -> None:
    lost = make_config({**TINY, "data": {"name": "mnist", "dir": str(tmp_path / "nowhere")}})
    with pytest.raises(InputError, match="mnist"):
        run_trials(lost, tmp_path / "trials", 2)
    assert not (tmp_path / "trials").exists()


def test_trials_need_room_and_a_number(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="new or empty folder"):
        run_trials(make_config(TINY), tmp_path, 2)
    with pytest.raises(InputError, match="trials must be at least 1; got 0"):
        run_trials(make_config(TINY), tmp_path / "new", 0)
