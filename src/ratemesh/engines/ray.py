"""Engine `ray`: one actor per node on a Ray cluster, of one organisation or of this machine alone.

What Ray trusts: everybody who reaches the cluster's ports can run code on its machines, and what Ray moves by itself
(commands, logs, this module's dataclasses) it pickles. So a cluster is one organisation's, behind its own firewall.
Messages between nodes and answers to the run are safetensors bytes all the same, which Ray stores without pickling.
"""

import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ratemesh.engines.protocol import Engine, EngineSpec, SiteFactory
from ratemesh.errors import InputError, RatemeshError
from ratemesh.threads import cores

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's coming default; spares a warning
}


class Ray(EngineSpec):
    """One actor per node on a Ray cluster; killed actors and machines are replaced (extra 'ray')."""

    placement: ClassVar[frozenset[str]] = frozenset({"address", "num_cpus", "num_gpus", "restarts", "patience"})
    elsewhere: ClassVar[bool] = True
    address: str = Field("", description="cluster to join, 'host:port' or 'auto'; empty starts one on this machine")
    num_cpus: float = Field(1, ge=0, description="CPUs that Ray reserves for each node; fractions share one")
    num_gpus: float = Field(
        0, ge=0, description="GPUs that Ray reserves for each node, which device auto and cuda use; fractions share one"
    )
    threads: int = Field(1, ge=1, description="torch threads of each node; part of what makes runs repeat")
    restarts: int = Field(10, ge=0, description="losses of nodes or machines that are mended before the run ends")
    patience: float = Field(300, gt=0, description="seconds within which nodes must start, also after a loss")

    @field_validator("address")
    @classmethod
    def _joinable(cls, address: str) -> str:
        if "://" in address:
            raise InputError(
                f"engine.address must be 'host:port' or 'auto'; got '{address}'. Start the run on a machine of the "
                "cluster, or with `ray job submit`."
            )
        return address

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator[Engine]:
        """Join or start a cluster and start the actors; on the way out, end what was started here."""
        if importlib.util.find_spec("ray") is None:
            raise InputError("engine 'ray' needs Ray, which is not installed. Install it: pip install 'ratemesh[ray]'")
        os.environ.update({key: os.environ.get(key, value) for key, value in QUIET.items()})
        from ratemesh.engines.ray_engine import LOST, Actors, RayEngine

        with joined(self.address, ceil(nodes * self.num_cpus)), ExitStack() as stack:
            check_size(nodes, {"CPU": self.num_cpus, "GPU": self.num_gpus})
            options = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
            actors = Actors(factory, nodes, options, self.threads)
            stack.callback(actors.close)
            try:
                actors.build(range(nodes), self.patience)
            except LOST as error:
                raise RatemeshError(
                    "the nodes must be able to start; ratemesh must be installed alike on every machine of the Ray "
                    f"cluster. Ray says: {gist(error)}"
                ) from None
            yield RayEngine(actors, self.restarts, self.patience)


@contextmanager
def joined(address: str, cpus: int) -> Iterator[None]:
    """Connect to a cluster, unless this process has done so already; on the way out, end what was started here.

    Args:
        address: 'host:port' or 'auto'; empty starts a cluster.
        cpus: that a cluster of this machine says it has, at least: all nodes share what there is.
    """
    import ray

    with ExitStack() as stack:
        if not ray.is_initialized():
            settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
            if not address:
                # Ray keeps sockets there, and their paths must be short: not in TMPDIR
                root = tempfile.TemporaryDirectory(
                    prefix="ratemesh-ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp"), ignore_cleanup_errors=True
                )
                settings |= {"include_dashboard": False, "_temp_dir": stack.enter_context(root)}
                settings["num_cpus"] = max(cores(), cpus)
            stack.callback(ray.shutdown)
            try:
                ray.init(address or "local", **settings)
            except Exception as error:  # Ray raises bare ones, too
                if not address:
                    raise RatemeshError(f"Ray does not start on this machine: {gist(error)}") from None
                raise InputError(
                    f"engine.address must be a Ray cluster that answers; got '{address}' ({gist(error)}). "
                    "Start one with `ray start --head`, or leave engine.address empty."
                ) from None
        yield


def check_size(nodes: int, each: Mapping[str, float]) -> None:
    """Refuse what can never be placed; what is only busy now is waited for.

    Args:
        each: resources that every node takes, by Ray's names: CPU, GPU.
    """
    import ray

    there = ray.cluster_resources()
    for kind, amount in each.items():
        if nodes * amount > there.get(kind, 0):
            raise InputError(
                f"engine.num_{kind.lower()}s must leave room for all nodes; {nodes} nodes with {amount:g} each need "
                f"{nodes * amount:g}, the Ray cluster has {there.get(kind, 0):g}. Lower it (fractions are fine), or "
                "add machines."
            )


def gist(error: Exception) -> str:
    """Return the first and the last line of Ray's words, which are many: what it is, and why."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " … ".join(dict.fromkeys([lines[0], lines[-1].strip()]))
