"""Small scripted sites that tests host in real engines and real worker processes."""

import json
import os
import signal
from collections.abc import Callable

import torch

from ratemesh.engines.protocol import SiteFactory
from ratemesh.errors import InputError, NonFiniteError
from ratemesh.methods.protocol import Exchange, Payload, Round


class Toy:
    """A node on a ring of N that does what its script says."""

    def __init__(self, script: str, nodes: int, index: int) -> None:
        self.nodes, self.index = nodes, index
        self.value = torch.tensor([float(index)], dtype=torch.float64)
        self.play: Callable[[int], Round] = getattr(self, script)

    def round(self, t: int) -> Round:
        return self.play(t)

    def check(self, tag: str, sender: int, payload: Payload) -> None:
        """Take anything."""

    def do(self, what: str, argument: str) -> Payload:
        return {
            "value": self.value,
            "threads": torch.tensor(torch.get_num_threads()),
            what: torch.tensor(int(argument)),
        }

    def gossip(self, t: int) -> Round:
        """Two exchanges a round, floating-point sums whose order matters."""
        others = frozenset(range(self.nodes)) - {self.index}
        for step in range(2):
            message = {"x": self.value * 1.1, "step": torch.tensor(step)}
            inbox = yield Exchange("gossip", dict.fromkeys(others, message), others)
            assert list(inbox) == sorted(others)
            assert all(int(payload["step"]) == step for payload in inbox.values())
            for payload in inbox.values():
                self.value = self.value / 3 + payload["x"]
        return {"value": float(self.value), "t": float(t)}

    def tally(self, t: int) -> Round:
        """Say how many were heard; works with any of them missing."""
        others = frozenset(range(self.nodes)) - {self.index}
        inbox = yield Exchange("tally", {j: {"x": self.value} for j in others}, others)
        return {"heard": float(len(inbox))}

    def chain(self, t: int) -> Round:
        """Node i waits for i-1 before it sends to i+1: sequential updates inside a round."""
        i, last = self.index, self.nodes - 1
        if i > 0:
            inbox = yield Exchange("turn", {}, frozenset({i - 1}))
            self.value = inbox[i - 1]["x"] + 1
        if i < last:
            yield Exchange("turn", {i + 1: {"x": self.value}}, frozenset())
        return {"value": float(self.value)}

    def silent(self, t: int) -> Round:
        """Node 1 waits for a message that nobody sends."""
        yield Exchange("never", {}, frozenset({0}) if self.index == 1 else frozenset())
        return {"value": 0.0}

    def stranger(self, t: int) -> Round:
        yield Exchange("lost", {self.nodes + 3: {"x": self.value}}, frozenset())
        return {"value": 0.0}

    def unlucky(self, t: int) -> Round:
        yield Exchange("ok", {}, frozenset())
        if self.index == 1:
            raise NonFiniteError("loss of node 1 is no number")
        return {"value": 0.0}

    def wrong(self, t: int) -> Round:
        yield Exchange("ok", {}, frozenset())
        raise InputError("argument must be right")

    def buggy(self, t: int) -> Round:
        yield Exchange("ok", {}, frozenset())
        raise ZeroDivisionError("a bug")

    def doomed(self, t: int) -> Round:
        yield Exchange("ok", {}, frozenset())
        if self.index == 1 and t == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": 0.0}


def make(argument: str, index: int) -> Toy:
    given = json.loads(argument)
    return Toy(given["script"], given["nodes"], index)


def factory(script: str, nodes: int) -> SiteFactory:
    return SiteFactory("toy_sites:make", json.dumps({"script": script, "nodes": nodes}))
