"""One contract for every engine, and the same results whatever the number of processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ratemesh.engines import ENGINES, EngineSpec
from ratemesh.engines.protocol import Played
from ratemesh.errors import InputError, NonFiniteError, RatemeshError
from toy_engines import ALONE, NODES, SharedRay
from toy_sites import factory

VARIANTS: dict[str, tuple[str, dict[str, int]]] = {
    "inprocess, 1 process": ("inprocess", {"workers": 1}),
    "inprocess, 2 processes": ("inprocess", {"workers": 2}),
    "inprocess, 3 processes": ("inprocess", {"workers": 3}),
    "ray": ("ray", {}),
}
FIRST, *OTHERS = HERE = [variant for variant in VARIANTS if variant != "ray" or ALONE]
"""Ray is tested in a network of its own: test_ray.py plays this file there."""


def engine(variant: str) -> EngineSpec:
    name, settings = VARIANTS[variant]
    return SharedRay() if name == "ray" else ENGINES[name](name=name, **settings)


def play(variant: str, script: str, rounds: int = 2) -> tuple[list[Played], list[torch.Tensor]]:
    with engine(variant).open(factory(script, NODES), NODES) as opened:
        played = [opened.play(t) for t in range(1, rounds + 1)]
        return played, [answer["value"] for answer in opened.ask("end", "0")]


def test_every_engine_is_under_contract() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(ENGINES)


@pytest.mark.parametrize("variant", OTHERS)
@pytest.mark.parametrize("script", ["gossip", "chain"])
def test_all_engines_agree_to_the_bit(variant: str, script: str) -> None:
    (first, values), (played, other) = play(FIRST, script), play(variant, script)
    assert [p.logs for p in played] == [p.logs for p in first]
    assert [p.traffic.bytes for p in played] == [p.traffic.bytes for p in first]
    assert [p.traffic.messages for p in played] == [p.traffic.messages for p in first]
    assert torch.equal(torch.stack(other), torch.stack(values))


@pytest.mark.parametrize("variant", HERE)
def test_messages_are_counted_by_edge(variant: str) -> None:
    played, _ = play(variant, "gossip", rounds=1)
    traffic = played[0].traffic
    assert traffic.edges == {(i, j) for i in range(NODES) for j in range(NODES) if i != j}
    assert set(traffic.messages.values()) == {2}
    assert traffic.total_bytes == NODES * (NODES - 1) * 2 * (8 + 8)  # one float64, one int64


@pytest.mark.parametrize("variant", HERE)
def test_turns_inside_a_round_are_kept(variant: str) -> None:
    _, values = play(variant, "chain", rounds=1)
    assert [float(v) for v in values] == [0, 1, 2, 3]


@pytest.mark.parametrize("variant", HERE)
def test_errands_come_back_in_node_order_with_pinned_threads(variant: str) -> None:
    before = torch.get_num_threads()
    with engine(variant).open(factory("gossip", NODES), NODES) as opened:
        answers = opened.ask("errand", "7")
    assert [float(a["value"]) for a in answers] == [0, 1, 2, 3]
    assert {int(a["errand"]) for a in answers} == {7}
    assert {int(a["threads"]) for a in answers} == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("variant", HERE)
@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("silent", RatemeshError, "node 1 waits for \\[0\\]"),
        ("stranger", RatemeshError, "addressed \\[7\\]"),
        ("unlucky", NonFiniteError, "loss of node 1 is no number"),
        ("wrong", InputError, "argument must be right"),
    ],
)
def test_failures_keep_their_kind_and_words(variant: str, script: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        play(variant, script)


@pytest.mark.parametrize("variant", HERE)
def test_a_bug_shows_where_it_is(variant: str) -> None:
    with pytest.raises((ZeroDivisionError, RuntimeError), match="a bug"):
        play(variant, "buggy")


@pytest.mark.parametrize("variant", [v for v in OTHERS if v != "ray"])  # which mends it: test_ray_faults.py
def test_a_killed_worker_is_reported_with_its_nodes(variant: str) -> None:
    with pytest.raises(RatemeshError, match=r"nodes \[.*1.*\] ended with exit code -9.*can be resumed"):
        play(variant, "doomed")


def test_workers_end_with_the_run_that_started_them() -> None:
    """Kill the parent with SIGKILL: its workers must notice by themselves."""
    code = (
        "import os, signal, sys, time\n"
        "from toy_sites import factory\n"
        "from ratemesh.engines.inprocess import InProcess\n"
        "with InProcess(name='inprocess', workers=2).open(factory('gossip', 4), 4) as engine:\n"
        "    engine.play(1)\n"
        "    print(*[host._process.pid for host in engine._hosts], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=here, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr
    waited = [_gone(int(pid)) for pid in done.stdout.split()]
    assert waited == [True, True]


def _gone(pid: int, tries: int = 100) -> bool:
    import time

    for _ in range(tries):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False
