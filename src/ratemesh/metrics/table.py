"""Every number that a run ends with, one row each: terminal, page, figures and tables read names and units here.

A new metric is a function that `evaluate` calls, and a row below.
"""

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["number", "percent", "degrees", "bytes", "count"]


@dataclass(frozen=True)
class Metric:
    """What a number is called, how it is written and where it is shown; an empty label is one that is not shown there.

    Attributes:
        label: on the page, where all metrics are.
        meaning: what it is, in a line.
        unit: percent is of a part of 1.
        better: which way is better, if one is.
        digits: decimals in the terminal.
        heading: column in the terminal, after `run`, `demo` and `compare`; a line may end at a space, and two metrics
            of one heading are a range.
        short: on the card of a run, and in small tables.
        panel: part of the figure of accuracy against cost.
    """

    label: str
    meaning: str = ""
    unit: Unit = "number"
    better: Literal["high", "low", ""] = ""
    digits: int = 3
    heading: str = ""
    short: str = ""
    panel: str = ""


def _accuracy(label: str, meaning: str, *, heading: str = "", short: str = "", panel: str = "") -> Metric:
    return Metric(f"Accuracy, {label}", meaning, "percent", "high", 1, heading, short or label, panel)


def _retrieval(label: str, meaning: str, *, heading: str = "") -> Metric:
    return Metric(f"Retrieval, {label}", meaning, "percent", "high", 1, heading, f"1-NN, {label}")


def _unheaded(metric: Metric, words: str, short: str) -> Metric:
    """Return the same number of other labels or samples: no column of the terminal, no panel."""
    named = f"{metric.short}, {short}" if metric.short else ""
    return replace(metric, label=f"{metric.label}, {words}", heading="", panel="", short=named)


LABEL_AWARE = "acc_label_aware"
"""The accuracy that runs have whose nodes hold different labels, and no others."""

LANGUAGE: dict[str, Metric] = {
    "acc_own": _accuracy(
        "own",
        "a node judges its own features by its own statistics alone, mean over nodes",
        heading="acc. own",
        panel="own features, own statistics",
    ),
    "acc_cross": _accuracy(
        "across nodes",
        "a node judges another node's features by its own statistics alone, mean over ordered pairs",
        heading="acc. cross",
        panel="another node's features, own statistics",
    ),
    "acc_cross_worst": _accuracy("across nodes, worst pair", "the least of all ordered pairs", short="worst pair"),
    "retrieval_cross": _retrieval(
        "across nodes",
        "the nearest sample that another node shows has the label asked for (recall@1)",
        heading="1-NN cross",
    ),
    "retrieval_own": _retrieval("own", "the same among a node's own"),
    "retrieval_map_own": _retrieval("own, mAP", "mean average precision"),
    "retrieval_map_cross": _retrieval("across nodes, mAP", "mean average precision"),
}
"""Whether nodes understand each other; where samples have finer labels, by these too, with the suffix `_fine`."""

