"""What the run layer asks of an engine, and what an engine asks of what it hosts."""

import importlib
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ratemesh.engines.meter import Traffic
from ratemesh.messages.formats import Payload
from ratemesh.specs import NamedSpec
from ratemesh.training.protocol import Round, RoundLog


class Site(Protocol):
    """One node as an engine hosts it: a program with its data, wherever that is."""

    def round(self, t: int) -> Round:
        """Play round t."""

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a message as the program reads it, once for each; raise RatemeshError if it cannot be used."""

    def do(self, what: str, argument: str) -> Payload:
        """Carry out a named errand between rounds (save, load, features, …).

        `save` and `load` take a folder: what a site saved, one that is made anew loads, and goes on to the bit.
        """


@dataclass(frozen=True)
class SiteFactory:
    """How to make a site in any process: an importable function and a JSON argument.

    `function` is "module:name" of a callable (argument, index) -> Site.
    """

    function: str
    argument: str

    def build(self, index: int) -> Site:
        """Import the function and make the site of node `index`."""
        module, _, name = self.function.partition(":")
        make: Callable[[str, int], Site] = getattr(importlib.import_module(module), name)
        return make(self.argument, index)


@dataclass(frozen=True)
class Played:
    """A round as the engine saw it: every node's log, in node order, and what travelled."""

    logs: list[RoundLog]
    traffic: Traffic


class Engine(Protocol):
    """Hosts N sites and moves their messages."""

    def play(self, t: int) -> Played:
        """Play round t on every node."""

    def ask(self, what: str, argument: str = "") -> list[Payload]:
        """Have every site carry out an errand; return the answers in node order."""


class EngineSpec(NamedSpec):
    """Settings of an engine."""

    kind: ClassVar[str] = "engine"
    placement: ClassVar[frozenset[str]] = frozenset()
    """Settings that only say where nodes run: they change no number, and a run may be resumed with others."""

    @abstractmethod
    def open(self, factory: SiteFactory, nodes: int) -> AbstractContextManager[Engine]:
        """Return a context in which the sites exist."""
