"""Gauge alignment (ours): feature spaces are turned towards the neighbours', also where only some labels are shared."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from ratemesh.core.gauge import align
from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.messages.statistics import NO_FRAME, StatsMessage
from ratemesh.specs import Spec


class GaugeSpec(Spec):
    """Gauge alignment (see `core.gauge`)."""

    enabled: bool = Field(True, description="turn feature spaces towards the neighbours' after every round")
    means: float = Field(1.0, ge=0, description="weight of class means in the alignment; 0 leaves them out")
    sketch: float = Field(
        10.0, ge=0, description="weight of sketch moments relative to that of second moments; 0: none are sent"
    )
    iterations: int = Field(5, ge=1, description="most steps of one alignment")

    @property
    def uses_means(self) -> bool:
        """Whether class means travel."""
        return self.enabled and self.means > 0

    @property
    def uses_sketch(self) -> bool:
        """Whether sketch moments travel."""
        return self.enabled and self.sketch > 0

    def label(self) -> str:
        """Name the switch if it is on, and what it goes by."""
        if not self.enabled:
            return ""
        by = [*(["class means"] if self.means else []), *(["sketch"] if self.sketch else [])]
        return " with ".join(["gauge", *([" and ".join(by)] if by else [])])


class Gauge:
    """A node's gauge: the frame spreads from the root, one hop a round, then all keep in step.

    A node without a frame aligns to the neighbours nearest to the root and counts one hop more; so
    does a node that joins late. With a frame it aligns to all neighbours that have one, and to itself: all turn at the
    same time, and on a graph of two colours (a star, a tree, an even ring) they would swap frames without end.
    """

    def __init__(self, spec: GaugeSpec, *, root: bool) -> None:
        self.spec = spec
        self.hops = 0 if root else NO_FRAME

    def turn(self, encoder: Encoder, stats: ClassStats, peers: Sequence[StatsMessage]) -> ClassStats:
        """Turn the encoder towards the peers; return the statistics as they are after the turn."""
        framed = [peer for peer in peers if peer.hops != NO_FRAME]
        if not (self.spec.enabled and framed):
            return stats
        new = self.hops == NO_FRAME
        if new:
            nearest = min(peer.hops for peer in framed)
            framed = [peer for peer in framed if peer.hops == nearest]
            self.hops = nearest + 1
        else:
            framed.append(StatsMessage(stats, self.hops))
        target = ClassStats.sum(peer.stats for peer in framed)
        Q = self.best_turn(stats, target, new=new)
        encoder.turn(Q)
        return stats.rotated(Q)

    def best_turn(self, stats: ClassStats, target: ClassStats, *, new: bool, away: Tensor | None = None) -> Tensor:
        """Return the turn (d, d) that takes the statistics nearest to the target; near the identity unless `new`."""
        spec = self.spec
        return align(
            stats,
            target,
            means=spec.means,
            sketch=spec.sketch,
            iterations=spec.iterations,
            from_identity_only=not new,
            away=away,
        )


class PartialGaugeSpec(GaugeSpec):
    """Gauge alignment for partial labels."""

    away: float = Field(1.0, ge=0, description="λ, how strongly own classes keep clear of classes not held")


class PartialGauge(Gauge):
    """A node's gauge among peers with other labels.

    A node turns the classes that it shares towards the peers' and all of its classes away from those that it does not
    hold: max_Q Σ_{k∈K_i} ⟨Q V_k Qᵀ, M_k − λ Σ_{l∉K_i} V_l⟩. `core.gauge.align` climbs both terms with one iteration.

    Frames settle in the order of the nodes' numbers: a node without one waits until all peers with lower numbers have
    theirs. Two nodes that joined at once could not know of each other, and would put a class that the first peer
    lacks into two different places.
    """

    spec: PartialGaugeSpec

    def turn_towards(
        self,
        encoders: Iterable[Encoder],
        stats: ClassStats,
        peers: Mapping[int, StatsMessage],
        index: int,
        objective: Callable[[ClassStats], float],
    ) -> ClassStats:
        """Turn the encoders (all in one frame) towards the peers; return the statistics as they are after the turn.

        Args:
            index: this node's number.
            objective: what the node minimises, as a function of its statistics; once the frames have settled, a turn
                that would raise it is left out.
        """
        if not self.spec.enabled:
            return stats
        new = self.hops == NO_FRAME
        first = {j: peer for j, peer in peers.items() if j < index or not new}
        if new and any(peer.hops == NO_FRAME for peer in first.values()):
            return stats
        framed = [peer for peer in first.values() if peer.hops != NO_FRAME]
        if new:
            self.hops = 1 + max((peer.hops for peer in framed), default=-1)
        if not framed:
            return stats
        target = ClassStats.sum(peer.stats for peer in framed)
        not_held = (~stats.held).to(stats.V.dtype)
        Q = self.best_turn(stats, target, new=new, away=self.spec.away * torch.einsum("k,kab->ab", not_held, target.V))
        turned = stats.rotated(Q)
        settled = not new and len(framed) == len(peers)
        if settled and objective(turned) > objective(stats):
            return stats
        for encoder in encoders:
            encoder.turn(Q)
        return turned
