"""What a round costs, by measurement and by formula; and the summary of runs in sentences."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ratemesh.metrics.table import LABEL_AWARE
from ratemesh.report.figures.style import listed
from ratemesh.report.runs import Run, number
from ratemesh.report.wording import in_bytes, in_digits, judged, shown

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


UNIT = re.compile(r"(?<=\d) (?=%|[kMGT]?B\b|±)|(?<=±) ")
"""The space between a number and its unit or interval, where no line may end."""

PARTIAL = ", nodes with some labels each"
COUNTED = ("no", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def title(runs: Sequence[Run]) -> str:
    """Return the heading of the page."""
    data = listed(_distinct(runs, "data.name")) or "unknown data"
    if len(runs) == 1:
        return f"{runs[0].name} on {data}" + (f", {runs[0].planned} trials" if runs[0].planned else "")
    things = "settings" if any(run.trials for run in runs) else "runs"
    return f"{COUNTED[len(runs)] if len(runs) < len(COUNTED) else len(runs)} {things} on {data}"


def summary(runs: Sequence[Run], costs: Sequence[Cost]) -> list[str]:
    """Return sentences on the setting, accuracy, geometry and cost; nothing that is not known is said."""
    sentences = [_setting(runs), *_ends(runs)]
    by_data = same_data(runs)
    for data, group in by_data.items():
        found = [*_language(group), *_accuracy(group), *_geometry(group)]
        sentences += found if len(by_data) == 1 else [f"On {data}: {' '.join(found) or 'no final numbers.'}"]
    sentences += [*_beside(by_data), *_cost(runs, costs), *_caution(runs)]
    return [UNIT.sub("\u00a0", sentence) for sentence in sentences if sentence]


def same_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by data set and by whether nodes hold all labels or some: only those can be ranked."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        data = str(run.setting("data.name", "unknown data"))
        out.setdefault(data + (PARTIAL if run.partial else ""), []).append(run)
    return out


def _distinct(runs: Sequence[Run], key: str) -> list[str]:
    """Return the values that a setting has in the runs, each once, in order."""
    return list(dict.fromkeys(str(value) for run in runs if (value := run.setting(key)) is not None))


def _setting(runs: Sequence[Run]) -> str:
    """Say what the runs share."""
    wanted = {
        "graph.nodes": "{} nodes",
        "graph.name": "graph “{}”",
        "rounds": "{} rounds",
        "local.epochs": "{} local epochs a round",
        "d": "a representation space of {} dimensions",
    }
    shared = [words.format(values[0]) for key, words in wanted.items() if len(values := _distinct(runs, key)) == 1]
    if not shared:
        return ""
    who = "All runs have" if len(runs) > 1 else "Every trial has" if runs[0].trials else "The run has"
    return f"{who} {listed(shared)}."


def _ends(runs: Sequence[Run]) -> list[str]:
    """Say which runs did not play all their rounds, or are judged by an earlier one than their last."""
    found = []
    for run in runs:
        played, judged = run.final("rounds_played"), run.final("judged_round")
        early = (
            f"stopped after round {played:.0f} ({run.metrics['stop_reason']})" if run.metrics.get("stop_reason") else ""
        )
        earlier = f"is judged by its best round, {judged:.0f}" if judged < played else ""
        if early or earlier:
            found.append(f"{run.name} {' and '.join(filter(None, [early, earlier]))}.")
    return found


def _ranked(runs: Sequence[Run], key: str) -> list[Run]:
    """Return runs with a known metric, lowest first."""
    return sorted((run for run in runs if math.isfinite(run.final(key))), key=lambda run: run.final(key))


def _language(runs: Sequence[Run]) -> list[str]:
    """Say how well nodes understand each other where they do best, and how well elsewhere."""
    ranked = _ranked(runs, "acc_cross")
    if not ranked:
        return []
    best, *others = reversed(ranked)
    first = (
        f"By its own statistics alone, a node of {best.name} judges {shown(best, 'acc_cross')} of what another says "
    )
    first += f"right, and {shown(best, 'acc_own')} of its own"
    rest = [f"of {run.name} {shown(run, 'acc_cross')} and {shown(run, 'acc_own')}" for run in others]
    return [first + (f"; one {listed(rest)}." if rest else ".")]


def _accuracy(runs: Sequence[Run]) -> list[str]:
    how = judged(runs[0])
    ranked = _ranked(runs, how.metric)
    if not ranked:
        return []
    best, *others = reversed(ranked)
    count = best.final("test_samples")
    of = f"{in_digits(count)} held-out samples" if math.isfinite(count) else "the held-out samples"
    first = f"{how.opening} {_reached(best)} of {of}"
    if others:
        near = [run.name for run in others if _intervals_meet(best, run, how.metric)]
        doubt = f", though its interval meets that of {listed(near)}" if near else ""
        first += f", the most of all{doubt}; {listed([_reached(run, '') for run in others])}"
    if not math.isfinite(best.final(how.alone)):
        return [first + "."]
    return [first + ".", f"One node of {best.name} alone reaches {shown(best, how.alone)}{how.alone_on}."]


def _beside(by_data: Mapping[str, Sequence[Run]]) -> list[str]:
    """Set nodes with some labels beside nodes with all, by the accuracy that each is judged by."""
    out = []
    for data, some in by_data.items():
        best = _ranked(some, LABEL_AWARE)
        whole = _ranked(by_data.get(data.removesuffix(PARTIAL), []), "acc_average")
        if best and whole:
            ours, ceiling = best[-1], whole[-1]
            out.append(
                f"Nodes with some labels reach {shown(ours, LABEL_AWARE)} label-aware ({ours.name}), where nodes with "
                f"all of them reach {shown(ceiling, 'acc_average')} averaged ({ceiling.name})."
            )
    return out


def _reached(run: Run, verb: str = "classifies ") -> str:
    return f"{run.name} {verb}{shown(run, judged(run).metric)}"


def _intervals_meet(a: Run, b: Run, key: str) -> bool:
    """Whether both have intervals that share a value: trials do not tell such means apart."""
    one, other = a.intervals.get(key), b.intervals.get(key)
    if one is None or other is None:
        return False
    apart, reach = abs(one.mean - other.mean), one.half_width + other.half_width
    return apart <= reach < math.inf  # a single trial has no interval


def _collapsed(run: Run) -> bool:
    """Whether all samples lie in about one direction: agreement is then no achievement."""
    return run.final("rank_max") < 2 and run.final("overlap") > 0.5


def _geometry(runs: Sequence[Run]) -> list[str]:
    """Say how far nodes agree and classes are apart; a collapsed run is named, not praised."""
    out = [
        f"{run.name} has collapsed: every class has an effective rank below 2, and all lie in about the same direction."
        for run in runs
        if _collapsed(run)
    ]
    sound = [run for run in runs if not _collapsed(run)]
    near, apart = _ranked(sound, "disagreement"), _ranked(sound, "overlap")
    if len(sound) == 1 and near and apart:
        numbers = f"neighbours end {shown(sound[0], 'disagreement')} apart"
        out.append(f"In {sound[0].name}, {numbers} and classes overlap by {shown(sound[0], 'overlap')}; 0 is ideal.")
        return out
    if near:
        best = near[0]
        out.append(f"Neighbours agree best in {best.name}: they end {shown(best, 'disagreement')} apart; 0 is ideal.")
    if apart:
        best = apart[0]
        out.append(f"Classes overlap least in {best.name}: by {shown(best, 'overlap')}; 0 is ideal.")
    return out


def _cost(runs: Sequence[Run], costs: Sequence[Cost]) -> list[str]:
    """Compare the dearest run with D-SGD, whichever way it comes out."""
    pairs = [(cost, run) for cost, run in zip(costs, runs, strict=True) if cost.measured > 0]
    if not pairs:
        return []
    cost, run = max(pairs, key=lambda pair: pair[0].measured)
    words = f"A round of {run.name} sends {in_bytes(cost.measured)} in all"
    if math.isfinite(cost.dsgd) and cost.dsgd > 0:
        ratio = cost.dsgd / cost.measured
        how = f"{ratio:.3g} times as much" if ratio >= 1 else f"{ratio:.2g} of it"
        words += (
            f"; D-SGD with these encoders would send {in_bytes(cost.dsgd)} ({how}), all parameters to all neighbours"
        )
        if cost.dsgd_alike < cost.dsgd:
            words += f", or {in_bytes(cost.dsgd_alike)} to those of the same architecture"
    return [words + "."]


def _caution(runs: Sequence[Run]) -> list[str]:
    """Say how many seeds the numbers are of; settings with the same seeds share a sentence."""
    if not any(run.trials for run in runs):
        seeds = _distinct(runs, "seed")
        return [f"Every number is of a single run ({_seeds(seeds)}), without a confidence interval."] if seeds else []
    groups: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        seeds = _distinct(run.complete if run.trials else [run], "seed")
        if seeds:
            groups.setdefault(tuple(seeds), []).append(run.name)
    return [_trials(seeds, names if len(groups) > 1 else []) for seeds, names in groups.items()]


def _trials(seeds: Sequence[str], names: Sequence[str]) -> str:
    whose = f"Numbers of {listed(names)}" if names else "Numbers"
    if len(seeds) == 1:
        return f"{whose} are of a single run ({_seeds(seeds)}), without a confidence interval."
    return f"{whose} are means over {len(seeds)} trials ({_seeds(seeds)}) ± the half-width of a 95 % t-interval."


def _seeds(seeds: Sequence[str]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}"
