"""Class means against the spread around them: cosines of means, WCCR and IIDR, the paper's Table I.

Features and labels are those that every node holds, (m_i, d) and (m_i,): all of them one set, the paper's Z, or every
node by itself. V_k does not change under z → −z, so nodes in consensus on V_k may have opposite class means: these
cancel in the one set, and not node by node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ratemesh.core.checks import check_labelled
from ratemesh.errors import InputError
from ratemesh.metrics.geometry import Measured, varies


@dataclass(frozen=True, eq=False)
class Scatter:
    """How a set of n features is spread about its class means; classes without samples keep mean zero.

    Attributes:
        n_k: (K,) samples per class.
        mu: (K, d) class means.
        distance: (n,) ‖z_i − μ_{y_i}‖.
        S_T: (1/n) Σ_i ‖z_i − mean of all‖²; zero, not rounding, if all samples are the same.
    """

    n_k: Tensor
    mu: Tensor
    distance: Tensor
    S_T: Tensor

    @classmethod
    def of(cls, Z: Tensor, y: Tensor) -> "Scatter":
        """Compute it for features (n, d), labels (n,)."""
        n_k = torch.bincount(y).to(Z.dtype)
        mu = Z.new_zeros(len(n_k), Z.shape[1]).index_add(0, y, Z) / n_k.clamp(min=1)[:, None]
        S_T = (Z - Z.mean(0)).square().sum(1).mean() * varies(Z)
        return cls(n_k, mu, (Z - mu[y]).norm(dim=1), S_T)

    @property
    def S_W(self) -> Tensor:  # noqa: N802  the other half of S_T
        """(1/n) Σ_i ‖z_i − μ_{y_i}‖²."""
        return self.distance.square().mean()

    @property
    def held(self) -> Tensor:
        """(K,) booleans: which classes have samples."""
        return self.n_k > 0

    @property
    def measurable(self) -> bool:
        """Whether there are variation, two classes, and more samples than classes."""
        classes = int(self.held.sum())
        return classes >= 2 and int(self.n_k.sum()) > classes and bool(self.S_T > 0)


def wccr(Z: Sequence[Tensor], y: Sequence[Tensor], *, per_node: bool = False) -> Measured:
    """Return the within-class covariance collapse ratio S_W / S_T, in 0..1.

    1: class means coincide; 0: classes are points. The floor, without class means, is 1 − (K−1)/(n−1), K counting
    classes with samples. Classes without samples are left out; a class with one sample adds nothing to S_W and
    counts in the floor. Nodes measured one by one must have two classes, more samples than classes and features
    that vary; others are skipped and named.
    """
    return _measure(Z, y, per_node, _wccr)


def iidr(Z: Sequence[Tensor], y: Sequence[Tensor], *, per_node: bool = False) -> Measured:
    """Return the inter/intra-class distance ratio, mean_{k<l} ‖μ_k − μ_l‖ / mean_i ‖z_i − μ_{y_i}‖.

    Plain distances, not squared. The floor, without class means and in many dimensions, is
    mean_{k<l} √(1/n_k + 1/n_l) / Σ_k (n_k/n) √(1 − 1/n_k), or √(2/n_k) for many balanced samples. Infinite when all
    classes are points. Classes without samples, with one, and nodes that cannot be measured: as in `wccr`.
    """
    return _measure(Z, y, per_node, _iidr)


def _measure(
    Z: Sequence[Tensor], y: Sequence[Tensor], per_node: bool, formula: Callable[[Scatter], Measured]
) -> Measured:
    scatters = [Scatter.of(Z_i, y_i) for Z_i, y_i in _sets(Z, y, per_node)]
    parts = [formula(s) for s in scatters if s.measurable]
    if not parts:
        counts = [int(n) for n in scatters[0].n_k]
        raise InputError(
            "Z must vary, and y must hold two classes and more samples than classes; "
            f"got {counts} samples per class{' at the first node' if len(scatters) > 1 else ''}. "
            "Pool the nodes, or measure more samples."
        )
    return Measured.mean(parts, [i for i, s in enumerate(scatters) if not s.measurable])


def _sets(Z: Sequence[Tensor], y: Sequence[Tensor], per_node: bool) -> list[tuple[Tensor, Tensor]]:
    """Return what is measured together: features (n, d), float64, and labels (n,)."""
    for Z_i, y_i in zip(Z, y, strict=True):
        check_labelled(Z_i, y_i)
    sets = [(Z_i.double(), y_i.long()) for Z_i, y_i in zip(Z, y, strict=True)]
    return sets if per_node else [(torch.cat([Z_i for Z_i, _ in sets]), torch.cat([y_i for _, y_i in sets]))]


def _wccr(s: Scatter) -> Measured:
    n, K = float(s.n_k.sum()), int(s.held.sum())
    return Measured(float(s.S_W / s.S_T), 1 - (K - 1) / (n - 1), n)


def _iidr(s: Scatter) -> Measured:
    n, K = float(s.n_k.sum()), int(s.held.sum())
    mu, variance = s.mu[s.held], 1 / s.n_k[s.held]  # of a class mean, in units of the variance within classes
    k, j = torch.triu_indices(K, K, offset=1)
    between = (mu[k] - mu[j]).norm(dim=1).mean()
    # Samples are nearer to the mean that they were part of than to the true one.
    within = (s.n_k[s.held] * (1 - variance).sqrt()).sum() / n
    floor = (variance[k] + variance[j]).sqrt().mean() / within
    return Measured(float(between / s.distance.mean()), float(floor), n)


class ClassCosine(NamedTuple):
    """Cosines ⟨μ_k, μ_l⟩ / (‖μ_k‖‖μ_l‖) between class means: mean and standard deviation over k ≠ l.

    `noise` lists labels whose mean is noise, ‖μ_k‖² < 3 S_W/n_k: their cosines say nothing.
    """

    mean: float
    std: float
    noise: tuple[int, ...]


def class_mean_cosine(Z: Sequence[Tensor], y: Sequence[Tensor]) -> ClassCosine:
    """Return cosines between the class means of all nodes' features as one set.

    Not centred: balanced classes with centred means of equal length give −1/(K−1) on average, whatever was learned.
    A mean of length zero has cosine 0 with all others and counts as noise.
    """
    s = Scatter.of(*_sets(Z, y, per_node=False)[0])
    labels = s.held.nonzero().flatten()
    if len(labels) < 2:
        raise InputError(f"y must hold at least two classes; got classes {labels.tolist()} only.")
    mu = s.mu[s.held]
    length2 = mu.square().sum(1)
    unit = mu / length2.sqrt().clamp(min=torch.finfo(mu.dtype).tiny)[:, None]
    k, j = torch.triu_indices(len(labels), len(labels), offset=1)
    cosines = (unit @ unit.mT)[k, j]
    noisy = (length2 < 3 * s.S_W / s.n_k[s.held]) | (length2 == 0)
    return ClassCosine(float(cosines.mean()), float(cosines.std(correction=0)), tuple(labels[noisy].tolist()))
