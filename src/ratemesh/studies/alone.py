"""What people do without a mesh: the best of scikit-learn on one site's images, or on all images in one place."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratemesh.data import Dataset
from ratemesh.data.augment import AugmentSpec
from ratemesh.metrics.language import own, recall_pairs
from ratemesh.seeds import generator

FOLDS, MANY = 5, 1000
COPIES, FINALISTS = 10, 4
"""Distorted copies of an image that the best few classifiers are given beside it, as augmentation gives networks."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Alone:
    """What sites reach by themselves, on held-out images.

    Attributes:
        own: accuracy of a site's classifier, mean over sites.
        together: accuracy of what most sites vote for.
        fine: how often the nearest image by its pixels has the same fine label; the same at every site.
    """

    own: float
    together: float
    fine: float


def best_of_scikit_learn(data: Dataset, parts: Sequence[Tensor], augment: AugmentSpec, seed: int) -> Alone:
    """Fit the best classifier at every site, chosen by cross-validation inside the site, and judge them.

    Args:
        data: images (m, C, H, W) with labels, and with fine ones for test images.
        parts: rows of the training images that each site holds.
        augment: how copies are distorted.
        seed: source of all that is random.
    """
    X_test, y_test = data.X_test.flatten(1).numpy(), data.y_test.numpy()
    said = np.stack([_site(data, rows, augment, seed, i).predict(X_test) for i, rows in enumerate(parts)])
    votes = np.stack([(said == k).sum(0) for k in range(data.num_classes)])
    fine = data.y_test if data.fine_test is None else data.fine_test
    return Alone(
        own=fmean(float((guess == y_test).mean()) for guess in said),
        together=float((votes.argmax(0) == y_test).mean()),
        fine=own(recall_pairs(data.X_test.flatten(1)[None], fine)),
    )


def _site(data: Dataset, rows: Tensor, augment: AugmentSpec, seed: int, index: int) -> Any:
    """Return the best classifier of one site: of those that are best on its images, and these with copies as well."""
    X, y, draw = data.X_train[rows], data.y_train[rows], generator(seed, "alone", index)
    wider = torch.stack([X, *(augment.apply(X, draw) for _ in range(COPIES))])
    plain = sorted(((_left_out(model, wider[:1], y, seed), wider[:1], model) for model in _classifiers()), key=_score)
    copied = [(_left_out(model, wider, y, seed), wider, model) for _, _, model in plain[-FINALISTS:]]
    _, shown, model = max([*plain, *copied], key=_score)
    return model.fit(*_stacked(shown, y))


def _score(found: tuple[float, Tensor, Any]) -> float:
    return found[0]


def _left_out(model: Any, shown: Tensor, y: Tensor, seed: int) -> float:
    """Return the accuracy on images left out in turn; of those left in, `shown` (copies, m, C, H, W) has copies.

    Of many images two turns are enough.
    """
    from sklearn.model_selection import StratifiedKFold  # slow to import, and only needed here

    folds = StratifiedKFold(min(FOLDS, int(y.bincount().min())), shuffle=True, random_state=seed)
    turns = list(folds.split(np.zeros(len(y)), y.numpy()))[: FOLDS if len(y) < MANY else 2]
    fitted = ((model.fit(*_stacked(shown[:, kept], y[kept])), out) for kept, out in turns)
    return fmean(float(found.score(*_stacked(shown[:1, out], y[out]))) for found, out in fitted)


def _stacked(shown: Tensor, y: Tensor) -> tuple[Array, Array]:
    """Return images and their copies (copies, m, ...) as rows of pixels, with labels."""
    return shown.flatten(2).flatten(0, 1).numpy(), y.repeat(len(shown)).numpy()


def _classifiers() -> list[Any]:
    """Return what is chosen from: support vector machines, a forest, logistic regression, neighbours."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    return [
        *(SVC(C=C, gamma=gamma) for C in (1, 10) for gamma in ("scale", 0.1, 0.2, 0.4)),
        ExtraTreesClassifier(100, random_state=0),
        *(LogisticRegression(C=C, max_iter=1000) for C in (0.1, 1)),
        *(KNeighborsClassifier(count, weights="distance") for count in (1, 3)),
    ]