METRICS: dict[str, Metric] = {
    **LANGUAGE,
    **{f"{key}_fine": _unheaded(metric, "fine labels", "fine") for key, metric in LANGUAGE.items()},
    "acc_hearsay": _accuracy(
        "hearsay", "classes that a node does not hold, judged by the speaker's statistics of them beside its own"
    ),
    "acc_own_gaussian": _accuracy("own, by Gaussians", "a node on its own features, by its own Gaussians alone"),
    "acc_cross_gaussian": _accuracy(
        "across nodes, by Gaussians", "a node on another node's features, by its own Gaussians alone"
    ),
    "pair_cosine": Metric(
        "Cosine of a pair", "between two nodes' features of one sample; ideal 1", better="high", short="cosine"
    ),
    "acc_average": _accuracy(
        "averaged",
        "features averaged over nodes, as in the paper",
        heading="acc. avg.",
        panel="features averaged (paper)",
    ),
    "acc_energy": _accuracy(
        "fused",
        "residuals added over nodes",
        panel="residuals added (fused)",
    ),
    "acc_node": _accuracy(
        "one node",
        "one node alone by the pooled subspaces, mean over nodes",
        panel="one node alone",
    ),
    "acc_gaussian": _accuracy(
        "own Gaussians",
        "log-likelihoods of every node's own Gaussians added over nodes",
        panel="every node's own Gaussians",
    ),
    LABEL_AWARE: _accuracy(
        "label-aware",
        "residuals of a class averaged over the nodes that hold it",
        heading="label- aware",
        panel="residuals over holders (label-aware)",
    ),
    "acc_held": _accuracy("own labels", "one node on the classes it holds, among all", short="node, own labels"),
    "acc_held_closed": _accuracy("own labels, closed", "the same, among its own classes"),
    "acc_foreign": _accuracy("foreign labels", "one node on classes it does not hold"),
    "acc_knn": _accuracy("neighbours", "k nearest neighbours at one node"),
    "acc_linear": _accuracy("linear probe", "linear classifier at one node"),
    "disagreement": Metric(
        "Disagreement",
        "‖V_i − V_j‖ / ‖V_i‖ over edges; ideal 0",
        better="low",
        heading="dis- agree",
        short="disagreement",
    ),
    "overlap": Metric(
        "Class overlap",
        "between pooled class covariances; ideal 0",
        better="low",
        heading="over- lap",
        short="overlap",
    ),
    "principal_angle_mean": Metric(
        "Principal angle", "between class subspaces of neighbours, mean; ideal 0", "degrees", "low"
    ),
    "cka_paired": Metric("CKA, same samples", "how alike nodes see held-out samples; ideal 1", better="high"),
    "cka_paired_debiased": Metric("CKA, debiased", "the same with the unbiased estimator", better="high"),
    "cka_unpaired": Metric("CKA, unpaired", "as in the paper's table; effective rank over n, not alignment"),
    "rank_min": Metric(
        "Smallest class rank",
        "effective rank of class covariances; ideal d/K",
        digits=1,
        heading="ranks",
        short="lowest rank",
    ),
    "rank_max": Metric(
        "Largest class rank",
        "effective rank of class covariances; ideal d/K",
        digits=1,
        heading="ranks",
        short="highest rank",
    ),
    "wccr": Metric("WCCR", "variance inside classes over all variance, nodes pooled"),
    "wccr_per_node": Metric("WCCR, per node", "the same at one node, mean over nodes"),
    "iidr": Metric("IIDR", "distance between class means over distance to them, nodes pooled"),
    "iidr_per_node": Metric("IIDR, per node", "the same at one node, mean over nodes"),
    "class_mean_cosine_mean": Metric("Class-mean cosine, mean", "over pairs of classes"),
    "class_mean_cosine_std": Metric("Class-mean cosine, std", "over pairs of classes"),
    "class_mean_noise": Metric("Classes whose mean is noise", "their cosines say nothing"),
    "expand": Metric("R", "coding rate of all features, nodes pooled"),
    "compress": Metric("R^c", "coding rate inside classes, nodes pooled"),
    "reduction": Metric("ΔR", "R − R^c, nodes pooled", better="high", digits=1, short="ΔR pooled"),
    "reduction_test": Metric("ΔR, held out", "the same on held-out samples", better="high"),
    "bytes_total": Metric("Bytes sent", "by all nodes, all rounds", "bytes", heading="sent", short="sent"),
    "sample_passes": Metric("Sample passes", "samples that went through a training step", "count"),
    "rounds": Metric("Rounds", "of communication"),
    "rounds_played": Metric("Rounds played", "fewer where the run was stopped"),
    "best_round": Metric("Best round", "of those evaluated, by validation samples"),
    "best_metric": Metric("Best round's metric", "what it was chosen by"),
    "best_value": Metric("Best round's number", "of validation samples, as it was seen then", better="high"),
    "judged_round": Metric("Round judged", "whose states all final numbers are of"),
    "stop_reason": Metric("Stopped because", "before all rounds were played"),
    "collapse": Metric("Told of a collapse", "while the run went on"),
    "nodes": Metric("Nodes"),
    "clusters": Metric("Clusters", "that hold every label between their members"),
    "critical_path": Metric("Longest chain of turns", "one after the other in a round"),
    "train_samples_per_class": Metric("Training samples per class", "all nodes together"),
    "test_samples": Metric("Held-out samples"),
    "val_samples": Metric("Validation samples", "held out of the nodes' own, to choose settings by"),
}
"""In the order in which they are shown; those that `evaluate` finds of validation samples too follow at the end."""

