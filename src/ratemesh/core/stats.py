"""Class statistics: everything that is exchanged or optimised is a function of these.

Rows of a batch are laid out class by class (`Grouping`), so that one batched product serves all classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from ratemesh.core.checks import check_features
from ratemesh.core.sketch import SketchMoments, check_sketch
from ratemesh.errors import InputError


@dataclass(frozen=True)
class Grouping:
    """Where each row of a batch goes in a zero-padded array of shape (G, c, ...).

    Every group holds rows of one class only; a class may fill several groups.

    Attributes:
        place: (n,) index of a row in the flattened (G*c) layout.
        owner: (G,) class of each group.
        groups, rows: G and c.
        m: (K,) number of rows per class.
    """

    place: Tensor
    owner: Tensor
    groups: int
    rows: int
    m: Tensor

    @property
    def one_per_class(self) -> bool:
        """Whether group k is class k, whole."""
        return self.groups == self.m.shape[0]

    def pad(self, A: Tensor) -> Tensor:
        """Lay rows (n, d) out as (G, c, d), zeros where there is no row."""
        flat = A.new_zeros(self.groups * self.rows, A.shape[1])
        return flat.index_copy(0, self.place, A).view(self.groups, self.rows, A.shape[1])

    def unpad(self, P: Tensor) -> Tensor:
        """Take the rows back: (G, c, d) to (n, d)."""
        return P.reshape(-1, P.shape[-1]).index_select(0, self.place)

    def sum_by_class(self, P: Tensor) -> Tensor:
        """Add the groups of each class: (G, ...) to (K, ...)."""
        if self.one_per_class:
            return P
        return P.new_zeros(self.m.shape[0], *P.shape[1:]).index_add(0, self.owner, P)

    def of_class(self, A: Tensor) -> Tensor:
        """Give each group its class's entry: (K, ...) to (G, ...)."""
        return A if self.one_per_class else A.index_select(0, self.owner)


