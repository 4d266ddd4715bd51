"""Real sites on hosts of their own, joined by a network that the tests cut. Run by `make test-faults`, as root."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults import DEADLINE, Sites

from ratemesh.experiment.launch import start_site, stop, write_sites
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from test_mesh_faults import ONE_POINT, ROUNDS, finished, judged, plan, undisturbed, until_round
from toy_network import Hosts, hosts

__all__ = ["plan", "undisturbed"]

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="namespaces need root and iproute2"),
]


@pytest.fixture
def network() -> Iterator[Hosts]:
    with hosts(4) as made:
        yield made


@pytest.fixture
def mesh(plan: Plan, network: Hosts, tmp_path: Path) -> Iterator[Sites]:
    """One site a host; every one calls those before it."""
    addresses = [f"{network.address(i)}:7447" for i in range(network.count)]
    files = write_sites(plan, tmp_path, addresses=addresses, deadline=DEADLINE, start=120.0, staleness=2)
    sites = {file: start_site(file, network.run_in(i)) for i, file in enumerate(files)}
    yield sites
    stop(list(sites.values()))


def test_a_mesh_that_falls_apart_goes_on_in_parts_and_heals(
    plan: Plan, mesh: Sites, network: Hosts, undisturbed: float, tmp_path: Path
) -> None:
    first, *_, last = mesh
    until_round(first, 3)
    network.group({0, 1}, {2, 3})
    for file in (first, last):  # both parts go on
        until_round(file, RunFolder(file.with_suffix("")).records()[-1]["round"] + 3)
    network.group({0, 1, 2, 3})
    finished(mesh)
    for file in mesh:
        records = RunFolder(file.with_suffix("")).records()
        assert any(record["outside_theorem"] for record in records), "the cut must have been felt"
        assert records[-1]["round"] == ROUNDS
        assert not records[-1]["outside_theorem"], "in the end all must be together again"
    assert judged(plan, tmp_path, list(mesh)) == pytest.approx(undisturbed, abs=ONE_POINT)
