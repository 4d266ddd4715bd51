"""Ray for tests: in a network of its own, and one set of actors for many tests, because both take long to start."""

import atexit
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ratemesh.engines.protocol import Engine, EngineSpec, SiteFactory
from ratemesh.engines.ray import Ray
from toy_sites import Switch, Switches

NODES = 4
ALONE = os.environ.get("RATEMESH_TEST_ALONE") == "1"
"""Whether this process sees no network but loopback."""

HERE = Path(__file__).parent


def alone(*words: object, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run python with these words where there is nothing but loopback: Ray listens on every interface it finds."""
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "RATEMESH_TEST_ALONE": "1", "OMP_NUM_THREADS": "1"}
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a network namespace (unshare -n)")
    command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=HERE, env=environment, timeout=timeout, check=False
    )


@functools.lru_cache
def _engine() -> Engine:
    stack = ExitStack()
    opened = stack.enter_context(Ray(name="ray").open(Switches("", NODES), NODES))
    atexit.register(stack.close)
    return opened


class SharedRay(EngineSpec):
    """A real Ray engine of NODES actors that stays open and is lent to one run after the other."""

    name: str = "toy_engines:SharedRay"

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator[Engine]:
        assert nodes == NODES
        engine = _engine()
        engine.ask(Switch.become, factory.recipe())
        yield engine
