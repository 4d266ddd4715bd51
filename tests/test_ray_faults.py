"""Engine `ray` when processes and machines are killed: the run ends as if nothing had happened, to the bit."""

import json
import re
from pathlib import Path

import pytest

from ratemesh.engines.inprocess import InProcess
from ratemesh.experiment.experiment import run
from test_engine_runs import assert_same
from toy_engines import HERE, alone
from toy_ray import LONG
from toy_sites import Toys

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LOST = r"warning: nodes \[(\d[\d, ]*)\] were lost in (round \d+|'\w+'); they were started again, and all go on from '"


def play(scenario: str, folder: Path) -> str:
    done = alone(HERE / "toy_ray.py", scenario, folder, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run({**LONG, "engine": {"workers": 1}}, tmp_path_factory.mktemp("reference") / "run").folder


def test_killed_actors_come_back_and_change_nothing(reference: Path, tmp_path: Path) -> None:
    said = play("killed_actors", tmp_path)
    assert len(re.findall(LOST, said)) >= 2, said  # two strikes may fall into one round
    assert_same(reference, tmp_path / "run")


def test_a_killed_machine_is_replaced_by_the_others(tmp_path: Path) -> None:
    said = play("killed_machine", tmp_path)
    there = int(re.findall(r"there: (\d+)", said)[0])
    lost = {node for nodes, _ in re.findall(LOST, said) for node in nodes.split(", ")}
    assert len(lost) == there > 0, said  # all at once or one by one; Ray may try the dead machine again before it knows
    assert_same(run({**LONG, "rounds": 60, "engine": {"workers": 1}}, tmp_path / "here").folder, tmp_path / "run")


def test_messages_of_a_killed_node_are_made_again(tmp_path: Path) -> None:
    said = play("killed_sender", tmp_path)
    assert "nodes [0] were lost in round 2; they were started again, and all go on from the beginning." in said
    with InProcess(workers=1).open(Toys("frail", 3, tmp_path), 3) as engine:  # it does not die twice
        assert json.loads(said.splitlines()[-2]) == [engine.play(t).logs for t in (1, 2, 3)]


def test_a_node_that_dies_again_and_again_ends_the_run_in_words(tmp_path: Path) -> None:
    said = play("doomed", tmp_path)
    assert "a node was lost in round 2, and engine.restarts is used up." in said
    assert "The run can be resumed." in said


def test_a_killed_command_leaves_nothing_behind_and_resumes(reference: Path, tmp_path: Path) -> None:
    said = play("killed_driver", tmp_path)
    assert "left: []" in said
    assert "round 2/8" in said
    assert "round 8/8" in said
    assert_same(reference, tmp_path / "run")
