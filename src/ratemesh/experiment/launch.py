"""Commands of ours in processes of their own, and a whole mesh of sites on this machine, a `ratemesh node` each."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ratemesh.engines.inprocess import InProcess
from ratemesh.engines.protocol import Site
from ratemesh.engines.workers import child_environment, end
from ratemesh.engines.zenoh_engine import free_addresses, mesh_links
from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import Config
from ratemesh.experiment.outcome import finish, keep_initial, network
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder, round_record
from ratemesh.experiment.storage import write_json

STOP_SECONDS = 10.0


def launch(config: Config, out: Path, *, insecure: bool = False) -> dict[str, Any]:
    """Start every node as a site of its own, wait for all, and judge what they learned together."""
    config.stopping.refuse_apart()
    plan = Plan(config)
    plan.check()
    folder = RunFolder.create(out, config)
    write_json(folder.network, network(plan))
    files = write_sites(plan, out, insecure=insecure)
    run_sites(files)
    return judge_sites(plan, folder, [file.with_suffix("") for file in files])


def write_sites(
    plan: Plan,
    out: Path,
    *,
    insecure: bool = False,
    addresses: Sequence[str] = (),
    line: Callable[[int, int, str], str] = lambda caller, callee, address: address,  # noqa: ARG005
    **own: Any,
) -> list[Path]:
    """Write certificates and one TOML file a site; return the files.

    Args:
        addresses: where each site listens, host:port; default free ports of the loopback interface.
        line: given caller, callee and the callee's address, returns the address to call it at.
        own: further settings of every [site].
    """
    links = mesh_links(addresses or free_addresses(plan.topology.nodes), None if insecure else out / "certs")
    names = links[0].names
    (out / "run.toml").write_text(plan.config.to_toml(), encoding="utf-8")
    files = []
    for i, (name, link) in enumerate(zip(names, links, strict=True)):
        calls = [line(i, j, address) for j, address in enumerate(link.connect)]
        site = {"name": name, "out": name, "listen": list(link.listen), "connect": calls, **own}
        table: dict[str, Any] = {"run": "launch", "config": "run.toml", "insecure": insecure, "site": site}
        table["peers"] = {other: j for j, other in enumerate(names)}
        if link.tls:
            table["tls"] = {"ca": "certs/ca.pem", "certificate": f"certs/{name}.pem", "key": f"certs/{name}.key"}
        files.append(out / f"{name}.toml")
        files[-1].write_text(tomli_w.dumps(table), encoding="utf-8")
    return files


def start_site(file: Path, wrapper: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start `ratemesh node`; what it says goes to NAME.log beside its file, `wrapper` as in `start`."""
    return start(["node", "--config", str(file)], file.with_suffix(".log"), wrapper)


def run_sites(files: Sequence[Path]) -> None:
    """Run all sites to their end; if one fails, say which and what it said last."""
    sites = {file: start_site(file) for file in files}
    try:
        failed = [file for file, site in sites.items() if site.wait() != 0]
    finally:
        stop(list(sites.values()))
    if failed:
        raise RatemeshError(
            f"site '{failed[0].stem}' ended with an error: {last_words(failed[0].with_suffix('.log'))}\n"
            f"Go on with it by: ratemesh node --config {failed[0]}"
        )


def judge_sites(plan: Plan, folder: RunFolder, sites: Sequence[Path]) -> dict[str, Any]:
    """Put the sites' records and last states together in one run folder, and judge them as any run."""
    config = plan.config
    states = folder.states(config.rounds)
    states.mkdir(parents=True, exist_ok=True)
    for i, site in enumerate(sites):
        shutil.copy(RunFolder(site).states(config.rounds) / f"node-{i:04d}.safetensors", states)
    by_site = [{record["round"]: record for record in RunFolder(site).records()} for site in sites]
    for t in range(1, config.rounds + 1):
        there = [records[t] for records in by_site if t in records]
        skipped = dict.fromkeys(there[0]["nodes"][0] if there else (), math.nan)
        nodes = [records[t]["nodes"][0] if t in records else skipped for records in by_site]
        sent = {key: sum(record[key] for record in there) for key in ("bytes", "wire_bytes")}
        folder.append(folder.rounds, round_record(t, nodes, sent))
    with InProcess(name="inprocess", workers=1).open(plan, plan.topology.nodes) as engine:
        keep_initial(engine, plan, folder)  # sites begin from these very states
        engine.ask(Site.load, str(states))
        return finish(engine, plan, folder)


def start(words: Sequence[str], log: Path, wrapper: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start `ratemesh WORDS` on one thread; what it says is added to `log`.

    Args:
        wrapper: a command to start it with, such as `nice` or `ip netns exec NAME`.
    """
    environment = {**os.environ, **child_environment(1)}
    command = [*wrapper, sys.executable, "-m", "ratemesh", *words]
    with log.open("a") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True, env=environment)


def stop(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """End what still runs."""
    for process in processes:
        process.terminate()
    for process in processes:
        end(process, STOP_SECONDS)


def last_words(log: Path) -> str:
    """Return the last line of what a process said."""
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return said[-1] if said else "it said nothing"
