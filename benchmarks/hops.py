"""How many functions one image and one message go through: `python -m benchmarks.hops`, by tracing real runs.

An image's hops are the named functions of the package that take or return something derived from the samples (by its
shape: samples, features, class statistics, at last the metrics) while a small experiment is run from its .npz file to
metrics.json. A message's hops are those that take or return it, in bytes or tensors, from a node's `Stream.pack` to
the first `dual_step` that uses its neighbour's, in one process and between two sites.
"""

import dataclasses
import importlib
import importlib.util
import json
import queue
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

import ratemesh

SAMPLE = (7, 5)
D = 11
CLASSES = 3
PACKED = D * (D + 1) // 2
LAST = {SAMPLE, (SAMPLE[0] * SAMPLE[1],), (D,), (PACKED,)}
"""Last dimensions by which arrays are recognised: no other array of the runs has them."""
LEAST_BYTES = 4 * CLASSES * PACKED
"""Bytes that hold a message have at least as many as its covariances in float32; a sign of life has fewer."""
DEPTH = 5
PACKAGE = str(Path(ratemesh.__file__).parent)

Function = tuple[str, str]
"""File and qualified name."""


def of_samples(value: object) -> bool:
    """Whether a value is derived from the samples."""
    if isinstance(value, torch.Tensor | np.ndarray):
        shape = tuple(value.shape)
        return len(shape) >= 2 and any(shape[-len(last) :] == last for last in LAST)
    return isinstance(value, Mapping) and "acc_average" in value


def of_message(value: object) -> bool:
    """Whether a value is a message or a part of it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) >= LEAST_BYTES
    return of_samples(value)


def holds(value: object, wanted: Callable[[object], bool], depth: int = DEPTH) -> bool:
    """Whether a value is wanted, or a collection or data class holds one that is."""
    if wanted(value):
        return True
    if depth == 0:
        return False
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value):
        parts = list(vars(value).values()) if hasattr(value, "__dict__") else []
    return any(holds(part, wanted, depth - 1) for part in parts)


def arguments(frame: FrameType) -> list[object]:
    """Return the arguments of a call that has just begun."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    return [frame.f_locals.get(name) for name in code.co_varnames[:count]]


