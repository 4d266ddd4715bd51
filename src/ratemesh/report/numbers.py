"""Numbers as people read them, and the names of what a run is measured by."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ratemesh.report.runs import number

DASH = "–"


def in_bytes(count: float) -> str:
    """Return bytes with a unit, three digits.

    >>> in_bytes(13416160)
    '13.4 MB'
    """
    return _scaled(count, (" B", " kB", " MB", " GB", " TB"))


def in_count(count: float) -> str:
    """Return a number of things, three digits.

    >>> in_count(287600)
    '288 k'
    """
    return _scaled(count, ("", " k", " M", " G", " T"))


def _scaled(count: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(count):
        return DASH
    power = 0
    while abs(count) >= 999.5 and power < len(units) - 1:
        count /= 1000
        power += 1
    return f"{count:.3g}{units[power]}"


def in_percent(value: float) -> str:
    """Return a part of 1 as a percentage."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else DASH


def in_digits(value: float) -> str:
    """Return a plain number, short."""
    if not math.isfinite(value):
        return DASH
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def in_degrees(value: float) -> str:
    """Return an angle."""
    return f"{value:.1f}°" if math.isfinite(value) else DASH


@dataclass(frozen=True)
class Metric:
    """A number that a run ends with: what it is called, how it is written, and which way is better."""

    name: str
    meaning: str
    write: Callable[[float], str] = in_digits
    better: Literal["high", "low", ""] = ""


METRICS: dict[str, Metric] = {
    "acc_average": Metric("Accuracy, averaged", "features averaged over nodes, as in the paper", in_percent, "high"),
    "acc_energy": Metric("Accuracy, fused", "residuals added over nodes", in_percent, "high"),
    "acc_node": Metric("Accuracy, one node", "one node alone, mean over nodes", in_percent, "high"),
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
    "rank_min": Metric("Smallest class rank", "effective rank of class covariances; ideal d / K"),
    "rank_max": Metric("Largest class rank", "effective rank of class covariances; ideal d / K"),
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


def _listed(values: list[Any]) -> str:
    """Return a list in a cell: whole while it is short, as its range when it is long."""
    words = [written("", value) for value in values]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    if len(words) > LONG:
        known = [v for value in values if math.isfinite(v := number(value))]
        return f"{in_digits(min(known))} to {in_digits(max(known))}" if known else f"{len(words)} values"
    return ", ".join(words) or "none"
