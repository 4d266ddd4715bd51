"""Gauge alignment where nodes share only some of their labels (ours, for Algorithm 3).

A node turns the classes that it shares towards the peers' and all of its classes away from those that it does not
hold: max_Q Σ_{k∈K_i} ⟨Q V_k Qᵀ, M_k − λ Σ_{l∉K_i} V_l⟩. `core.gauge.align` climbs both terms with one iteration.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from pydantic import Field

from ratemesh.core.gauge import align
from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.messages.statistics import NO_FRAME, StatsMessage
from ratemesh.training.switches import Gauge, GaugeSpec


class PartialGaugeSpec(GaugeSpec):
    """Gauge alignment for partial labels."""

    away: float = Field(1.0, ge=0, description="λ, how strongly own classes keep clear of classes not held")


class PartialGauge(Gauge):
    """A node's gauge among peers with other labels.

    Frames settle in the order of the nodes' numbers: a node without one waits until all peers with lower numbers have
    theirs. Two nodes that joined at once could not know of each other, and would put a class that the first peer
    lacks into two different places.
    """

    spec: PartialGaugeSpec

    def __init__(self, spec: PartialGaugeSpec, *, root: bool) -> None:
        super().__init__(spec, root=root)
        self.spec = spec

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
        asked = {j: peer for j, peer in peers.items() if j < index or not new}
        if new and any(peer.hops == NO_FRAME for peer in asked.values()):
            return stats
        framed = [peer for peer in asked.values() if peer.hops != NO_FRAME]
        if new:
            self.hops = 1 + max((peer.hops for peer in framed), default=-1)
        if not framed:
            return stats
        turned, Q = self._aligned(stats, ClassStats.sum(peer.stats for peer in framed), new=new)
        settled = not new and len(framed) == len(peers)
        if settled and objective(turned) > objective(stats):
            return stats
        for encoder in encoders:
            encoder.turn(Q)
        return turned

    def _aligned(self, stats: ClassStats, target: ClassStats, *, new: bool) -> tuple[ClassStats, torch.Tensor]:
        """Return the statistics after the best turn, and the turn."""
        foreign = (~stats.held).to(stats.V.dtype)
        away = self.spec.away * torch.einsum("k,kab->ab", foreign, target.V)
        Q = align(
            stats,
            target,
            means=self.spec.means,
            iterations=self.spec.iterations,
            from_identity_only=not new,
            away=away,
        )
        return stats.rotated(Q), Q
