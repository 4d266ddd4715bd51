"""What test_ray_faults.py plays in a network of its own: `python toy_ray.py SCENARIO FOLDER` prints what happened."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratemesh.engines.ray import QUIET, Ray
from ratemesh.errors import RatemeshError
from ratemesh.experiment.experiment import run
from test_experiment import TINY
from toy_sites import Toys

LONG: dict[str, Any] = {**TINY, "rounds": 8, "local": {"epochs": 10, "batch_size": 8}}
CONFIG = "config.toml"


def neighbours(title: str = "") -> list[int]:
    """Other processes of this network namespace whose command begins with the title."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            here = (folder / "ns/net").readlink() == Path("/proc/self/ns/net").readlink()
            command = (folder / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        if here and command.startswith(title) and command and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def strike(draw: random.Random) -> None:
    if actors := sorted(neighbours("ray::NodeActor")):
        os.kill(draw.choice(actors), signal.SIGKILL)


def killed_actors(folder: Path) -> None:
    """Kill a random node three times: between two rounds, and twice at a random moment."""
    draw = random.Random(0)

    def progress(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            strike(draw)
        if record["round"] in (3, 5):
            threading.Timer(draw.random() * 0.2, strike, [draw]).start()

    run({**LONG, "engine": {"name": "ray"}}, folder / "run", progress=progress)


def killed_sender(folder: Path) -> None:
    with Ray(name="ray").open(Toys("frail", 3, folder), 3) as engine:
        print(json.dumps([engine.play(t).logs for t in (1, 2, 3)]))


def doomed(folder: Path) -> None:
    with Ray(name="ray", restarts=1).open(Toys("doomed", 2), 2) as engine:
        engine.play(1)
        try:
            engine.play(2)
        except RatemeshError as error:
            print(error)


def killed_machine(folder: Path) -> None:
    """Two machines, both with nodes; all processes of the second are killed in round 3."""
    os.environ.update(QUIET)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    second = cluster.add_node(num_cpus=2)
    kill = threading.Timer(0.1, cluster.remove_node, [second, False])

    def progress(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            print("there:", actors_on(second.node_id))
            kill.start()

    engine = {"name": "ray", "address": cluster.address, "num_cpus": 0.5}
    run({**LONG, "rounds": 60, "engine": engine}, folder / "run", progress=progress)
    kill.join()
    cluster.shutdown()


def actors_on(machine: str) -> int:
    """How many actors Ray has on a machine."""
    from ray._private.state import actors  # the public way to ask needs Ray's dashboard

    return sum(actor["State"] == "ALIVE" and actor["Address"]["NodeID"] == machine for actor in actors().values())


def killed_driver(folder: Path) -> None:
    """Kill the command itself; nothing of it may be left, and `resume` goes on."""
    command = [sys.executable, "-m", "ratemesh"]
    (folder / CONFIG).write_text('data = "digits"\n')
    settings = [word for key, value in LONG.items() for word in ("--set", f"{key}={toml(value)}")]
    words = ["run", folder / CONFIG, *settings, "--set", 'engine={name="ray"}', "--out", folder / "run"]
    process = subprocess.Popen([*command, *map(str, words)])
    records = folder / "run" / "rounds.jsonl"
    while process.poll() is None and not (records.exists() and records.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    process.kill()
    process.wait()
    began = time.monotonic()
    while neighbours() and time.monotonic() < began + 240:  # Ray's agents first try to tell the dead head of it
        time.sleep(0.1)
    print(f"all gone after {time.monotonic() - began:.0f} s")
    print("left:", [(Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ") for pid in neighbours()])
    subprocess.run([*command, "resume", str(folder / "run")], check=True)


def toml(value: Any) -> str:
    """A value in one line of TOML, which is JSON but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


@contextmanager
def told() -> Iterator[None]:
    """Print warnings one a line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print("warning:", warning.message)


if __name__ == "__main__":
    with told():
        globals()[sys.argv[1]](Path(sys.argv[2]))
