"""Small scripted sites that tests host in real engines and real worker processes."""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ratemesh.engines.protocol import Site, SiteFactory
from ratemesh.errors import InputError, NonFiniteError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, Round


class Toy:
    """A node on a ring of N that does what its script says."""

    def __init__(self, script: str, nodes: int, index: int, folder: str = "") -> None:
        self.nodes, self.index, self.folder = nodes, index, Path(folder)
        self.value = torch.tensor([float(index)], dtype=torch.float64)
        self.play: Callable[[int], Round] = getattr(self, script)

    def round(self, t: int) -> Round:
        return self.play(t)

    def read(self, tag: str, sender: int, payload: Payload) -> Payload:
        """Take anything."""
        return payload

    def features(self, split: str, most: int | None = None) -> Payload:
        """Answer with what it was asked for."""
        return {"value": self.value, "threads": torch.tensor(torch.get_num_threads()), split: torch.tensor(most)}

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

    def frail(self, t: int) -> Round:
        """Node 0 dies once in round 2, after it has sent a large message and before node 1 can have read it."""
        if self.index == 0:
            yield Exchange("large", {1: {"x": self.value.repeat(100_000)}}, frozenset())
            if t == 2 and not (mark := self.folder / "died").exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.index == 1:
            inbox = yield Exchange("large", {}, frozenset({0}))
            inbox = {**inbox, **(yield Exchange("late", {}, frozenset({2})))}
            self.value = self.value / 3 + inbox[0]["x"].mean() + inbox[2]["x"]
        elif self.index == 2:
            time.sleep(0.2)
            yield Exchange("late", {1: {"x": self.value * 1.1}}, frozenset())
        return {"value": float(self.value), "t": float(t)}


class Toys(SiteFactory):
    """Makes toys that all do what one script says."""

    def __init__(self, script: str, nodes: int, folder: Path | str = "") -> None:
        self.words = (script, nodes, str(folder))

    def site(self, index: int) -> Toy:
        script, nodes, folder = self.words
        return Toy(script, nodes, index, folder)

    def to_json(self) -> str:
        return json.dumps(self.words)

    @classmethod
    def from_json(cls, text: str) -> "Toys":
        return cls(*json.loads(text))


class Switch:
    """Any site, changed by call: one engine, slow to start, serves many tests."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.site: Site

    def become(self, recipe: Sequence[str]) -> Payload:
        self.site = SiteFactory.from_recipe(recipe).site(self.index)
        return {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.site, name)


class Switches(Toys):
    """Makes sites that become others."""

    def site(self, index: int) -> Any:
        return Switch(index)
