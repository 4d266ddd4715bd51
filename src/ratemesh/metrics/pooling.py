"""Which features are measured together, and a measurement that carries its noise floor."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

import torch
from torch import Tensor

from ratemesh.core.checks import check_features
from ratemesh.errors import InputError

Pooling = Literal["concat", "per_node", "average"]
"""All nodes' features as one set (the paper's Z); every node by itself; z' = mean_i f_i(x) of shared samples."""

Features = Tensor | Sequence[Tensor]
"""(m, d) of one node, (N, m, d) of N nodes that see the same samples, or (m_i, d) of every node."""

Labels = Tensor | Sequence[Tensor]
"""(m,), shared by all nodes, or (m_i,) of every node."""

FeatureSet = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Measured:
    """A number, and what it would be if there were nothing to measure.

    Attributes:
        value: the number.
        floor: its expectation for features without any structure of the kind measured.
        n: samples; the mean over nodes where nodes were measured one by one.
        n_k: samples per class 0..K-1, likewise; empty where labels play no part.
        skipped: nodes that could not be measured and are left out.
    """

    value: float
    floor: float
    n: float
    n_k: tuple[float, ...] = ()
    skipped: tuple[int, ...] = ()

    @classmethod
    def mean(cls, parts: Sequence["Measured"], skipped: Sequence[int] = ()) -> "Measured":
        """Return the mean over nodes (at least one); the floor of a mean is the mean of the floors."""
        return cls(
            value=fmean(part.value for part in parts),
            floor=fmean(part.floor for part in parts),
            n=fmean(part.n for part in parts),
            n_k=tuple(map(fmean, zip(*(part.n_k for part in parts), strict=True))),
            skipped=tuple(skipped),
        )


def pool(Z: Features, y: Labels, pooling: Pooling = "concat") -> list[FeatureSet]:
    """Return the sets of features (n, d), float64, with labels (n,) that a metric looks at.

    Pooling decides what class means are. V_k does not change under z → −z, so nodes in consensus on V_k may have
    opposite class means: they cancel in "concat" and in "average", not in "per_node".

    Args:
        Z: features, see `Features`.
        y: labels, see `Labels`.
        pooling: "concat" gives one set, "per_node" one a node, "average" one with z' = mean_i f_i(x).

    >>> Z = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])  # two nodes, one sample
    >>> [len(pool(Z, torch.tensor([0]), mode)) for mode in ("concat", "per_node", "average")]
    [1, 2, 1]
    """
    if pooling not in get_args(Pooling):
        raise InputError(f"pooling must be one of {get_args(Pooling)}; got {pooling!r}.")
    sets = _by_node(Z, y)
    if pooling == "per_node":
        return sets
    if pooling == "concat":
        return [(torch.cat([Z_i for Z_i, _ in sets]), torch.cat([y_i for _, y_i in sets]))]
    first = sets[0][1]
    if not all(torch.equal(y_i, first) for _, y_i in sets):
        raise InputError(
            "y must be the same at all nodes to average over them; got different labels. "
            "Pass (N, m, d) features of shared samples, or use pooling='concat'."
        )
    return [(torch.stack([Z_i for Z_i, _ in sets]).mean(0), first)]


def varies(Z: Tensor) -> bool:
    """Return whether the rows of Z (n, d), float64, differ by more than rounding."""
    spread2 = (Z - Z.mean(0)).square().sum()
    return bool(spread2 > 1e-24 * Z.square().sum())


def _by_node(Z: Features, y: Labels) -> list[FeatureSet]:
    """Return checked (Z_i, y_i) of every node."""
    features = [Z] if isinstance(Z, Tensor) and Z.ndim == 2 else list(Z)
    labels = [y] * len(features) if isinstance(y, Tensor) else list(y)
    if not features or len(features) != len(labels):
        raise InputError(f"y must have labels for each of {len(features)} nodes, at least one; got {len(labels)}.")
    for Z_i, y_i in zip(features, labels, strict=True):
        if not y_i.numel():
            raise InputError("y must hold labels at every node; it is empty at one. Leave nodes without samples out.")
        check_features(Z_i, y_i, max(int(y_i.max()) + 1, 1), unit=False)
    widths = {Z_i.shape[1] for Z_i in features}
    if len(widths) > 1:
        raise InputError(f"Z must have the same d at all nodes; got {sorted(widths)}.")
    return [(Z_i.double(), y_i.long()) for Z_i, y_i in zip(features, labels, strict=True)]
