"""One contract for every engine, and the same results whatever the number of processes."""

import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from ratemesh.engines import ENGINES, EngineSpec
from ratemesh.engines.protocol import Engine, Site, SiteFactory
from ratemesh.engines.rounds import Played
from ratemesh.errors import InputError, NonFiniteError, RatemeshError
from ratemesh.experiment.plan import ExperimentSite
from ratemesh.messages.formats import Payload
from toy_engines import ALONE, NODES, SharedRay
from toy_sites import Toys

COSTLY = {"zenoh, mutual TLS"}
"""Variants that start a process a node: some of their failures are left to `make test-faults`."""
VARIANTS: dict[str, tuple[str, dict[str, int | bool]]] = {
    "inprocess, 1 process": ("inprocess", {"workers": 1}),
    "inprocess, 2 processes": ("inprocess", {"workers": 2}),
    "inprocess, 3 processes": ("inprocess", {"workers": 3}),
    "zenoh, mutual TLS": ("zenoh", {}),
    "ray": ("ray", {}),
}
FIRST, *OTHERS = HERE = [variant for variant in VARIANTS if variant != "ray" or ALONE]
"""Ray is tested in a network of its own: test_ray.py plays this file there."""


def engine(variant: str) -> EngineSpec:
    name, settings = VARIANTS[variant]
    return SharedRay() if name == "ray" else ENGINES[name](name=name, **settings)


@cache
def play(variant: str, script: str, rounds: int = 2) -> tuple[list[Played], list[Payload]]:
    """Play some rounds, then make a call; once a session, because processes are slow to start."""
    with engine(variant).open(Toys(script, NODES), NODES) as opened:
        played = [opened.play(t) for t in range(1, rounds + 1)]
        return played, opened.ask(Site.features, "test", 7)


def test_every_engine_is_under_contract() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(ENGINES)


class Half(Engine):
    """An engine that plays and cannot call: what a new one looks like when half of it is written."""

    def play(self, t: int) -> Played:
        raise NotImplementedError


class HalfFactory(SiteFactory):
    """A factory that cannot be made again in another process."""

    def site(self, index: int) -> Site:
        raise NotImplementedError


@pytest.mark.parametrize(("half", "missing"), [(Half, "carry"), (HalfFactory, "from_json.* to_json")])
def test_what_misses_a_required_part_cannot_be_made(half: type[Any], missing: str) -> None:
    with pytest.raises(TypeError, match=f"abstract.*{missing}"):
        half()


@pytest.mark.parametrize("variant", HERE)
def test_every_engine_has_all_required_parts(variant: str) -> None:
    spec = engine(variant)
    assert spec.placement <= type(spec).model_fields.keys()
    with spec.open(Toys("gossip", NODES), NODES) as opened:
        assert isinstance(opened, Engine)
        assert [float(answer["value"]) for answer in opened.ask(Site.features, "test", 1)] == list(range(NODES))


def test_sites_offer_every_call_that_a_run_makes() -> None:
    """A call is named by the protocol's method: one that a site lacks, or spells otherwise, fails here and in mypy."""
    for name in (name for name, value in vars(Site).items() if callable(value) and not name.startswith("_")):
        wanted, has = (inspect.signature(getattr(owner, name)).parameters for owner in (Site, ExperimentSite))
        assert [(p.name, p.default) for p in wanted.values()] == [(p.name, p.default) for p in has.values()]


def test_a_misspelt_call_fails_at_once() -> None:
    with engine(FIRST).open(Toys("gossip", NODES), NODES) as opened, pytest.raises(AttributeError, match="featurs"):
        opened.ask(Site.featurs, "test")


@pytest.mark.parametrize("variant", OTHERS)
@pytest.mark.parametrize("script", ["gossip", "chain"])
def test_all_engines_agree_to_the_bit(variant: str, script: str) -> None:
    (first, answers), (played, other) = play(FIRST, script), play(variant, script)
    assert [p.logs for p in played] == [p.logs for p in first]
    assert [p.traffic.bytes for p in played] == [p.traffic.bytes for p in first]
    assert [p.traffic.messages for p in played] == [p.traffic.messages for p in first]
    assert all(torch.equal(a["value"], b["value"]) for a, b in zip(answers, other, strict=True))


@pytest.mark.parametrize("variant", HERE)
def test_messages_are_counted_by_edge(variant: str) -> None:
    played, _ = play(variant, "gossip")
    traffic = played[0].traffic
    assert {(i, j) for _, i, j in traffic.messages} == {(i, j) for i in range(NODES) for j in range(NODES) if i != j}
    assert set(traffic.messages.values()) == {2}
    assert traffic.bytes.total() == NODES * (NODES - 1) * 2 * (8 + 8)  # one float64, one int64


@pytest.mark.parametrize("variant", HERE)
def test_turns_inside_a_round_are_kept_and_answers_come_back_in_node_order(variant: str) -> None:
    _, answers = play(variant, "chain")
    assert [float(a["value"]) for a in answers] == list(range(NODES))
    assert {int(a["test"]) for a in answers} == {7}


@pytest.mark.parametrize("variant", HERE)
def test_threads_are_pinned_inside_only(variant: str) -> None:
    before = torch.get_num_threads()
    _, answers = play(variant, "chain")
    assert {int(a["threads"]) for a in answers} == {1}
    assert torch.get_num_threads() == before


OWN = {"silent"}
"""The failure that engines with processes of their own find in their own way."""
FAILURES = [
    ("silent", RatemeshError, "node 1 waits for \\[0\\]"),
    ("stranger", RatemeshError, rf"addressed \[{NODES + 3}\]"),
    ("unlucky", NonFiniteError, "loss of node 1 is no number"),
    ("wrong", InputError, "argument must be right"),
    ("buggy", (ZeroDivisionError, RuntimeError), "a bug"),
]


@pytest.mark.parametrize(
    ("variant", "script", "kind", "words"),
    [
        pytest.param(v, *failure, marks=pytest.mark.faults if v in COSTLY and failure[0] not in OWN else ())
        for v in HERE
        if "3 processes" not in v  # which differ from two only in who hosts whom, and every failure starts its own
        for failure in FAILURES
    ],
)
def test_failures_keep_their_kind_and_words(variant: str, script: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        play(variant, script)


@pytest.mark.parametrize(
    "variant", [v for v in OTHERS if v != "ray" and "3" not in v]
)  # which mends it: test_ray_faults.py
def test_a_killed_worker_is_reported_with_its_nodes(variant: str) -> None:
    with pytest.raises(RatemeshError, match=r"nodes \[.*1.*\] ended with exit code -9.*can be resumed"):
        play(variant, "doomed")


def test_workers_end_with_the_run_that_started_them() -> None:
    """Kill the parent with SIGKILL: its workers must notice by themselves."""
    code = (
        "import os, signal, sys, time\n"
        "from toy_sites import Toys\n"
        "from ratemesh.engines.inprocess import InProcess\n"
        "with InProcess(name='inprocess', workers=2).open(Toys('gossip', 4), 4) as engine:\n"
        "    engine.play(1)\n"
        "    print(*[worker.process.pid for worker in engine._workers], flush=True)\n"
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
