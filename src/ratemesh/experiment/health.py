"""Whether a run collapses: told while it goes on, from what its rounds record.

Untrained encoders put all samples close together, and so do the first rounds of healthy runs. What tells a collapse is
that it lasts and does not get better.
"""

import math
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratemesh.errors import RatemeshWarning

LASTS = 4
"""Rounds in a row that must say so."""

RANK = 1.1
"""Effective rank of all features below which they lie on a line, almost."""

SPREAD = 0.05
"""√(variance) of unit vectors below which they are all the same, almost."""

FALLEN = 0.5
"""Part of its highest ΔR below which a node's has fallen."""

GROWS = 1.2
"""Growth over those rounds from which features are on their way out of the corner that they start in."""


@dataclass(frozen=True)
class Finding:
    """One kind of collapse, at the node where it is worst; its number, and what to say and to do."""

    kind: str
    round: int
    node: int
    value: float
    words: str

    def record(self) -> dict[str, Any]:
        """Return what the round's record says of it."""
        return {"kind": self.kind, "node": self.node, "value": self.value}


class Health:
    """Looks at the rounds of a run as they come, and tells every kind of collapse once.

    Attributes:
        found: what was found so far.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = (), nodes: Sequence[int] = ()) -> None:
        """Go on after these records, in silence: what they say was told when they were made.

        Args:
            records: of the rounds so far.
            nodes: what the nodes of a record are called; default 0, 1, ….
        """
        self.found: list[Finding] = []
        self._names = list(nodes)
        self._last: deque[Sequence[Mapping[str, Any]]] = deque(maxlen=LASTS)
        self._highest: dict[int, float] = {}
        for record in records:
            self._see(record)

    def see(self, record: Mapping[str, Any]) -> list[Finding]:
        """Take in the next round; warn of what is new, and return it."""
        new = self._see(record)
        for finding in new:
            warnings.warn(finding.words, RatemeshWarning, stacklevel=3)
        return new

    def _see(self, record: Mapping[str, Any]) -> list[Finding]:
        nodes, t = record["nodes"], int(record["round"])
        self._last.append(nodes)
        for i, node in enumerate(nodes):
            self._highest[i] = max(self._highest.get(i, -math.inf), _number(node, "reduction", -math.inf))
        told = {finding.kind for finding in self.found}
        looks = {"constant": self._constant, "rank": self._rank, "falling": self._falling}
        new = [finding for kind, look in looks.items() if kind not in told and (finding := look(t)) is not None]
        if any(finding.kind == "constant" for finding in new):  # which are on a line, of course
            new = [finding for finding in new if finding.kind != "rank"]
        self.found += new
        return new

    def _worst(self, numbers: Mapping[int, float]) -> tuple[int, int, float, str]:
        """Return the worst node's place, its name and its number, and a word on the others."""
        worst = min(numbers, key=numbers.__getitem__)
        others = f" (and {len(numbers) - 1} more)" if len(numbers) > 1 else ""
        return worst, self._names[worst] if self._names else worst, numbers[worst], others

    def _stuck(self, key: str, below: float, least: float) -> dict[int, float]:
        """Return the nodes whose number has been below a bound all the time, and does not grow away from `least`."""
        if len(self._last) < LASTS:
            return {}
        ways = {i: [_number(nodes[i], key, math.inf) for nodes in self._last] for i in range(len(self._last[-1]))}
        return {
            i: way[-1] for i, way in ways.items() if max(way) < below and way[-1] - least <= GROWS * (way[0] - least)
        }

    def _constant(self, t: int) -> Finding | None:
        words = (
            "are almost constant (spread {:.3g} of at most 1) and have been for {} rounds: the network says the same "
        )
        return self._low(t, "constant", self._stuck("feature_spread", SPREAD, 0.0), words + "of every sample")

    def _rank(self, t: int) -> Finding | None:
        words = (
            "have collapsed to effective rank {:.3g} and have been there for {} rounds: classes have no room to differ"
        )
        return self._low(t, "rank", self._stuck("feature_rank", RANK, 1.0), words)

    def _low(self, t: int, kind: str, stuck: Mapping[int, float], words: str) -> Finding | None:
        """Return what is said of features whose number is stuck at the worst node, if it is at any."""
        if not stuck:
            return None
        i, node, value, others = self._worst(stuck)
        told = f"round {t}: features of node {node}{others} {words.format(value, LASTS)}. {self._remedy(i)}"
        return Finding(kind, t, node, value, told)

    def _falling(self, t: int) -> Finding | None:
        parts = {i: part for i, high in self._highest.items() if (part := self._fallen(i, high)) is not None}
        if not parts:
            return None
        i, node, part, others = self._worst(parts)
        value = _number(self._last[-1][i], "reduction", math.nan)
        words = (
            f"round {t}: ΔR of node {node}{others} has fallen to {value:.3g}, {100 * part:.0f} % of its highest, and "
            f"has been below half of that for {LASTS} rounds. {self._remedy(i)}"
        )
        return Finding("falling", t, node, value, words)

    def _fallen(self, i: int, high: float) -> float | None:
        """Return which part of its highest ΔR a node has left, if that has been little for long."""
        way = [_number(nodes[i], "reduction", math.inf) for nodes in self._last if i < len(nodes)]
        if len(way) < LASTS or high <= 0 or max(way) >= FALLEN * high:
            return None
        return way[-1] / high

    def _remedy(self, node: int) -> str:
        """Say what to try, by whether neighbours pull."""
        if _number(self._last[-1][node], "coupling", 0.0) > 0:
            return "Lower local.lr or method.gamma, let coupling start later, or keep coupling.balance above 0."
        return "Lower local.lr, or turn method.warm_start on where the method has it."


def _number(node: Mapping[str, Any], key: str, otherwise: float) -> float:
    """Return a node's number; `otherwise` where it has none, in this method or in this round."""
    value = node.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else otherwise
