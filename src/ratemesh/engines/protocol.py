"""What the run layer asks of an engine, and what an engine asks of what it hosts."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Protocol

from ratemesh.engines.rounds import Played
from ratemesh.messages.formats import Payload
from ratemesh.specs import NamedSpec
from ratemesh.training.protocol import Round

Arguments = ParamSpec("Arguments")
Split = Literal["train", "validation", "test"]


class Site(Protocol):
    """One node as an engine hosts it: a program with its data, wherever that is.

    What a run calls between rounds, from `save` on, must cross to another process: the arguments are what JSON can
    hold, the answer is named tensors. Messages and answers are on the CPU, wherever the node computes.
    """

    def round(self, t: int) -> Round:
        """Play round t."""

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a message as the program reads it, once for each; raise RatemeshError if it cannot be used."""

    def save(self, folder: str) -> Payload:
        """Write the state into a folder: a site that is made anew and loads it goes on to the bit."""

    def load(self, folder: str) -> Payload:
        """Go on from the state that `save` wrote into a folder."""

    def features(self, split: Split, most: int | None = None, *, by_class: bool = False) -> Payload:
        """Return features `Z` (m, d) and labels `y` (m,), and `fine` (m,) where the data have finer labels.

        Args:
            split: the node's own training samples, or those held out: of training at all nodes, or for the test.
            most: how many samples at most, evenly spaced; None takes all.
            by_class: whether these are spaced evenly in every class, not in their order.
        """

    def stats(self) -> Payload:
        """Return the class statistics as `ClassStats.tensors` does, and `sample_passes` so far."""

    def weights(self) -> Payload:
        """Return the encoder's weights, buffers and gauge by name, on the CPU."""

    def cpu_seconds(self) -> Payload:
        """Return `seconds`: the processor's time that the node's rounds have taken since it was made."""


@dataclass(frozen=True)
class Call:
    """A method of a site with its arguments, as engines carry it to where the site is."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, site: Site) -> Payload:
        """Call the method."""
        answer: Payload = getattr(site, self.method)(*self.arguments, **self.options)
        return answer


class SiteFactory(ABC):
    """Makes the sites of a run; in another process it is made again from its recipe."""

    @abstractmethod
    def site(self, index: int) -> Site:
        """Make the site of node `index`."""

    @abstractmethod
    def to_json(self) -> str:
        """Return all that `from_json` needs to make this factory again."""

    @classmethod
    @abstractmethod
    def from_json(cls, text: str) -> "SiteFactory":
        """Make the factory that wrote this text."""

    def recipe(self) -> list[str]:
        """Return what makes this factory again in any process: where its class is, and its own words."""
        return [type(self).__module__, type(self).__qualname__, self.to_json()]

    @staticmethod
    def from_recipe(recipe: Sequence[str]) -> "SiteFactory":
        """Make a factory again."""
        module, name, text = recipe
        found: type[SiteFactory] = getattr(importlib.import_module(module), name)
        return found.from_json(text)


class Engine(ABC):
    """Hosts N sites and moves their messages."""

    @abstractmethod
    def play(self, t: int) -> Played:
        """Play round t on every node."""

    @abstractmethod
    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; return the answers in node order."""

    def ask(
        self,
        method: Callable[Concatenate[Any, Arguments], Payload],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> list[Payload]:
        """Call a method of every site, named as in `ask(Site.features, "test")`; return the answers in node order."""
        return self.carry(Call(method.__name__, arguments, options))


class EngineSpec(NamedSpec):
    """Settings of an engine."""

    kind: ClassVar[str] = "engine"
    placement: ClassVar[frozenset[str]] = frozenset()
    """Settings that only say where nodes run: they change no number, and a run may be resumed with others."""

    elsewhere: ClassVar[bool] = False
    """Whether nodes may run on other machines, whose devices this one cannot see."""

    @abstractmethod
    def open(self, factory: SiteFactory, nodes: int) -> AbstractContextManager[Engine]:
        """Return a context in which the sites exist."""
