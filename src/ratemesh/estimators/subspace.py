"""Nearest subspace as scikit-learn's classifiers are: any labels, arrays in and out, pipelines, searches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from ratemesh.core.checks import check_finite
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import Fusion, SubspaceJudge, SubspaceRule
from ratemesh.data.files import Array
from ratemesh.errors import InputError


class NearestSubspace(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Classify by the smallest squared residual to a class's affine subspace of leading principal directions.

    Arrays in, arrays out; tensors in, tensors out, on their device. Features are (m, d), or (N, m, d) of N encoders
    that look at the same samples. There is no `predict_proba`: residuals have no scale that would make them
    probabilities; `CalibratedClassifierCV` measures one.

    Args:
        fusion: of features (N, m, d): "energy" adds the encoders' residuals, "average" averages features (paper).
        energy: a subspace has the fewest directions that hold this part of its class's variance,
        most: but no more than this, None is no limit; and no more than (d − 1)/2, because two affine subspaces of more
            directions meet somewhere, and what lies there is in both.
        rank: if given, the number of directions of every subspace instead; 0 is nearest class mean.

    Attributes:
        classes_: (K,) the labels, sorted.
        n_features_in_: d.
        feature_names_in_: (d,) names of the columns, where they had names.
        judge_: the subspaces, as `ratemesh.core.subspace.SubspaceJudge`.

    >>> X = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    >>> NearestSubspace(rank=1).fit(X, ["a", "a", "b", "b"]).predict(2 * X).tolist()
    ['a', 'a', 'b', 'b']
    """

    def __init__(
        self, fusion: Fusion = "energy", *, energy: float = 0.95, rank: int | None = None, most: int | None = 30
    ) -> None:
        self.fusion = fusion
        self.energy = energy
        self.rank = rank
        self.most = most

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> "NearestSubspace":
        """Fit on features (m, d), or (N, m, d) of N encoders, all of them pooled; labels (m,) of any kind."""
        Z, names = self._features(X, reset=True), _labels(y)
        judge = self._judge(Z.shape[-1])
        check_consistent_length(range(Z.shape[-2]), names)
        self.classes_, codes = np.unique(names, return_inverse=True)
        # Affine subspaces do not care where the origin is, but rounding does: V − μμᵀ cancels far from it.
        self._origin = Z.flatten(0, -2).mean(0)
        self.judge_ = judge.fit(Z - self._origin, torch.from_numpy(codes).to(Z.device), len(self.classes_))
        self._index: NearestNeighbors | None = NearestNeighbors().fit(_one_encoder(Z))
        return self

    def fit_stats(self, stats: ClassStats, classes: Sequence[Any] | Array | None = None) -> "NearestSubspace":
        """Fit on class statistics, e.g. the sum over sites: no features need to be shared.

        Args:
            classes: (K,) the labels in the order of the statistics; left out: 0..K-1.
        """
        self.judge_ = self._judge(stats.d).fit_stats(stats)
        K = stats.num_classes
        self.classes_ = np.arange(K) if classes is None else np.asarray(classes)
        if self.classes_.shape != (K,):
            raise InputError(f"classes must be {K} labels, one a class; got an array of shape {self.classes_.shape}.")
        self.n_features_in_ = stats.d
        self._origin, self._index = torch.zeros_like(stats.mu[0]), None
        return self

    def predict(self, X: Any) -> Any:
        """Return labels (m,) of features (m, d) or (N, m, d); words as an array, whatever the features came as."""
        codes = self._residuals(X).argmin(-1)
        if isinstance(X, Tensor) and self.classes_.dtype.kind in "biuf":
            return torch.from_numpy(self.classes_).to(codes.device)[codes]
        return self.classes_[codes.cpu().numpy()]

    def decision_function(self, X: Any) -> Any:
        """Return minus the residuals (m, K); of two classes (m,), the first one's residual minus the second one's."""
        r = self._residuals(X)
        return _as_given(X, r[:, 0] - r[:, 1] if len(self.classes_) == 2 else -r)

    def score_samples(self, X: Any) -> Any:
        """Return minus the smallest residual, (m,): the lower, the less a sample is like any class of the training.

        Of the scores that were tried it was chosen on classes held out for that (experiments/RESULTS.md, "Samples of no
        known class").
        """
        return _as_given(X, -self._residuals(X).min(-1).values)

    def kneighbors(self, X: Any = None, n_neighbors: int = 5, return_distance: bool = True) -> Any:
        """Return distances and row numbers (m, n_neighbors) of the training features nearest to features, as arrays.

        Args:
            X: features (m, d), or (N, m, d), which are averaged over the encoders, as those of the training were; left
                out: the training features, each without itself.
            return_distance: whether to return distances, too; else only row numbers.
        """
        check_is_fitted(self, "judge_")
        if self._index is None:
            raise InputError("kneighbors needs features to look in; fit_stats has seen none. Fit with features.")
        rows = None if X is None else _one_encoder(self._features(X, reset=False))
        return self._index.kneighbors(rows, n_neighbors, return_distance)

    def _judge(self, d: int) -> SubspaceJudge:
        """Return the rule that the settings stand for in d dimensions; refuse settings that make no sense."""
        rule = SubspaceRule(self.energy, self.rank, self.most)
        apart = (d - 1) // 2
        if self.rank is None and apart < (d if self.most is None else self.most):
            rule = replace(rule, most=apart) if apart else replace(rule, rank=0)
        return SubspaceJudge(self.fusion, rule=rule)

    def _residuals(self, X: Any) -> Tensor:
        """Return squared residuals (m, K)."""
        check_is_fitted(self, "judge_")
        return self.judge_.residuals(self._features(X, reset=False).to(self._origin) - self._origin)

    def _features(self, X: Any, *, reset: bool) -> Tensor:
        """Return features (m, d) or (N, m, d) as a tensor, at least of float32; arrays as float64."""
        if isinstance(X, Tensor):
            return self._tensor(X, reset=reset)
        if getattr(X, "ndim", 2) != 3:
            return torch.tensor(validate_data(self, X, reset=reset, dtype=np.float64))
        rows = np.asarray(X).reshape(-1, X.shape[2])
        return torch.tensor(validate_data(self, rows, reset=reset, dtype=np.float64)).reshape(X.shape)

    def _tensor(self, X: Tensor, *, reset: bool) -> Tensor:
        """Check a tensor of features as arrays are checked."""
        if X.ndim not in (2, 3) or X.is_complex() or not X.numel():
            raise InputError(
                f"X must be features (m, d) or (N, m, d), real, at least one; got {X.dtype} of {tuple(X.shape)}."
            )
        if reset:
            self.n_features_in_ = X.shape[-1]
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        elif X.shape[-1] != self.n_features_in_:
            raise InputError(f"X must have {self.n_features_in_} features as in the fit; got {X.shape[-1]}.")
        check_finite(X, "X")
        return X.detach().to(torch.promote_types(X.dtype, torch.float32))


def _labels(y: Any) -> Array:
    """Return labels (m,) as an array; refuse what are no classes."""
    y = column_or_1d(y.cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
    y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
    check_classification_targets(y)
    return np.asarray(y)


def _one_encoder(Z: Tensor) -> Array:
    """Return features (m, d), or (N, m, d) averaged, as an array."""
    return (Z.mean(0) if Z.ndim == 3 else Z).cpu().numpy()


def _as_given(X: Any, values: Tensor) -> Any:
    """Return a tensor where tensors came, else an array."""
    return values if isinstance(X, Tensor) else values.cpu().numpy()
