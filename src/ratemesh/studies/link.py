"""The link: how few bytes carry a sample from node to node, and how much noise it stands.

Every sender i codes its features of held-out samples; every receiver j ≠ i judges what arrives by its own statistics,
and looks it up in a gallery of its own features. All codes are measured and none is chosen: a code picked by these
numbers would have been picked on test data. Choose on a validation part, or by the bytes there are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor

from ratemesh import seeds
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, accuracy
from ratemesh.errors import InputError
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.storage import read_tensors, write_json
from ratemesh.experiment.trials import is_trials
from ratemesh.messages.features import with_noise
from ratemesh.messages.products import feature_codes
from ratemesh.metrics.evaluate import HeldOut
from ratemesh.report.figures import style

SNRS = (math.inf, 20.0, 10.0, 5.0, 0.0, -5.0)
"""Signal-to-noise ratios in dB: from no noise to three times as much noise as signal."""

PAIRS = 90
"""Ordered pairs of nodes at most, all those of ten nodes; of more nodes evenly spaced ones."""


@dataclass(frozen=True)
class Heard:
    """What receivers make of features that came over one kind of link, means over pairs of nodes.

    Attributes:
        link: name of the code, or "noise".
        bytes: a sample; of noise NaN.
        snr: in dB; of a code NaN.
        distortion: mean squared distance of what arrived to what was sent; unrelated features are 2 apart.
        accuracy: of the receiver's own statistics, by the run's rule.
        retrieval: part of queries whose nearest feature in the receiver's gallery has their class.
        retrieval_fine: the same by fine labels; NaN without.
    """

    link: str
    bytes: float
    snr: float
    distortion: float
    accuracy: float
    retrieval: float
    retrieval_fine: float


@dataclass(frozen=True)
class Link:
    """What was measured, and the files it was written to."""

    codes: list[Heard]
    noise: list[Heard]
    samples: int
    pairs: int
    summary: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class Ends:
    """All nodes as senders and receivers.

    Attributes:
        stats: every node's own statistics.
        test: held-out samples as all nodes see them.
        rule: of the run, for nearest subspaces.
    """

    stats: Sequence[ClassStats]
    test: HeldOut
    rule: SubspaceRule


def run_link(path: Path, out: Path) -> Link:
    """Measure the links between the nodes of a finished run; leave link.json and a figure in the folder `out`."""
    ends = open_ends(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be made; got '{out}' ({error}).") from None
    codes, noise = over_codes(ends), over_noise(ends)
    samples, pairs = len(ends.test.y), len(pairs_of(ends.stats))
    summary = out / "link.json"
    found = {"codes": [asdict(heard) for heard in codes], "noise": [asdict(heard) for heard in noise]}
    write_json(summary, {"schema": SCHEMA, "run": path.resolve().name, "samples": samples, "pairs": pairs, **found})
    return Link(codes, noise, samples, pairs, summary, draw_link(codes, noise, out / "link"))


def open_ends(path: Path) -> Ends:
    """Read statistics and held-out features of a finished run."""
    if is_trials(path):
        raise InputError(f"run must be a single run; '{path}' holds trials. Take one, e.g. {path / 'trial-1'}.")
    folder = RunFolder.existing(path)
    if not folder.metrics.exists():
        raise InputError(f"run must be finished; '{path}' has no metrics.json. Go on with it: ratemesh resume {path}")
    if not folder.features.exists():
        raise InputError(f"run must have kept features; '{path}' has none. Run with output.features above 0.")
    config = folder.load_config()
    states = [read_tensors(file) for file in sorted(folder.judged_states().glob("node-*.safetensors"))]
    if not states or any("V" not in state for state in states):
        raise InputError(
            f"run must hold class statistics of every node in its last checkpoint; '{path}' does not. Use a run of a "
            "method that exchanges statistics, e.g. alg1, with its checkpoints."
        )
    stats = [ClassStats.from_tensors(state) for state in states]
    test = _held_out(folder.features, stats)
    return Ends(stats, test, config.evaluation.rule(config.d, stats[0].num_classes))


def _held_out(path: Path, stats: Sequence[ClassStats]) -> HeldOut:
    """Read what nodes say of held-out samples, and check that it goes with their statistics."""
    if len(stats) < 2:
        raise InputError(f"run must have at least two nodes to send from one to another; '{path.parent}' has one.")
    kept = read_tensors(path)
    Z, y = kept.get("Z_test"), kept.get("y_test")
    fine = kept.get("fine_test", y)
    N, d = len(stats), stats[0].d
    if Z is None or y is None or fine is None or Z.shape != (N, len(y), d) or y.ndim != 1 or fine.shape != y.shape:
        raise InputError(
            f"'{path}' must hold Z_test ({N}, n, {d}), y_test (n,), and fine_test (n,) if any. Run it again."
        )
    if len(y) < 2:
        raise InputError(f"'{path}' must hold two samples or more, to ask and to find; got {len(y)}. Keep more.")
    return HeldOut(Z, y.long(), fine.long() if "fine_test" in kept else None)


def pairs_of(stats: Sequence[ClassStats]) -> list[tuple[int, int]]:
    """Return ordered pairs of sender and receiver that hold a class in common, `PAIRS` of them at most."""
    nodes = range(len(stats))
    found = [(i, j) for i in nodes for j in nodes if i != j and bool((stats[i].held & stats[j].held).any())]
    if not found:
        raise InputError("run must have two nodes that hold a class in common; what one says no other can judge.")
    count = min(len(found), PAIRS)
    return [found[at * len(found) // count] for at in range(count)]


def over_codes(ends: Ends) -> list[Heard]:
    """Measure every code, the longest first; codes are made of all nodes' statistics, pooled."""
    Z, hear = ends.test.Z, _listener(ends)
    codes = feature_codes(ClassStats.sum(ends.stats), ends.rule)
    return [
        Heard(code.name, code.size, math.nan, *hear(torch.stack([code.decode(code.encode(Z_i)) for Z_i in Z])))
        for code in codes
    ]


