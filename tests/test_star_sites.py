"""A server that is lost: its clients end with words, in real sites, and go on when it is back."""

import re
import time
from pathlib import Path

import pytest
import torch

from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.launch import start_site, stop, write_sites
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.methods.fedsimclr import FedSimClr
from test_experiment import TINY
from test_method_contract import METHODS, OWN, nodes
from test_star import FEDERATED, STAR

ROUNDS = 30


def until_round(site: Path, t: int, seconds: float = 120) -> None:
    """Wait until a site has recorded round t."""
    folder, until = RunFolder(site.with_suffix("")), time.monotonic() + seconds
    while time.monotonic() < until:
        if (folder.path / "rounds.jsonl").is_file() and len(folder.records()) >= t:
            return
        time.sleep(0.1)
    raise AssertionError(site.with_suffix(".log").read_text())


@pytest.mark.parametrize("name", FEDERATED)
def test_a_client_without_an_answer_names_server_round_and_remedy(name: str) -> None:
    program = METHODS[name](name=name, **OWN[name] | {"server": 0}).program(nodes(STAR)[1])
    round_ = program.round(7)
    next(round_)
    words = f"node 1 got no answer of node 0, the server of method '{name}', in round 7.* Start node 0 again"
    with pytest.raises(RatemeshError, match=words):
        round_.send({})


def test_a_server_goes_on_without_a_client() -> None:
    program = FedSimClr(name="fedsimclr").program(nodes(STAR)[0])
    round_ = program.round(1)
    assert next(round_).recv == {1, 2}
    answer = round_.send({}).send[2]
    assert torch.equal(answer["projector.0.weight"], program.model.projector[0].weight)
    with pytest.raises(StopIteration):
        round_.send({})


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_sites_end_when_the_server_is_killed_and_finish_once_it_is_back(tmp_path: Path) -> None:
    settings = {"rounds": ROUNDS, "graph": {"name": "star", "nodes": 3}, "method": "fedsimclr", "encoders": ["mlp"]}
    files = write_sites(Plan(make_config({**TINY, **settings})), tmp_path, deadline=3.0)
    sites = {file: start_site(file) for file in files}
    try:
        until_round(files[1], 3)
        sites[files[0]].kill()
        sites[files[0]].wait()
        for file in files[1:]:
            assert sites[file].wait(100) != 0
            said = re.sub(r"\s+", " ", file.with_suffix(".log").read_text())
            assert re.search(r"no answer of node 0, the server of method 'fedsimclr', in round \d+", said), said
            assert "KeyError" not in said
        assert len(RunFolder(files[1].with_suffix("")).records()) < ROUNDS
        sites = {file: start_site(file) for file in files}
        for file, site in sites.items():
            assert site.wait(200) == 0, file.with_suffix(".log").read_text()
    finally:
        stop(list(sites.values()))
    assert {RunFolder(file.with_suffix("")).records()[-1]["round"] for file in files} == {ROUNDS}
