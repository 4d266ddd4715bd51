"""What faults cost: the same small mesh of real sites, undisturbed and broken in real ways."""

import argparse
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.lines import Lines
from ratemesh.engines.certs import init
from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.launch import judge_sites, start_site, stop, write_sites
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder

DEADLINE = 3.0
"""Seconds of silence after which a site of this mesh counts as lost."""
MOST_SECONDS = 600.0

Sites = dict[Path, "subprocess.Popen[str]"]
Strike = Callable[["Mesh"], None]
"""Breaks something of a mesh that runs."""


@dataclass
class Mesh:
    """Sites that run, the one that a fault strikes, and the lines between them."""

    sites: Sites
    victim: Path
    lines: Lines

    @property
    def others(self) -> list[Path]:
        """All sites but the victim."""
        return [file for file in self.sites if file != self.victim]


@dataclass(frozen=True)
class Fault:
    """What happens after the third round, and how bad the lines are all the time."""

    strike: Strike
    delay: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True)
class Damage:
    """What a mesh came to under a fault.

    Attributes:
        seconds: from the first start to the end of the last site.
        fused, average: accuracies of all sites together.
        outside: rounds, summed over sites, that lacked a fresh message and are outside the convergence theorem.
        skipped: rounds, summed over sites, that were not played.
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
        "preset": "plain",
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


def _nothing(mesh: Mesh) -> None:
    """Leave the mesh alone."""


def _kill(mesh: Mesh, *more: Path) -> None:
    """Kill sites with SIGKILL and start them again when the others are two rounds further."""
    struck = (mesh.victim, *more)
    done = _last_round(mesh.victim)
    for file in struck:
        mesh.sites[file].kill()
        mesh.sites[file].wait()
    _wait_for(next(file for file in mesh.others if file not in more), done + 2)
    for file in struck:
        mesh.sites[file] = start_site(file)


def _kill_two(mesh: Mesh) -> None:
    """Kill two of four sites at once, start both again."""
    _kill(mesh, mesh.others[0])


def _freeze(mesh: Mesh) -> None:
    """Stop a site with SIGSTOP for longer than the deadline."""
    mesh.sites[mesh.victim].send_signal(signal.SIGSTOP)
    time.sleep(2 * DEADLINE)
    mesh.sites[mesh.victim].send_signal(signal.SIGCONT)


def _cut(mesh: Mesh) -> None:
    """Cut the mesh in two until both parts have played four rounds by themselves."""
    files = list(mesh.sites)
    mesh.lines.cut({0, 1}, {2, 3})
    for file in (files[0], files[-1]):
        _wait_for(file, _last_round(file) + 4)
    mesh.lines.heal()


def _double(mesh: Mesh) -> None:
    """Start a second process under the victim's name; it must end by itself."""
    if intruder(mesh.sites, mesh.victim, "double").wait(MOST_SECONDS) == 0:
        raise RatemeshError(
            f"the second process under a name was let in, or the mesh was over before it began; see "
            f"'{mesh.victim.with_name('double.log')}'. Give more --rounds."
        )


def _stranger(mesh: Mesh) -> None:
    """Have a site with a certificate of another authority call for four rounds."""
    name, forged = mesh.victim.stem, mesh.victim.with_name("forged")
    init(forged, [name])
    files = {"ca": forged / "ca.pem", "certificate": forged / f"{name}.pem", "key": forged / f"{name}.key"}
    stranger = intruder(mesh.sites, mesh.victim, "stranger", tls={what: str(file) for what, file in files.items()})
    _wait_for(mesh.others[0], _last_round(mesh.others[0]) + 4)
    stop([stranger])


def intruder(sites: Iterable[Path], victim: Path, name: str, **changes: Any) -> "subprocess.Popen[str]":
    """Start one more site under the victim's name, with its file changed; it calls all other sites."""
    table = tomllib.loads(victim.read_text(encoding="utf-8"))
    others = [tomllib.loads(file.read_text(encoding="utf-8")) for file in sites if file != victim]
    calls = [address for other in others for address in other["site"]["listen"]]
    table["site"] |= {"out": name, "listen": ["127.0.0.1:0"], "connect": calls}
    file = victim.with_name(f"{name}.toml")
    file.write_text(tomli_w.dumps({**table, **changes}), encoding="utf-8")
    return start_site(file)


FAULTS: dict[str, Fault] = {
    "none": Fault(_nothing),
    "kill -9 of a site, restarted two rounds later": Fault(_kill),
    "kill -9 of two of four, restarted two rounds later": Fault(_kill_two),
    "SIGSTOP for twice the deadline": Fault(_freeze),
    "network cut in two for four rounds": Fault(_cut),
    "200 ms on all lines, a fifth of the packets lost and sent again": Fault(_nothing, delay=0.2, lost=0.2),
    "a second process under the same name": Fault(_double),
    "a stranger with a certificate of another authority": Fault(_stranger),
}


def measure(fault: str, out: Path, rounds: int) -> Damage:
    """Run the mesh in the folder `out`, break it after its third round, and judge what it learned."""
    plan, how = bench_plan(rounds), FAULTS[fault]
    folder, lines = RunFolder.create(out, plan.config), Lines(how.delay, how.lost)
    files = write_sites(plan, out, line=lines.line, deadline=DEADLINE, start=120.0, staleness=2)
    began = time.monotonic()
    mesh = Mesh({file: start_site(file) for file in files}, files[1], lines)
    try:
        _wait_for(mesh.victim, 3)
        how.strike(mesh)
        for file, site in mesh.sites.items():
            if site.wait(MOST_SECONDS):
                raise RatemeshError(f"site '{file.stem}' ended with an error; see {file.with_suffix('.log')}.")
    finally:
        stop(list(mesh.sites.values()))
        lines.close()
    seconds = time.monotonic() - began
    records = [RunFolder(file.with_suffix("")).records() for file in files]
    metrics = judge_sites(plan, folder, [file.with_suffix("") for file in files])
    outside = int(sum(record["outside_theorem"] for site in records for record in site))
    skipped = int(sum(record["skipped"] for site in records for record in site))
    return Damage(fault, seconds, metrics["acc_energy"], metrics["acc_average"], outside, skipped)


def table(costs: Sequence[Damage]) -> list[str]:
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


def main() -> None:
    """Break a mesh of four real sites, one fault after the other, and print what each costs in time and accuracy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=80, help="of every mesh; a site takes some 25 to start")
    parser.add_argument("--out", type=Path, help="keep the sites' records and logs in this folder, new or empty")
    arguments = parser.parse_args()
    if arguments.rounds < 40:
        parser.error(f"--rounds must be at least 40; got {arguments.rounds}")
    costs = []
    with tempfile.TemporaryDirectory(prefix="ratemesh-faults-") as scratch:
        folder = arguments.out or Path(scratch)
        for number, fault in enumerate(FAULTS):
            print(f"{number + 1} of {len(FAULTS)}: {fault}", flush=True)
            costs.append(measure(fault, folder / f"mesh-{number}", arguments.rounds))
    print("\n".join(table(costs)))


if __name__ == "__main__":
    main()
