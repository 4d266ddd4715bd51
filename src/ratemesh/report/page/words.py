"""The summary: what was run and what came out, in sentences."""

import math
import re
from collections.abc import Sequence

from ratemesh.report.cost import Cost
from ratemesh.report.figures.style import listed
from ratemesh.report.numbers import in_bytes, in_digits, in_percent
from ratemesh.report.runs import Run, number

UNIT = re.compile(r"(?<=\d) (?=%|[kMGT]?B\b)")
"""The space between a number and its unit, where no line may end."""

COUNTED = ("no", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def title(runs: Sequence[Run]) -> str:
    """Return the heading of the page."""
    data = listed(_distinct(runs, "data.name")) or "unknown data"
    if len(runs) == 1:
        return f"{runs[0].name} on {data}"
    return f"{COUNTED[len(runs)] if len(runs) < len(COUNTED) else len(runs)} runs on {data}"


def summary(runs: Sequence[Run], costs: Sequence[Cost]) -> list[str]:
    """Return sentences on the setting, accuracy, geometry and cost; nothing that is not known is said."""
    sentences = [_setting(runs)]
    by_data = same_data(runs)
    for data, group in by_data.items():
        found = [sentence for sentence in (*_accuracy(group), *_geometry(group)) if sentence]
        sentences += found if len(by_data) == 1 else [f"On {data}: {' '.join(found) or 'no final numbers.'}"]
    sentences += [*_cost(runs, costs), *_caution(runs)]
    return [UNIT.sub("\u00a0", sentence) for sentence in sentences if sentence]


def same_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by data set: only those can be ranked."""
    out: dict[str, list[Run]] = {}
    for run in runs:
        out.setdefault(str(run.setting("data.name", "unknown data")), []).append(run)
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
    return f"{'All runs have' if len(runs) > 1 else 'The run has'} {listed(shared)}."


def _ranked(runs: Sequence[Run], key: str) -> list[tuple[float, Run]]:
    """Return runs with a known metric, lowest first."""
    known = [(number(run.metrics.get(key)), run) for run in runs]
    return sorted((pair for pair in known if math.isfinite(pair[0])), key=lambda pair: pair[0])


def _accuracy(runs: Sequence[Run]) -> list[str]:
    ranked = _ranked(runs, "acc_average")
    if not ranked:
        return []
    value, best = ranked[-1]
    count = number(best.metrics.get("test_samples"))
    of = f" of {in_digits(count)} held-out samples" if math.isfinite(count) else " of the held-out samples"
    out = [f"With features averaged over the nodes, as in the paper, {best.name} classifies {in_percent(value)}{of}"]
    if len(ranked) > 1:
        others = [f"{run.name} {in_percent(other)}" for other, run in reversed(ranked[:-1])]
        out[0] += f", the most of all; {listed(others)}"
    alone = number(best.metrics.get("acc_node"))
    return [out[0] + ".", f"One node of {best.name} alone reaches {in_percent(alone)}." if math.isfinite(alone) else ""]


def _collapsed(run: Run) -> bool:
    """Whether all samples lie in about one direction: agreement is then no achievement."""
    return number(run.metrics.get("rank_max")) < 2 and number(run.metrics.get("overlap")) > 0.5


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
        numbers = f"neighbours end {in_digits(near[0][0])} apart and classes overlap by {in_digits(apart[0][0])}"
        out.append(f"In {sound[0].name}, {numbers}; 0 is ideal.")
        return out
    if near:
        out.append(f"Neighbours agree best in {near[0][1].name}: they end {in_digits(near[0][0])} apart; 0 is ideal.")
    if apart:
        out.append(f"Classes overlap least in {apart[0][1].name}: by {in_digits(apart[0][0])}; 0 is ideal.")
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
    seeds = _distinct(runs, "seed")
    if not seeds:
        return []
    known = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {listed(seeds)}"
    return [f"Every number is of a single run ({known}), without a confidence interval."]
