"""How well simple classifiers read a representation: nearest neighbours and a linear probe."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from ratemesh.core.checks import check_features, check_finite
from ratemesh.errors import InputError

CHUNK = 1000
"""Samples whose neighbours are looked up at once: bounds the matrix of similarities."""


def knn_predict(Z: Tensor, y: Tensor, Z_new: Tensor, *, k: int = 200, temperature: float = 0.1) -> Tensor:
    """Return labels (q,) of features Z_new (q, d) by a vote of the k nearest of Z (m, d), labels y (m,).

    Nearness is the cosine s; a neighbour's vote weighs exp(s / T). With fewer than k samples all of them vote.
    """
    _check(Z, y, Z_new)
    if k < 1:
        raise InputError(f"k must be at least 1; got {k}. 200 is usual; it is capped at the number of samples.")
    if not temperature > 0:
        raise InputError(f"temperature must be positive; got {temperature}. 0.1 is usual.")
    known, num_classes = normalize(Z.double(), dim=1), int(y.max()) + 1
    labels = []
    for part in normalize(Z_new.double(), dim=1).split(CHUNK):
        s, nearest = (part @ known.mT).topk(min(k, len(known)), dim=1)
        votes = part.new_zeros(len(part), num_classes).scatter_add(1, y.long()[nearest], (s / temperature).exp())
        labels.append(votes.argmax(1))
    return torch.cat(labels)


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A linear classifier: the label with the largest score z W + b.

    Attributes:
        W: (d, C) weights.
        b: (C,) offsets.
        labels: (C,) labels of the columns, the classes seen when fitting.
    """

    W: Tensor
    b: Tensor
    labels: Tensor

    def predict(self, Z: Tensor) -> Tensor:
        """Return labels (q,) of features (q, d)."""
        return self.labels[(Z.to(self.W.dtype) @ self.W + self.b).argmax(1)]


def fit_linear(Z: Tensor, y: Tensor, *, ridge: float = 0.01) -> LinearProbe:
    """Fit indicators of the classes by ridge regression: closed form, so that it repeats to the bit.

    W = (S + λI)⁻¹ C with the covariance S of the features (m, d), their covariance C with the indicators, and
    λ = ridge · tr(S)/d, relative, so that the scale of the features does not matter. The offset is not penalised.
    """
    _check(Z, y, Z)
    if not ridge > 0:
        raise InputError(f"ridge must be positive; got {ridge}. 0.01 adds 1 % of the mean variance.")
    labels, column = y.unique(return_inverse=True)
    Z, indicators = Z.double(), one_hot(column).double()
    centre, share = Z.mean(0), indicators.mean(0)
    X = Z - centre
    S = X.mT @ X / len(X)
    # Constant features leave S = 0; any λ > 0 then gives W = 0, the most frequent class.
    S.diagonal().add_((ridge * S.trace() / len(S)).clamp(min=torch.finfo(S.dtype).tiny))
    W = torch.linalg.solve(S, X.mT @ (indicators - share) / len(X))
    return LinearProbe(W, share - centre @ W, labels)


def accuracy(predicted: Tensor, y: Tensor) -> float:
    """Return the part of labels (q,) that are right."""
    return float((predicted == y).double().mean())


def _check(Z: Tensor, y: Tensor, Z_new: Tensor) -> None:
    if not y.numel():
        raise InputError("y must hold labels to learn from; it is empty. Give at least one sample.")
    check_features(Z, y, max(int(y.max()) + 1, 1), unit=False)
    if Z_new.ndim != 2 or Z_new.shape[1] != Z.shape[1] or not len(Z_new):
        raise InputError(f"Z_new must have shape (q, {Z.shape[1]}), q > 0; got {tuple(Z_new.shape)}.")
    check_finite(Z_new, "Z_new")