def group_by_class(y: Tensor, num_classes: int, *, whole: bool = False) -> Grouping:
    """Plan the layout of rows with labels `y` (n,).

    With `whole` each class is exactly one group, however long (needed for Gram matrices). Otherwise
    no group is longer than twice the mean class size, so padding costs a small multiple of the data even
    when one class holds almost everything.

    On the CPU no group is longer than the largest class. How large that is a host would have to wait for a GPU to tell:
    there the layout depends on n and K only, with as many groups as there may be, the last ones empty.
    """
    n = y.shape[0]
    m = torch.zeros(num_classes, dtype=y.dtype, device=y.device).index_add(0, y, torch.ones_like(y))
    order = torch.argsort(y, stable=True)
    first = torch.cumsum(m, 0) - m
    rank = torch.empty_like(y)
    rank[order] = torch.arange(n, device=y.device) - first[y[order]]
    known = y.device.type == "cpu"
    longest = max(int(m.max()) if known else n, 1)
    rows = longest if whole else min(longest, max(2 * -(-n // num_classes), 1))
    if rows == longest:
        owner = torch.arange(num_classes, device=y.device)
        return Grouping(y * rows + rank, owner, num_classes, rows, m)
    per_class = torch.clamp(-(-m // rows), min=1)
    start = torch.cumsum(per_class, 0) - per_class
    count = int(per_class.sum()) if known else num_classes + n // rows
    places = torch.arange(count, device=y.device)
    owner = torch.searchsorted(start + per_class, places, right=True).clamp(max=num_classes - 1)
    place = (start[y] + rank // rows) * rows + rank % rows
    return Grouping(place, owner, count, rows, m)


def balanced_counts(m: Tensor) -> Tensor:
    """Spread every total over the classes that have samples: counts (..., K) as class-balanced sampling draws them.

    >>> balanced_counts(torch.tensor([6.0, 0.0, 2.0])).tolist()
    [4.0, 0.0, 4.0]
    """
    held = m > 0
    return m.sum(-1, keepdim=True) * held / held.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, eq=False)
class ClassStats:
    """Class-wise second moments, means and counts of features; a commutative monoid under `+`.

    `ClassStats.of(Z1) + ClassStats.of(Z2)` are the statistics of the union of the two sets, so
    streaming over batches, pooling over nodes and centralised evaluation are one operation.

    Attributes:
        V: (K, d, d) second moments V_k = Z_kᵀZ_k / m_k, symmetric, trace 1; zero where m_k = 0.
        mu: (K, d) class means; zero where m_k = 0.
        m: (K,) counts as floats; they may be fractional after `scaled`.
        sketch: covariances with a sketch of the samples, where there is one.
    """

    V: Tensor
    mu: Tensor
    m: Tensor
    sketch: SketchMoments | None = None

    @classmethod
    def of(cls, Z: Tensor, y: Tensor, num_classes: int, *, unit: bool = True, H: Tensor | None = None) -> "ClassStats":
        """Compute the statistics of features Z (m, d) with labels y (m,) in 0..K-1.

        Args:
            Z: features, one sample per row, rows of unit length (checked unless `unit` is false).
            y: integer labels.
            num_classes: K.
            unit: whether rows must have unit length; switch off for averaged features.
            H: (m, p) a sketch of the same samples, for sketch moments.

        >>> s = ClassStats.of(torch.eye(2), torch.tensor([0, 0]), num_classes=2)
        >>> s.V[0].tolist(), s.m.tolist()
        ([[0.5, 0.0], [0.0, 0.5]], [2.0, 0.0])
        """
        check_features(Z, y, num_classes, unit=unit)
        if H is not None:
            check_sketch(H, len(y))
        return cls.unchecked(Z, y, num_classes, H)

    @classmethod
    def unchecked(cls, Z: Tensor, y: Tensor, num_classes: int, H: Tensor | None = None) -> "ClassStats":
        """Compute what `of` does without a look at any value, for which the host would wait for the device."""
        groups = group_by_class(y.long(), num_classes)
        P = groups.pad(Z)  # (G, c, d)
        m = groups.m.to(Z.dtype)
        per = m.clamp(min=1)
        V = groups.sum_by_class(P.mT @ P) / per[:, None, None]
        mu = groups.sum_by_class(P.sum(dim=1)) / per[:, None]
        # A blocked product is symmetric only to rounding; the wire format keeps one triangle.
        V = (V + V.mT) / 2
        if H is None:
            return cls(V, mu, m)
        H = H.to(Z.dtype)
        R = groups.pad(torch.cat([H, H.square().sum(1, keepdim=True)], dim=1))  # (G, c, p + 1)
        products, sums = groups.sum_by_class(P.mT @ R[:, :, :-1]), groups.sum_by_class(R.sum(dim=1))
        return cls(V, mu, m, SketchMoments.of(products, sums, per, mu))

    @classmethod
    def without_means(cls, V: Tensor, m: Tensor) -> "ClassStats":
        """Wrap second moments (K, d, d) and counts (K,) where class means are not needed."""
        return cls(V, V.new_zeros(V.shape[:2]), m)

    @classmethod
    def sum(cls, parts: Iterable["ClassStats"]) -> "ClassStats":
        """Return the statistics of the union of all parts (at least one)."""
        return reduce(add, parts)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parts by name, as checkpoints and answers between processes hold them."""
        return {"V": self.V, "mu": self.mu, "m": self.m, **(self.sketch.tensors() if self.sketch else {})}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClassStats":
        """Read what `tensors` returned; other names beside these are left alone."""
        sketch = SketchMoments(tensors["C"], tensors["h"], tensors["v"]) if "C" in tensors else None
        return cls(tensors["V"], tensors["mu"], tensors["m"], sketch)

    @property
    def num_classes(self) -> int:
        """K."""
        return self.V.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return self.V.shape[-1]

    @property
    def proportions(self) -> Tensor:
        """π_k = m_k / Σ m, shape (K,); zeros when there are no samples at all."""
        total = self.m.sum()
        return self.m / torch.where(total > 0, total, torch.ones_like(total))

    @property
    def held(self) -> Tensor:
        """(K,) booleans: which classes have samples."""
        return self.m > 0

    def __add__(self, other: "ClassStats") -> "ClassStats":
        if not isinstance(other, ClassStats):
            return NotImplemented
        if self.V.shape != other.V.shape:
            raise InputError(
                f"other must have the same K and d to be added: {tuple(self.V.shape)} "
                f"against {tuple(other.V.shape)}. Compute both with the same num_classes and encoder width."
            )
        m = self.m + other.m
        total = torch.where(m > 0, m, torch.ones_like(m))
        w, v = self.m / total, other.m / total
        V = w[:, None, None] * self.V + v[:, None, None] * other.V
        sketch = self.sketch.merged(other.sketch, w, v, self.mu - other.mu) if self.sketch and other.sketch else None
        return ClassStats(V, w[:, None] * self.mu + v[:, None] * other.mu, m, sketch)

    def scaled(self, weight: float) -> "ClassStats":
        """Count every sample `weight` times (1/S_i for an agent in S_i clusters)."""
        if not weight >= 0:
            raise InputError(f"weight must not be negative; got {weight}. Use 1/S_i for replicas.")
        keep = (self.m * weight > 0).to(self.V.dtype)
        sketch = self.sketch and self.sketch.kept(keep)
        return ClassStats(self.V * keep[:, None, None], self.mu * keep[:, None], self.m * weight, sketch)

    def balanced(self) -> "ClassStats":
        """Count all classes held equally often, the total kept: the proportions of class-balanced sampling."""
        return replace(self, m=balanced_counts(self.m))

    def mixture(self) -> Tensor:
        """Return Σ_k π_k V_k, shape (d, d): the second moment of all samples together."""
        return torch.einsum("k,kij->ij", self.proportions, self.V)

    def covariance(self) -> Tensor:
        """Return V_k − μ_k μ_kᵀ, shape (K, d, d): the spread of each class about its mean."""
        return self.V - self.mu[:, :, None] * self.mu[:, None, :]

    def spread(self) -> Tensor:
        """Return tr(V_k − μ_k μ_kᵀ), shape (K,): the variance of each class."""
        return (self.V.diagonal(dim1=1, dim2=2).sum(1) - self.mu.square().sum(1)).clamp(min=0)

    def rotated(self, Q: Tensor) -> "ClassStats":
        """Return the statistics of Z Qᵀ: Q V_k Qᵀ, Q μ_k and Q C_k, for an orthogonal Q (d, d)."""
        V = Q @ self.V @ Q.mT
        return ClassStats((V + V.mT) / 2, self.mu @ Q.mT, self.m, self.sketch and self.sketch.rotated(Q))


def check_stats(stats: ClassStats, name: str) -> None:
    """Require statistics made of finite tensors."""
    if not isinstance(stats, ClassStats) or not all(isinstance(part, Tensor) for part in stats.tensors().values()):
        raise InputError(f"{name} must be ClassStats of tensors; got {type(stats).__name__}. Use ClassStats.of.")
    sums = [part.reshape(len(part), -1).sum(1) for part in stats.tensors().values()]
    finite = torch.isfinite(torch.stack(sums).sum(0))
    if not bool(finite.all()):
        k = int((~finite).nonzero()[0])
        raise InputError(f"{name} must be finite; class {k} is not. Look for a diverged encoder or a broken message.")


def nearest_moments(V: Tensor) -> Tensor:
    """Return the nearest symmetric positive semi-definite matrices of trace 1, in Frobenius norm.

    The eigenvectors stay and the eigenvalues are projected onto the simplex. The set is convex, so a projection brings
    an estimate closer to every second moment, the true one included: it can only lower the error of a lossy message.

    Args:
        V: (..., d, d) finite matrices; of each the symmetric part counts.

    >>> nearest_moments(torch.tensor([[1.2, 0.0], [0.0, -0.1]])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    values, U = torch.linalg.eigh((V + V.mT) / 2)
    near: Tensor = (U * _on_simplex(values)[..., None, :]) @ U.mT
    return (near + near.mT) / 2


def _on_simplex(values: Tensor) -> Tensor:
    """Return the nearest points (..., d) with entries ≥ 0 that add to 1: one shift for all, what is negative is 0."""
    falling = values.sort(dim=-1, descending=True).values
    shifts = (falling.cumsum(-1) - 1) / torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    last = (falling > shifts).sum(-1, keepdim=True) - 1  # the largest number of entries that stay positive
    return (values - shifts.gather(-1, last.clamp(min=0))).clamp(min=0)
