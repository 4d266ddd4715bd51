"""Numbers as people read them, and the names of what a run is measured by."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ratemesh.report.runs import LABEL_AWARE, Run, number

DASH = "–"


def in_bytes(count: float, half: float = math.nan) -> str:
    """Return bytes with a unit, three digits; with `half`, the half-width of an interval, as mean ± half.

    >>> in_bytes(13416160)
    '13.4 MB'
    """
    return _scaled(count, half, (" B", " kB", " MB", " GB", " TB"))


def in_count(count: float, half: float = math.nan) -> str:
    """Return a number of things, three digits.

    >>> in_count(287600)
    '288 k'
    """
    return _scaled(count, half, ("", " k", " M", " G", " T"))


def _scaled(count: float, half: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(count):
        return DASH
    power = 0
    while abs(count) >= 999.5 and power < len(units) - 1:
        count, half = count / 1000, half / 1000
        power += 1
    return _spread(f"{count:.3g}", half) + units[power]


def in_percent(value: float, half: float = math.nan) -> str:
    """Return a part of 1 as a percentage.

    >>> in_percent(0.967, 0.004)
    '96.7 ± 0.4 %'
    """
    return f"{_spread(f'{100 * value:.1f}', 100 * half)} %" if math.isfinite(value) else DASH


def in_digits(value: float, half: float = math.nan) -> str:
    """Return a plain number, short.

    >>> in_digits(10.716, 2.808)
    '10.7 ± 2.8'
    """
    if not math.isfinite(value):
        return DASH
    if not math.isfinite(half) and value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    plain = 0.001 <= abs(value) < 1000
    return _spread(f"{value:.{_decimals(half)}f}" if plain else f"{value:.3g}", half)


def _decimals(half: float) -> int:
    """Return three, or fewer where an interval leaves only noise there: two digits of it are enough."""
    return 3 if not math.isfinite(half) or half <= 0 else min(3, max(0, 1 - math.floor(math.log10(half))))


def in_degrees(value: float, half: float = math.nan) -> str:
    """Return an angle."""
    return f"{_spread(f'{value:.1f}', half)}°" if math.isfinite(value) else DASH


def in_places(value: float, half: float, places: int) -> str:
    """Return a number with as many decimals as a table has, and its interval.

    >>> in_places(-0.9941, 0.0012, 4)
    '−0.9941 ± 0.0012'
    """
    return _spread(f"{value:.{places}f}", half).replace("-", "−") if math.isfinite(value) else DASH


def _spread(mean: str, half: float) -> str:
    """Add the half-width to as many decimals as the mean has, or to one digit if that would leave nothing of it."""
    if not math.isfinite(half):
        return mean
    digits = f"{half:.{len(mean.partition('.')[2])}f}" if "e" not in mean else f"{half:.1g}"
    return f"{mean} ± {digits if float(digits) or not half else f'{half:.1g}'}"


@dataclass(frozen=True)
class Metric:
    """A number that a run ends with: what it is called, how it is written, and which way is better."""

    name: str
    meaning: str
    write: Callable[..., str] = in_digits
    better: Literal["high", "low", ""] = ""


METRICS: dict[str, Metric] = {
    "acc_average": Metric("Accuracy, averaged", "features averaged over nodes, as in the paper", in_percent, "high"),
    "acc_energy": Metric("Accuracy, fused", "residuals added over nodes", in_percent, "high"),
    "acc_node": Metric("Accuracy, one node", "one node alone, mean over nodes", in_percent, "high"),
    "acc_gaussian": Metric(
        "Accuracy, own Gaussians", "log-likelihoods of every node's own Gaussians added over nodes", in_percent, "high"
    ),
    "acc_label_aware": Metric(
        "Accuracy, label-aware", "residuals of a class averaged over the nodes that hold it", in_percent, "high"
    ),
    "acc_own": Metric("Accuracy, own labels", "one node on the classes it holds, among all", in_percent, "high"),
    "acc_own_closed": Metric("Accuracy, own labels, closed", "the same, among its own classes", in_percent, "high"),
    "acc_foreign": Metric("Accuracy, foreign labels", "one node on classes it does not hold", in_percent, "high"),
    "acc_knn": Metric("Accuracy, neighbours", "k nearest neighbours at one node", in_percent, "high"),
    "acc_linear": Metric("Accuracy, linear probe", "linear classifier at one node", in_percent, "high"),
    "disagreement": Metric("Disagreement", "‖V_i − V_j‖ / ‖V_i‖ over edges; ideal 0", in_digits, "low"),
    "overlap": Metric("Class overlap", "between pooled class covariances; ideal 0", in_digits, "low"),
    "principal_angle_mean": Metric(
        "Principal angle", "between class subspaces of neighbours, mean; ideal 0", in_degrees, "low"
    ),
    "cka_paired": Metric("CKA, same samples", "how alike nodes see held-out samples; ideal 1", in_digits, "high"),
    "cka_paired_debiased": Metric("CKA, debiased", "the same with the unbiased estimator", in_digits, "high"),
    "cka_unpaired": Metric("CKA, unpaired", "as in the paper's table; effective rank over n, not alignment"),
    "rank_min": Metric("Smallest class rank", "effective rank of class covariances; ideal d/K"),
    "rank_max": Metric("Largest class rank", "effective rank of class covariances; ideal d/K"),
    "wccr": Metric("WCCR", "variance inside classes over all variance, nodes pooled"),
    "wccr_per_node": Metric("WCCR, per node", "the same at one node, mean over nodes"),
    "iidr": Metric("IIDR", "distance between class means over distance to them, nodes pooled"),
    "iidr_per_node": Metric("IIDR, per node", "the same at one node, mean over nodes"),
    "class_mean_cosine_mean": Metric("Class-mean cosine, mean", "over pairs of classes"),
    "class_mean_cosine_std": Metric("Class-mean cosine, std", "over pairs of classes"),
    "class_mean_noise": Metric("Classes whose mean is noise", "their cosines say nothing"),
    "expand": Metric("R", "coding rate of all features, nodes pooled"),
    "compress": Metric("R^c", "coding rate inside classes, nodes pooled"),
    "reduction": Metric("ΔR", "R − R^c, nodes pooled", in_digits, "high"),
    "reduction_test": Metric("ΔR, held out", "the same on held-out samples", in_digits, "high"),
    "bytes_total": Metric("Bytes sent", "by all nodes, all rounds", in_bytes),
    "sample_passes": Metric("Sample passes", "samples that went through a training step", in_count),
    "rounds": Metric("Rounds", "of communication"),
    "nodes": Metric("Nodes", ""),
    "clusters": Metric("Clusters", "that hold every label between their members"),
    "critical_path": Metric("Longest chain of turns", "one after the other in a round"),
    "train_samples_per_class": Metric("Training samples per class", "all nodes together"),
    "test_samples": Metric("Held-out samples", ""),
}
"""In the order in which they are shown."""

LONG = 12
"""Entries up to which a list is shown whole."""

HIDDEN = {"schema", "method", "undefined"}
ASIDES = ("_floor", "_n", "_n_k")
"""Ends of keys that belong to another number: its expectation without structure, and its samples."""


def is_aside(key: str, keys: set[str]) -> bool:
    """Whether a key only explains another one that is there."""
    return any(key.endswith(end) and key.removesuffix(end) in keys for end in ASIDES)


def written(key: str, value: Any) -> str:
    """Return a metric's value as the tables show it."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _listed(value)
    metric = METRICS.get(key)
    return (metric.write if metric else in_digits)(number(value))


