"""What a round costs: measured bytes beside the formulas of Remarks 2 and 4, and beside what D-SGD would send."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ratemesh.report.runs import Run, number

FLOAT = 4
"""Bytes of a number on the wire."""

COSTS: dict[str, tuple[str, str]] = {
    "measured": ("Measured", "payload bytes of all messages, mean over rounds"),
    "packed": ("Formula, one triangle", "Σ_i |N_i| · K · d(d+1)/2 numbers: V is symmetric"),
    "full": ("Formula of Remark 2", "Σ_i |N_i| · K · d² numbers"),
    "held": ("Formula of Remark 4", "Σ_i |N_i| · |K_i| · d² numbers, K_i the classes at node i"),
    "dsgd": ("D-SGD, same encoders", "every node's parameters to all its neighbours"),
    "dsgd_alike": ("D-SGD, own kind only", "to neighbours of the same architecture, as in the paper"),
}
"""Bytes of a `Cost` -> their name and what they are of."""


@dataclass(frozen=True)
class Cost:
    """Bytes that all nodes together send a round, as in `COSTS`, and seconds on the wall; NaN where not known."""

    measured: float
    full: float = math.nan
    held: float = math.nan
    packed: float = math.nan
    dsgd: float = math.nan
    dsgd_alike: float = math.nan
    seconds: float = math.nan
    notes: tuple[str, ...] = ()


def cost_of(run: Run) -> Cost:
    """Work out every cost that the run folder lets us know; of trials, the means: seeds differ in their graphs."""
    if run.trials:
        return _mean_cost([cost_of(trial) for trial in run.complete or run.trials])
    sent = [number(record.get("bytes")) for record in run.records]
    try:
        formulas, notes = _formulas(run.network), []
    except (KeyError, TypeError, ValueError):
        formulas, notes = {}, ["network.json does not tell nodes, edges, d and K, so no formula can be filled in."]
    return Cost(_mean(sent), seconds=_mean(run.seconds), notes=tuple(notes), **formulas)


def _formulas(network: Mapping[str, Any]) -> dict[str, float]:
    """Fill in the formulas from network.json."""
    d, K = int(network["d"]), int(network["num_classes"])
    nodes = {node["index"]: node for node in network["nodes"]}
    ends = [edge["ends"] for edge in network["edges"]]
    links = [(nodes[a], nodes[b]) for i, j in ends for a, b in ((i, j), (j, i))]  # from whom, to whom
    alike = [a for a, b in links if a["architecture"] == b["architecture"]]
    return {
        "full": FLOAT * len(links) * K * d**2,
        "held": FLOAT * sum(count > 0 for a, _ in links for count in a["counts"]) * d**2,
        "packed": FLOAT * len(links) * K * d * (d + 1) / 2,
        "dsgd": FLOAT * sum(a["parameters"] for a, _ in links),
        "dsgd_alike": FLOAT * sum(a["parameters"] for a in alike),
    }


def _mean_cost(costs: list[Cost]) -> Cost:
    """Return means of what is known; equal notes once."""
    means = {key: _mean([getattr(cost, key) for cost in costs]) for key in (*COSTS, "seconds")}
    return Cost(**means, notes=tuple(dict.fromkeys(note for cost in costs for note in cost.notes)))


def _mean(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan
