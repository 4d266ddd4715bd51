"""What the engine adds to a round: the same nodes in worker processes and in Ray actors, rounds in turn."""

import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.tables import Table
from benchmarks.timing import Timing, interleave, milliseconds, ratio
from ratemesh.engines.protocol import Engine
from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan

NODES = 4
WORKERS = "inprocess, 2 workers"
ENGINES: dict[str, dict[str, Any]] = {WORKERS: {"name": "inprocess", "workers": 2}, "ray": {"name": "ray"}}
SAMPLES = {"messages and little else": 20, "one local epoch": 600}
"""Images a node: with 20 a round is mostly statistics and messages, as dear for an engine as rounds get."""


def run(*, quick: bool) -> list[Table]:
    """Return the table; Ray listens on what it finds, so all is measured where there is only loopback."""
    command = [sys.executable, "-m", "benchmarks.engines", "4" if quick else "40"]
    alone = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    done = subprocess.run(alone, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for work, seconds in found.items():
        timings = {name: Timing(tuple(values)) for name, values in seconds.items()}
        for name, timing in timings.items():
            more = (timing.quartile - timings[WORKERS].quartile) * 1e3
            cells = [*milliseconds(timing), f"{ratio(timing, timings[WORKERS]):.2f}×", f"{more:+.1f}"]
            rows.append([f"{name}: {work}", *cells])
    return [
        Table(
            "Engines",
            "What a round costs in Ray actors against worker processes behind pipes.",
            ("", "lower quartile, ms", "median, ms", f"against {WORKERS}", "more, ms"),
            rows,
            f"{NODES} nodes, complete graph, Algorithm 1, d = 128, K = 10, conv4 at width 0.25, 28×28 images, "
            "one local epoch in batches of 60, one thread a node; both engines open, rounds played in turn. "
            f"{NODES} actors on two cores do not wait for each other as the nodes of one worker do.",
        )
    ]


def _table(samples: int, engine: dict[str, Any]) -> dict[str, Any]:
    return {
        "preset": "plain",
        "rounds": 1000,
        "data": {"name": "benchmarks.images:Images", "train": NODES * samples},
        "graph": {"name": "complete", "nodes": NODES},
        "encoders": [{"name": "conv4", "width": 0.25}],
        "local": {"epochs": 1, "batch_size": 60},
        "method": {"name": "alg1", "coupling": {"schedule": "constant"}, "warm_start": {"epochs": 0}},
        "engine": engine,
    }


def _measure(repeats: int) -> dict[str, dict[str, list[float]]]:
    """Return seconds of rounds by workload and engine."""
    found: dict[str, dict[str, list[float]]] = {}
    for work, samples in SAMPLES.items():
        with ExitStack() as stack:
            rounds: dict[str, Callable[[], object]] = {}
            for name, settings in ENGINES.items():
                config = make_config(_table(samples, settings))
                rounds[name] = _rounds(stack.enter_context(config.engine.open(Plan(config), NODES)))
            timings = interleave(rounds, repeats)
            found[work] = {name: list(timing.seconds) for name, timing in timings.items()}
    return found


def _rounds(engine: Engine) -> Callable[[], object]:
    count = itertools.count(1)
    return lambda: engine.play(next(count))


if __name__ == "__main__":
    warnings.simplefilter("ignore", RatemeshWarning)
    print(json.dumps(_measure(int(sys.argv[1]))))