def shown(run: Run, key: str) -> str:
    """Return a final number of a run, as mean ± 95 % interval of trials."""
    interval = run.intervals.get(key)
    if interval is None:
        return written(key, run.metrics.get(key))
    return (METRICS[key].write if key in METRICS else in_digits)(interval.mean, interval.half_width)


def judged_by(run: Run) -> str:
    """Return the accuracy that a run is judged by: the paper's, or where nodes hold different labels, label-aware.

    A node that never saw a class sends it somewhere, which spoils the paper's average and says nothing of the rest.
    """
    return LABEL_AWARE if run.partial else "acc_average"


FOUR = {"wccr": "wccr", "iidr": "iidr", "cka": "cka_unpaired"}
"""Columns that the paper prints to four decimals, and our metrics in them."""


def own_cells(run: Run) -> dict[str, str]:
    """Return our numbers in the paper's columns, with intervals where there are trials, as in its first column."""
    accuracy = _own(run, judged_by(run), 2, 100)
    pair = [_own(run, f"class_mean_cosine_{part}", 2) for part in ("mean", "std")]
    return {
        "accuracy": accuracy if accuracy == DASH else f"{accuracy} %",
        "cosine": DASH if DASH in pair else " / ".join(pair),
        **{column: _own(run, key, 4) for column, key in FOUR.items()},
    }


def _own(run: Run, key: str, places: int, scale: float = 1) -> str:
    half = run.intervals[key].half_width if key in run.intervals else math.nan
    return in_places(scale * number(run.metrics.get(key)), scale * half, places)


def _listed(values: list[Any]) -> str:
    """Return a list in a cell: whole while it is short, as its range when it is long."""
    words = [written("", value) for value in values]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    if len(words) > LONG:
        known = [v for value in values if math.isfinite(v := number(value))]
        return f"{in_digits(min(known))} to {in_digits(max(known))}" if known else f"{len(words)} values"
    return ", ".join(words) or "none"
