"""The card of a saved mesh: all of it that is no tensor."""

from typing import Any, Literal

from pydantic import Field

from ratemesh.core.subspace import SubspaceRule
from ratemesh.specs import Spec

Fusion = Literal["energy", "average", "gaussian"]


class NodeCard(Spec):
    """What is known of a node beside its tensors."""

    name: str
    encoder: dict[str, Any]
    recipe: dict[str, Any] | None = None
    parameters: int = Field(ge=0)
    samples: int = Field(ge=0)


class Card(Spec):
    """All of a saved mesh that is no tensor."""

    version: str
    created: str
    d: int = Field(ge=1)
    classes: tuple[str, ...] = Field(min_length=1)
    numbers: bool = Field(description="whether the classes are whole numbers, not words")
    intake: dict[str, Any]
    energy: float
    rank: int | None = None
    fusion: Fusion = Field("energy", description="how all nodes judge together; by validation where there is any")
    alone: Literal["energy", "gaussian"] = Field("energy", description="the same for one node")
    nodes: tuple[NodeCard, ...] = Field(min_length=1)
    edges: tuple[tuple[int, int], ...] = ()
    method: str = ""
    metrics: dict[str, Any] = Field(default_factory=dict)

    @property
    def rule(self) -> SubspaceRule:
        """How many directions a class's subspace has."""
        return SubspaceRule(self.energy, self.rank)