def over_noise(ends: Ends) -> list[Heard]:
    """Measure features as they are, through noise; the same noise for every run of a size."""
    hear = _listener(ends)
    draws = [seeds.generator(0, "link", snr) for snr in SNRS]
    arrived = (with_noise(ends.test.Z, snr, draw) for snr, draw in zip(SNRS, draws, strict=True))
    return [Heard("noise", math.nan, snr, *hear(Z)) for snr, Z in zip(SNRS, arrived, strict=True)]


def _listener(ends: Ends) -> Callable[[Tensor], list[float]]:
    """Return a function that gives the numbers of `Heard` for features (N, n, d) as they arrived."""
    Z, y, fine, stats = ends.test.Z, ends.test.y, ends.test.fine, ends.stats
    judges = [SubspaceJudge(rule=ends.rule).fit_stats(s) for s in stats]
    gallery, queries = halves(y if fine is None else fine)
    pairs = pairs_of(stats)

    def pair(arrived: Tensor, i: int, j: int) -> tuple[float, float, float]:
        """Return accuracy, retrieval and fine retrieval at j of what i sent, on classes that both hold."""
        both = (stats[i].held & stats[j].held)[y]
        asked = queries[both[queries]]
        found = gallery[(arrived[i, asked] @ Z[j, gallery].mT).argmax(1)]
        by_fine = math.nan if fine is None else accuracy(fine[found], fine[asked])
        return accuracy(judges[j].predict(arrived[i, both]), y[both]), accuracy(y[found], y[asked]), by_fine

    def hear(arrived: Tensor) -> list[float]:
        by_pair = torch.tensor([pair(arrived, i, j) for i, j in pairs], dtype=torch.float64)
        distortion = (arrived - Z).square().sum(-1).mean()
        return [float(distortion), *by_pair.nanmean(0).tolist()]  # a pair may have no sample of its classes

    return hear


def halves(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions of gallery and queries, disjoint, every label (n,) in both as evenly as it goes."""
    order = torch.argsort(y, stable=True)
    return order[0::2], order[1::2]


MEASURES = {
    "accuracy": "class, by the receiver's statistics",
    "retrieval": "class, by the receiver's gallery",
    "retrieval_fine": "fine label, by the receiver's gallery",
}


def draw_link(codes: Sequence[Heard], noise: Sequence[Heard], stem: Path) -> tuple[Path, ...]:
    """Draw what arrives against bytes a sample and against noise, as stem.png, stem.svg and stem.pdf."""
    products = [heard for heard in codes if heard.link.startswith("product")]
    others = [heard for heard in codes if heard not in products]
    noisy = [heard for heard in noise if math.isfinite(heard.snr)]
    with style.house_style():
        figure, axes = style.panels(2, (3.6, 2.9), sharey=True)
        _curves(axes[0], [heard.bytes for heard in others], others)
        _curves(
            axes[0],
            [heard.bytes for heard in products],
            products,
            linestyle="",
            markerfacecolor="white",
            zorder=3,
            label=None,
        )
        _name_codes(axes[0], others)
        _curves(axes[1], [heard.snr for heard in noisy], noisy)
        axes[1].set_xlabel("signal-to-noise ratio (dB)")
        for axis, title in zip(axes, ("(a) Coded features", "(b) Features through noise"), strict=True):
            _reference(axis, codes[0])
            axis.set_title(title, pad=20)  # room for the names of codes
        axes[0].plot(
            [], color="0.5", marker="o", linestyle="", markerfacecolor="white", label="product codes, no class named"
        )
        axes[0].set_ylabel("right at the receiver (%)")
        style.legend(figure, *axes[0].get_legend_handles_labels())
        return style.save(figure, stem)


def _curves(axis: Axes, x: Sequence[float], heard: Sequence[Heard], **how: Any) -> None:
    """Plot every measure that there is; `how` says what is different from the look of a line."""
    for place, (key, words) in enumerate(MEASURES.items()):
        values = [100 * getattr(one, key) for one in heard]
        if values and math.isfinite(values[0]):
            axis.plot(x, values, **{**style.look(place), "label": words, **how})


def _reference(axis: Axes, plain: Heard) -> None:
    """Mark what arrives when nothing is lost."""
    for place, key in enumerate(MEASURES):
        axis.axhline(100 * getattr(plain, key), color=style.look(place)["color"], linewidth=0.7, alpha=0.5)
    axis.plot([], color="0.5", linewidth=0.7, label="nothing lost (float32)")


def _name_codes(axis: Axes, codes: Sequence[Heard]) -> None:
    """Make the x axis one of bytes, every code at its own, with its name above."""
    sizes = sorted({heard.bytes for heard in codes})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axis.set_xlabel("bytes a sample")
    crowded = any(large < 1.8 * small for small, large in pairwise(sizes))
    how: dict[str, Any] = {"rotation": 30, "ha": "left"} if crowded else {"ha": "center"}
    for size in sizes:
        names = ", ".join(heard.link for heard in codes if heard.bytes == size)
        place = axis.get_xaxis_transform()
        axis.annotate(names, (size, 1.02), xycoords=place, fontsize=7, color="0.35", **how)