VALIDATED = [*(key for key in METRICS if key.startswith(("acc_", "retrieval_"))), "pair_cosine"]
METRICS |= {
    f"val_{key}": _unheaded(METRICS[key], "validation", "validation")
    for key in VALIDATED
    if key not in {"acc_knn", "acc_linear"}
}

MATRICES = {
    "cross_matrix": "accuracy by own statistics",
    "cross_matrix_fine": "accuracy, fine labels",
    "retrieval_matrix": "nearest sample",
    "retrieval_matrix_fine": "nearest sample, fine labels",
}
"""What metrics.json holds of every ordered pair of nodes, rows who speaks, columns who judges; and its short name."""

ASIDES = {"_floor": "without structure", "_n": "samples"}
"""Ends of keys that belong to another number: its expectation without structure, and its samples."""


def label_of(key: str) -> str:
    """Return what a number is called: its row's label, or that of the number which it stands beside."""
    for end, words in ASIDES.items():
        if key not in METRICS and key.endswith(end):
            return f"{label_of(key.removesuffix(end))}, {words}"
    return METRICS[key].label if key in METRICS else key


CURVES = {
    "expand": "R (expand)",
    "compress": "R^c (compress)",
    "reduction": "ΔR",
    "total": "total loss",
    "disagreement": "disagreement",
    "overlap": "class overlap",
}
"""What every round records of every node, as it is called where a run is followed."""

VALIDATION = "val_"
"""How the names of numbers of validation samples begin."""

EVALUATED = ("acc_own", "acc_cross", "retrieval_cross", "acc_average")
"""What is followed of the accuracies that some rounds record, see output.evaluate_every; of validation samples where
rounds record only these."""

GLIMPSED = (
    *("acc_own", "acc_cross", "retrieval_own", "retrieval_cross", "acc_average", "acc_energy", "acc_node"),
    *("acc_gaussian", LABEL_AWARE, "acc_held", "acc_held_closed", "acc_foreign"),
)
"""All that such a round may record, see `evaluate.glimpse`: what a best round can be chosen by."""


@dataclass(frozen=True)
class Column:
    """A column of the paper's Table I: its heading, the metrics in it, the decimals of its numbers."""

    heading: str
    metrics: tuple[str, ...]
    decimals: int


COLUMNS = {
    "accuracy": Column("Accuracy (averaged)", ("acc_average",), 2),
    "cosine": Column("Class-mean cosine, mean / std", ("class_mean_cosine_mean", "class_mean_cosine_std"), 2),
    "wccr": Column("WCCR", ("wccr",), 4),
    "iidr": Column("IIDR", ("iidr",), 4),
    "cka": Column("CKA", ("cka_unpaired",), 4),
}


@dataclass(frozen=True)
class Judged:
    """The accuracy that a run is judged by, and what is said around it.

    Attributes:
        metric: the accuracy.
        caption: what stands below it on the card of a run.
        opening: how the summary begins to tell it.
        alone: the accuracy of one node by itself to set beside it.
        alone_on: which samples that one is of, where not of all.
        beside: accuracies that the card shows as well.
    """

    metric: str
    caption: str
    opening: str
    alone: str
    alone_on: str
    beside: tuple[str, ...]


BY_AVERAGE = Judged(
    "acc_average",
    "accuracy, features averaged",
    "With features averaged over the nodes, as in the paper,",
    "acc_node",
    "",
    ("acc_own", "acc_cross", "retrieval_cross", "acc_energy", "acc_node"),
)
BY_HOLDERS = Judged(
    LABEL_AWARE,
    "accuracy, label-aware; nodes hold some labels",
    "Judged by the nodes that hold a class (label-aware),",
    "acc_held",
    " on labels that it holds",
    ("acc_own", "acc_cross", "acc_hearsay", "acc_average", "acc_energy", "acc_held"),
)
"""Where nodes hold different labels: a node sends a class that it never saw just anywhere, which spoils the average."""
