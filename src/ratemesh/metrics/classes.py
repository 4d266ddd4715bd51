"""Class means against the spread around them: cosines of means, WCCR and IIDR, the paper's Table I."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from ratemesh.errors import InputError
from ratemesh.metrics.pooling import Features, Labels, Measured, Pooling, pool, varies


@dataclass(frozen=True, eq=False)
class Scatter:
    """How a set of n features is spread about its class means; classes without samples keep mean zero.

    Attributes:
        n_k: (K,) samples per class.
        mu: (K, d) class means.
        centre: (d,) mean of all samples.
        distance: (n,) ‖z_i − μ_{y_i}‖.
        S_T: (1/n) Σ_i ‖z_i − centre‖²; zero, not rounding, if all samples are the same.
    """

    n_k: Tensor
    mu: Tensor
    centre: Tensor
    distance: Tensor
    S_T: Tensor

    @classmethod
    def of(cls, Z: Tensor, y: Tensor, num_classes: int) -> "Scatter":
        """Compute it for features (n, d), labels (n,)."""
        n_k = torch.bincount(y, minlength=num_classes).to(Z.dtype)
        mu = Z.new_zeros(num_classes, Z.shape[1]).index_add(0, y, Z) / n_k.clamp(min=1)[:, None]
        centre = Z.mean(0)
        S_T = (Z - centre).square().sum(1).mean() * varies(Z)
        return cls(n_k, mu, centre, (Z - mu[y]).norm(dim=1), S_T)

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


def wccr(Z: Features, y: Labels, pooling: Pooling = "concat") -> Measured:
    """Return the within-class covariance collapse ratio S_W / S_T, in 0..1.

    1: class means coincide; 0: classes are points. The floor, without class means, is 1 − (K−1)/(n−1), K counting
    classes with samples. Classes without samples are left out; a class with one sample adds nothing to S_W and
    counts in the floor. Nodes measured one by one must have two classes, more samples than classes and features
    that vary; others are skipped and named.
    """
    return _measure(Z, y, pooling, _wccr)


def iidr(Z: Features, y: Labels, pooling: Pooling = "concat") -> Measured:
    """Return the inter/intra-class distance ratio, mean_{k<l} ‖μ_k − μ_l‖ / mean_i ‖z_i − μ_{y_i}‖.

    Plain distances, not squared. The floor, without class means and in many dimensions, is
    mean_{k<l} √(1/n_k + 1/n_l) / Σ_k (n_k/n) √(1 − 1/n_k), or √(2/n_k) for many balanced samples. Infinite when all
    classes are points. Classes without samples, with one, and nodes that cannot be measured: as in `wccr`.
    """
    return _measure(Z, y, pooling, _iidr)


def _measure(Z: Features, y: Labels, pooling: Pooling, formula: Callable[[Scatter], Measured]) -> Measured:
    scatters = _scatters(Z, y, pooling)
    parts = [formula(s) for s in scatters if s.measurable]
    if not parts:
        counts = [[int(n) for n in s.n_k] for s in scatters]
        raise InputError(
            "Z must vary, and y must hold two classes and more samples than classes; "
            f"got {counts[0]} samples per class{' at the first node' if len(counts) > 1 else ''}. "
            "Pool the nodes, or measure more samples."
        )
    return Measured.mean(parts, [i for i, s in enumerate(scatters) if not s.measurable])


def _scatters(Z: Features, y: Labels, pooling: Pooling) -> list[Scatter]:
    sets = pool(Z, y, pooling)
    K = 1 + max(int(y_i.max()) for _, y_i in sets)
    return [Scatter.of(Z_i, y_i, K) for Z_i, y_i in sets]


def _wccr(s: Scatter) -> Measured:
    n, K = float(s.n_k.sum()), int(s.held.sum())
    return Measured(float(s.S_W / s.S_T), 1 - (K - 1) / (n - 1), n, tuple(s.n_k.tolist()))


def _iidr(s: Scatter) -> Measured:
    n, K = float(s.n_k.sum()), int(s.held.sum())
    mu, variance = s.mu[s.held], 1 / s.n_k[s.held]  # of a class mean, in units of the variance within classes
    k, j = torch.triu_indices(K, K, offset=1)
    between = (mu[k] - mu[j]).norm(dim=1).mean()
    # Samples are nearer to the mean that they were part of than to the true one.
    within = (s.n_k[s.held] * (1 - variance).sqrt()).sum() / n
    floor = (variance[k] + variance[j]).sqrt().mean() / within
    return Measured(float(between / s.distance.mean()), float(floor), n, tuple(s.n_k.tolist()))


@dataclass(frozen=True, eq=False)
class ClassCosine:
    """Cosines between class means.

    Attributes:
        matrix: (C, C) ⟨μ_k, μ_l⟩ / (‖μ_k‖‖μ_l‖); the mean over nodes where nodes were measured one by one.
        classes: (C,) labels of its rows: the classes that every measured set holds.
        mean, std: over k ≠ l; the mean over nodes of each.
        noise: labels whose mean is noise at some node, ‖μ_k‖² < 3 S_W/n_k: their cosines say nothing.
    """

    matrix: Tensor
    classes: tuple[int, ...]
    mean: float
    std: float
    noise: tuple[int, ...]


def class_mean_cosine(Z: Features, y: Labels, *, centred: bool = False, pooling: Pooling = "concat") -> ClassCosine:
    """Return cosines between class means, with mean and standard deviation over k ≠ l.

    Args:
        Z: features, see `Features`.
        y: labels, see `Labels`.
        centred: subtract the mean of all samples first. Balanced classes with means of equal length then give
            −1/(K−1) on average, whatever was learned; hence not the default.
        pooling: see `pool`.

    A mean of length zero has cosine 0 with all others, itself included, and is listed as noise.
    """
    scatters = _scatters(Z, y, pooling)
    shared = torch.stack([s.held for s in scatters]).all(0)
    classes = tuple(int(k) for k in shared.nonzero().flatten())
    if len(classes) < 2:
        raise InputError(f"y must hold at least two classes (at every node); got classes {list(classes)} only.")
    matrices, noise = zip(*(_cosines(s, shared, centred) for s in scatters), strict=True)
    k, j = torch.triu_indices(len(classes), len(classes), offset=1)
    pairs = [matrix[k, j] for matrix in matrices]
    return ClassCosine(
        matrix=torch.stack(matrices).mean(0),
        classes=classes,
        mean=fmean(float(p.mean()) for p in pairs),
        std=fmean(float(p.std(correction=0)) for p in pairs),
        noise=tuple(label for label, noisy in zip(classes, torch.stack(noise).any(0), strict=True) if noisy),
    )


def _cosines(s: Scatter, shared: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Return cosines (C, C) between the means of the shared classes, and which of the means are noise (C,)."""
    mu = s.mu[shared] - s.centre if centred else s.mu[shared]
    length2 = mu.square().sum(1)
    unit = mu / length2.sqrt().clamp(min=torch.finfo(mu.dtype).tiny)[:, None]
    return unit @ unit.mT, (length2 < 3 * s.S_W / s.n_k[shared]) | (length2 == 0)
