"""A Ray cluster to run on: one that is there, or one of this machine alone for as long as it is needed."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import ray

from ratemesh.errors import InputError, RatemeshError
from ratemesh.threads import cores


@contextmanager
def joined(address: str, cpus: int) -> Iterator[None]:
    """Connect to a cluster, unless this process has done so already; on the way out, end what was started here.

    Args:
        address: 'host:port' or 'auto'; empty starts a cluster.
        cpus: that a cluster of this machine says it has, at least: all nodes share what there is.
    """
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
            _connect(address, settings)
        yield


def _connect(address: str, settings: Mapping[str, Any]) -> None:
    try:
        ray.init(address or "local", **settings)
    except Exception as error:  # Ray raises bare ones, too
        if not address:
            raise RatemeshError(f"Ray does not start on this machine: {gist(error)}") from None
        raise InputError(
            f"engine.address must be a Ray cluster that answers; got '{address}' ({gist(error)}). "
            "Start one with `ray start --head`, or leave engine.address empty."
        ) from None


def check_size(nodes: int, each: Mapping[str, float]) -> None:
    """Refuse what can never be placed; what is only busy now is waited for.

    Args:
        each: resources that every node takes, by Ray's names: CPU, GPU.
    """
    there = ray.cluster_resources()
    for kind, amount in each.items():
        if nodes * amount > there.get(kind, 0):
            raise InputError(
                f"engine.num_{kind.lower()}s must leave room for all nodes; {nodes} nodes with {amount:g} each need "
                f"{nodes * amount:g}, the Ray cluster has {there.get(kind, 0):g}. Lower it (fractions are fine), or "
                "add machines."
            )


def free() -> str:
    """Say which resources the cluster has left."""
    left = ray.available_resources()
    return f"{left.get('CPU', 0):g} CPUs and {left.get('GPU', 0):g} GPUs"


def gist(error: Exception) -> str:
    """Return the first and the last line of Ray's words, which are many: what it is, and why."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " … ".join(dict.fromkeys([lines[0], lines[-1].strip()]))