@contextmanager
def traced(see: Callable[[CodeType, str, list[object]], None]) -> Iterator[None]:
    """Tell of every call of a named function of the package, "call" with arguments and "return" with the result."""

    def profile(frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            see(code, event, arguments(frame) if event == "call" else [result])

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def named(code: CodeType) -> Function:
    """Return what tells a function from others."""
    return code.co_filename, code.co_qualname


class Journey:
    """Functions that held the message, in every thread, since it last packed one and until it first used one.

    A thread that packs none serves one that does: all that it does with messages counts.
    """

    def __init__(self) -> None:
        self.seen: dict[str, set[Function]] = {}
        self.done: set[str] = set()

    def see(self, code: CodeType, event: str, values: list[object]) -> None:
        """Take note of a call."""
        thread = threading.current_thread().name
        if thread in self.done:
            return
        if event == "call" and code.co_name == "dual_step":
            self.done.add(thread)
        elif event == "call" and code.co_qualname == "Stream.pack":
            self.seen[thread] = {named(code)}
        elif any(holds(value, of_message) for value in values):
            self.seen.setdefault(thread, set()).add(named(code))


def trace_run(folder: Path) -> tuple[set[Function], set[Function]]:
    """Run an experiment of two nodes in one process; return the hops of an image and those of a message."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % CLASSES
    X = draw.integers(0, 50, (60, *SAMPLE)) + 60 * y[:, None, None]
    file = folder / "samples.npz"
    X, y = X.astype(np.uint8), y.astype(np.uint8)
    np.savez(file, x_train=X[:42], y_train=y[:42], x_test=X[42:], y_test=y[42:])
    image: set[Function] = set()
    journey = Journey()

    def see(code: CodeType, event: str, values: list[object]) -> None:
        if any(holds(value, of_samples) for value in values):
            image.add(named(code))
        journey.see(code, event, values)

    settings = {
        "preset": "plain",
        "rounds": 2,
        "d": D,
        "data": {"name": "npz", "path": str(file)},
        "graph": {"name": "complete", "nodes": 2},
        "encoders": [{"name": "mlp", "hidden": [16]}],
        "local": {"batch_size": 8},
        "engine": {"name": "inprocess", "workers": 1},
    }
    with warnings.catch_warnings(), traced(see):
        warnings.simplefilter("ignore")
        ratemesh.run(settings, folder / "run")
    return image, journey.seen[threading.current_thread().name]


class Wire:
    """A transport in memory: what is sent lies in the receivers' queues."""

    def __init__(self, me: int, queues: Mapping[int, "queue.Queue[Any]"]) -> None:
        self.me, self.queues = me, queues

    def send(self, receiver: int, data: bytes) -> None:
        """Put bytes into one queue, or into all others."""
        arrived = importlib.import_module("ratemesh.engines.peer").Arrived
        for node, others in self.queues.items():
            if node == receiver or (receiver not in self.queues and node != self.me):
                others.put(arrived(self.me, data))

    def receive(self, timeout: float) -> Any:
        """Return what arrived."""
        try:
            return self.queues[self.me].get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nothing to end."""


def program(index: int) -> Any:
    """Return Algorithm 1 of one of two nodes; modules are found where the measured version has them."""
    from ratemesh.encoders import ENCODERS
    from ratemesh.methods import METHODS

    room = "training" if importlib.util.find_spec("ratemesh.training") else "methods"
    make_node = importlib.import_module(f"ratemesh.{room}.protocol").Node
    local = importlib.import_module(f"ratemesh.{room}.local").LocalSpec
    y = torch.arange(30) % CLASSES
    node = make_node(
        index=index,
        neighbours=(1 - index,),
        X=torch.randn(30, *SAMPLE, generator=torch.Generator().manual_seed(index)),
        y=y,
        num_classes=CLASSES,
        share=0.5,
        encoder=ENCODERS["mlp"].model_validate({"name": "mlp", "hidden": [16]}).build(SAMPLE, D, 0, index),
        local=local(batch_size=8),
        seed=0,
        labels=((0, 1, 2),) * 2,
    )
    return METHODS["alg1"](name="alg1").program(node)


def trace_sites() -> set[Function]:
    """Play a round of two sites that reach each other through a transport; return the hops of a message."""
    from ratemesh.engines.mailbox import Rules
    from ratemesh.engines.peer import Peer

    queues: dict[int, queue.Queue[Any]] = {0: queue.Queue(), 1: queue.Queue()}
    journey = Journey()
    ended: list[int] = []

    def live(me: int) -> None:
        site = program(me)
        peer = Peer(me, 2, bytes(16), Rules(), lambda _: Wire(me, queues), strict=True)
        peer.join(1, 5.0)
        peer.play(site, 1)
        peer.leave(1, 5.0)
        peer.close()
        ended.append(me)

    with traced(journey.see):
        players = [threading.Thread(target=live, args=(me,), name=f"player {me}") for me in (0, 1)]
        for player in players:
            player.start()
        for player in players:
            player.join()
    if len(ended) < 2:
        raise RuntimeError("a site failed, so that its message's way is not known")
    return set().union(*(seen for thread, seen in journey.seen.items() if thread != "player 1"))


def measure() -> dict[str, list[Function]]:
    """Return the hops of an image, and of a message in one process and between sites."""
    with tempfile.TemporaryDirectory() as folder:
        image, inside = trace_run(Path(folder))
    found = {"image": image, "message in one process": inside, "message between sites": trace_sites()}
    return {what: sorted(functions) for what, functions in found.items()}


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
