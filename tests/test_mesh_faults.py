"""Real sites broken in real ways: every node is a `ratemesh node` of its own. Run by `make test-faults`."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks.faults import DEADLINE, Sites, bench_plan, intruder

from ratemesh.experiment.launch import judge_sites, start_site, stop, write_sites
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

ROUNDS = 80
"""A killed site must find the others still at work when it comes back, and starting takes it ten seconds."""
ONE_POINT = 0.01


def allowed(*command: str) -> bool:
    """Whether this user may do it here."""
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The mesh that `python -m benchmarks.faults` breaks, long enough to be broken in the middle."""
    return bench_plan(ROUNDS)


@pytest.fixture
def mesh(plan: Plan, tmp_path: Path) -> Iterator[Sites]:
    """Start all sites; end what is left of them."""
    files = write_sites(plan, tmp_path, deadline=DEADLINE, start=120.0, staleness=2)
    sites = {file: start_site(file) for file in files}
    yield sites
    stop(list(sites.values()))


@pytest.fixture(scope="module")
def undisturbed(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return the fused accuracy of the same mesh when nothing happens to it."""
    out = tmp_path_factory.mktemp("undisturbed")
    sites = {file: start_site(file) for file in write_sites(plan, out)}
    finished(sites)
    records = [record for file in sites for record in RunFolder(file.with_suffix("")).records()]
    assert not any(record["outside_theorem"] for record in records)
    return judged(plan, out, list(sites))


def finished(sites: Sites) -> None:
    """Wait for all sites, and show the log of one that failed."""
    for file, site in sites.items():
        assert site.wait(600) == 0, file.with_suffix(".log").read_text()


def judged(plan: Plan, out: Path, files: Sequence[Path]) -> float:
    accuracy: float = judge_sites(plan, RunFolder(out), [file.with_suffix("") for file in files])["acc_energy"]
    return accuracy


def rounds_of(file: Path) -> list[int]:
    return [record["round"] for record in RunFolder(file.with_suffix("")).records()]


def until_round(file: Path, t: int) -> None:
    """Wait until a site has recorded round t."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if (done := rounds_of(file)) and done[-1] >= t:
            return
        time.sleep(0.05)
    raise AssertionError(f"{file.stem} never came to round {t}: {file.with_suffix('.log').read_text()}")


def summary(file: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((file.with_suffix("") / "summary.json").read_text())
    return found


def test_a_killed_site_comes_back_and_nothing_it_recorded_is_lost(
    plan: Plan, mesh: Sites, undisturbed: float, tmp_path: Path
) -> None:
    draw = random.Random(int(os.environ.get("RATEMESH_FAULT_SEED", "6")))
    victim, moment = draw.choice(list(mesh)), draw.randint(3, ROUNDS // 4)
    until_round(victim, moment)
    mesh[victim].send_signal(signal.SIGKILL)
    mesh[victim].wait()
    before = RunFolder(victim.with_suffix("")).records()
    other = next(file for file in mesh if file != victim)
    until_round(other, before[-1]["round"] + 2)  # the others go on without it
    mesh[victim] = start_site(victim)
    finished(mesh)
    after = RunFolder(victim.with_suffix("")).records()
    assert after[: len(before)] == before
    assert after[-1]["round"] == ROUNDS
    assert summary(other)["outside_theorem"] > 0
    assert [file.stem for file in mesh if file != victim and rounds_of(file) != list(range(1, ROUNDS + 1))] == []
    assert judged(plan, tmp_path, list(mesh)) == pytest.approx(undisturbed, abs=ONE_POINT)


def test_a_site_that_stops_breathing_is_done_without_and_catches_up(
    plan: Plan, mesh: Sites, undisturbed: float, tmp_path: Path
) -> None:
    victim, other, *_ = mesh
    until_round(victim, 4)
    mesh[victim].send_signal(signal.SIGSTOP)
    stopped_in = rounds_of(victim)[-1]
    until_round(other, stopped_in + 3)
    mesh[victim].send_signal(signal.SIGCONT)
    finished(mesh)
    assert rounds_of(victim)[-1] == ROUNDS
    assert judged(plan, tmp_path, list(mesh)) == pytest.approx(undisturbed, abs=ONE_POINT)


@pytest.mark.skipif(not allowed("unshare", "--mount", "true"), reason="mounting needs root")
def test_a_full_disk_ends_a_site_with_words_and_it_goes_on_later(mesh: Sites) -> None:
    """The victim's run folder becomes a file system of its own that is full; then it is given room again."""
    victim, other, *_ = mesh
    until_round(victim, 3)
    mesh[victim].send_signal(signal.SIGKILL)
    mesh[victim].wait()
    folder = victim.with_suffix("")
    kept = folder.with_name("kept")
    shutil.move(folder, kept)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        filling = folder / "filling"
        with pytest.raises(OSError, match="No space left"):  # noqa: SIM117
            with filling.open("wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        before = rounds_of(victim)
        again = start_site(victim)
        assert again.wait(300) == 1
        assert "No space left" in victim.with_suffix(".log").read_text()
        assert rounds_of(victim) == before
        filling.unlink()
        mesh[victim] = start_site(victim)
        finished(mesh)
        assert rounds_of(victim)[: len(before)] == before
        assert rounds_of(victim)[-1] == rounds_of(other)[-1] == ROUNDS
    finally:
        stop([mesh[victim]])
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not allowed("unshare", "--time", "true"), reason="a clock of its own needs root")
def test_clocks_may_disagree(plan: Plan, tmp_path: Path, undisturbed: float) -> None:
    """One site's monotonic clock is a day ahead: no message carries a time, so nothing changes at all."""
    files = write_sites(plan, tmp_path)
    sites = {file: start_site(file) for file in files[1:]}
    ahead = ["unshare", "--time", "--fork", "--monotonic", "86400", "--boottime", "86400"]
    sites[files[0]] = start_site(files[0], ahead)
    finished(sites)
    assert not any(summary(file)["outside_theorem"] for file in files)
    assert judged(plan, tmp_path, files) == undisturbed


def test_the_same_name_twice(tmp_path: Path) -> None:
    """A second process under a name that is in use ends with words, and disturbs nobody."""
    endless = bench_plan(5000)  # the mesh must outlive the second one's start
    files = write_sites(endless, tmp_path, deadline=DEADLINE, start=120.0)
    mesh = {file: start_site(file) for file in files}
    try:
        victim, other, *_ = files
        until_round(other, 2)
        assert intruder(files, victim, "double").wait(300) == 2
        assert "another process runs under this name" in (tmp_path / "double.log").read_text()
        until_round(other, rounds_of(other)[-1] + 5)
        assert [file.stem for file, site in mesh.items() if site.poll() is not None] == []
        records = [record for file in files for record in RunFolder(file.with_suffix("")).records()]
        assert not any(record["outside_theorem"] for record in records)
    finally:
        stop(list(mesh.values()))
