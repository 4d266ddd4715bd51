"""What faults cost: the same small mesh of real sites, undisturbed and broken in real ways."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.launch import gather, start_site, stop, write_sites
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.site import Plan

DEADLINE = 3.0
"""Seconds of silence after which a site of this mesh counts as lost."""
MOST_SECONDS = 600.0

Sites = dict[Path, "subprocess.Popen[str]"]
Strike = Callable[[Sites, Path], None]
"""Breaks something of the mesh, the file names the victim."""


@dataclass(frozen=True)
class Cost:
    """What a mesh came to under a fault.

    Attributes:
        seconds: from the first start to the end of the last site.
        fused, average: accuracies of all sites together.
        outside: rounds, summed over sites, that lacked a fresh message and are outside the convergence theorem.
        skipped: rounds that the victim did not play.
    """

    fault: str
    seconds: float
    fused: float
    average: float
    outside: int
    skipped: int


def bench_plan(rounds: int) -> Plan:
    """Return four nodes on a complete graph and the embedded digits."""
    table: dict[str, Any] = {
        "rounds": rounds,
        "d": 32,
        "data": "digits",
        "graph": {"name": "complete", "nodes": 4},
        "encoders": [{"name": "mlp", "hidden": [64]}],
        "local": {"epochs": 8, "batch_size": 50},
        "method": {"name": "alg1", "coupling": {"start": 3}},
        "output": {"features": 0},
    }
    return Plan(make_config(table))


def _nothing(sites: Sites, victim: Path) -> None:
    """Leave the mesh alone."""


def _kill(sites: Sites, victim: Path) -> None:
    """Kill a site with SIGKILL and start it again when the others are two rounds further."""
    done = _last_round(victim)
    sites[victim].kill()
    sites[victim].wait()
    _wait_for(next(file for file in sites if file != victim), done + 2)
    sites[victim] = start_site(victim)


def _freeze(sites: Sites, victim: Path) -> None:
    """Stop a site with SIGSTOP for longer than the deadline."""
    sites[victim].send_signal(signal.SIGSTOP)
    time.sleep(2 * DEADLINE)
    sites[victim].send_signal(signal.SIGCONT)


def _kill_two(sites: Sites, victim: Path) -> None:
    """Kill two of four sites at once, start both again."""
    other = next(file for file in sites if file != victim)
    done = _last_round(victim)
    for file in (victim, other):
        sites[file].kill()
        sites[file].wait()
    _wait_for(next(file for file in sites if file not in (victim, other)), done + 2)
    for file in (victim, other):
        sites[file] = start_site(file)


FAULTS: dict[str, Strike] = {
    "none": _nothing,
    "kill -9 of a site, restarted two rounds later": _kill,
    "kill -9 of two of four, restarted two rounds later": _kill_two,
    "SIGSTOP for twice the deadline": _freeze,
}


def measure(fault: str, out: Path, rounds: int) -> Cost:
    """Run the mesh in the folder `out`, break it in its third round, and judge what it learned."""
    plan = bench_plan(rounds)
    folder = RunFolder.create(out, plan.config)
    files = write_sites(plan, out, deadline=DEADLINE, start=120.0, staleness=2)
    began = time.monotonic()
    sites = {file: start_site(file) for file in files}
    try:
        _wait_for(files[1], 3)
        FAULTS[fault](sites, files[1])
        for file, site in sites.items():
            if site.wait(MOST_SECONDS):
                raise RatemeshError(f"site '{file.stem}' ended with an error; see {file.with_suffix('.log')}.")
    finally:
        stop(list(sites.values()))
    seconds = time.monotonic() - began
    records = [RunFolder(file.with_suffix("")).records() for file in files]
    metrics = gather(plan, folder, [file.with_suffix("") for file in files])
    outside = int(sum(record["outside_theorem"] for site in records for record in site))
    skipped = int(sum(record["skipped"] for site in records for record in site))
    return Cost(fault, seconds, metrics["acc_energy"], metrics["acc_average"], outside, skipped)


def table(costs: Sequence[Cost]) -> list[str]:
    """Return the costs as a Markdown table; accuracies and times also against the mesh that nothing happened to."""
    calm = costs[0]
    head = [
        "| fault | time | against none | fused | averaged | rounds outside the theorem | skipped |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    return head + [
        f"| {cost.fault} | {cost.seconds:.0f} s | {cost.seconds / calm.seconds:.2f}× | {100 * cost.fused:.1f} % | "
        f"{100 * cost.average:.1f} % | {cost.outside} | {cost.skipped} |"
        for cost in costs
    ]


def _last_round(file: Path) -> int:
    folder = file.with_suffix("")
    records = RunFolder(folder).records() if (folder / "config.toml").is_file() else []
    return int(records[-1]["round"]) if records else 0


def _wait_for(file: Path, t: int) -> None:
    """Wait until a site has recorded round t."""
    until = time.monotonic() + MOST_SECONDS
    while _last_round(file) < t:
        if time.monotonic() > until:
            raise RatemeshError(f"site '{file.stem}' did not come to round {t}; see {file.with_suffix('.log')}.")
        time.sleep(0.05)
