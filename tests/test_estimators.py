"""Nearest subspace as a scikit-learn classifier: its contract, its labels, its tensors, and the core's numbers."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ratemesh import ClassStats, NearestSubspace
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.data.files import Array
from ratemesh.errors import InputError

K, D, M, RANK = 3, 12, 90, 2


def draw(seed: int, classes: range = range(K)) -> tuple[Array, Array]:
    """Samples (m, D) near affine planes of their own, one a class, and codes (m,)."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    planes, means = fixed.normal(size=(K + 1, RANK, D)), 0.3 * fixed.normal(size=(K + 1, D))
    y = np.repeat(list(classes), M // len(classes))
    X = np.einsum("mr,mrd->md", rng.normal(size=(len(y), RANK)), planes[y]) + means[y]
    return X + 0.05 * rng.normal(size=X.shape), y


WORDS = np.array(["pear", "apple", "quince"])
X, CODES = draw(1)
Y = WORDS[CODES]
ASKED, TRUTH = draw(2)


@parametrize_with_checks([NearestSubspace(), NearestSubspace("average", rank=0)])
def test_scikit_learns_own_checks(estimator: NearestSubspace, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def test_words_come_back_and_residuals_are_the_cores() -> None:
    fitted = NearestSubspace(rank=RANK).fit(X, Y)
    assert fitted.classes_.tolist() == ["apple", "pear", "quince"]
    assert (fitted.predict(ASKED) == WORDS[TRUTH]).mean() > 0.97
    codes = np.unique(Y, return_inverse=True)[1]
    core = SubspaceJudge(rank=RANK).fit(torch.tensor(X), torch.tensor(codes)).residuals(torch.tensor(ASKED))
    assert np.allclose(fitted.decision_function(ASKED), -core.numpy(), atol=1e-9)
    assert np.allclose(fitted.score_samples(ASKED), -core.numpy().min(1), atol=1e-9)


def test_two_classes_have_one_decision() -> None:
    two = CODES < 2
    fitted = NearestSubspace(rank=RANK).fit(X[two], Y[two])
    decision = fitted.decision_function(ASKED)
    assert decision.shape == (len(ASKED),)
    assert ((decision > 0) == (fitted.predict(ASKED) == "pear")).all()


def test_where_the_origin_is_does_not_matter() -> None:
    near, far = (NearestSubspace(rank=RANK).fit(X + at, Y).decision_function(ASKED + at) for at in (0.0, 1e4))
    assert np.allclose(near, far, atol=1e-6)


def test_subspaces_that_would_meet_are_narrower() -> None:
    """Of four columns 95 % of a class's variance take three directions; two such subspaces share a line."""
    flowers = load_iris()
    score = cross_val_score(NearestSubspace(), flowers.data, flowers.target)
    assert score.mean() > 0.9
    for most in (2, None):
        fitted = NearestSubspace(most=most).fit(flowers.data, flowers.target)
        assert fitted.judge_.rule.most == 1
    assert NearestSubspace(rank=3).fit(flowers.data, flowers.target).judge_.rule.rank == 3


def test_strangers_score_lower() -> None:
    fitted = NearestSubspace(rank=RANK).fit(X, Y)
    strangers, _ = draw(3, range(K, K + 1))
    assert fitted.score_samples(ASKED).min() > np.median(fitted.score_samples(strangers))


def test_neighbours_are_training_rows() -> None:
    fitted = NearestSubspace().fit(X, Y)
    distances, rows = fitted.kneighbors(ASKED, n_neighbors=4)
    expected = NearestNeighbors(n_neighbors=4, algorithm="brute").fit(X).kneighbors(ASKED)
    assert np.allclose(distances, expected[0])
    assert (rows == expected[1]).all()
    assert (fitted.kneighbors(X[:5], 1, return_distance=False)[:, 0] == range(5)).all()
    assert not (fitted.kneighbors(n_neighbors=1, return_distance=False)[:, 0] == range(len(X))).any()


def test_one_class_is_enough_to_score() -> None:
    fitted = NearestSubspace(rank=RANK).fit(X[CODES == 0], Y[CODES == 0])
    assert set(fitted.predict(ASKED)) == {"pear"}
    scores = fitted.score_samples(ASKED)
    assert np.median(scores[TRUTH == 0]) > np.quantile(scores[TRUTH == 1], 0.9)


def test_pipelines_searches_clones_and_pickles() -> None:
    pipeline = make_pipeline(StandardScaler(), NearestSubspace())
    search = GridSearchCV(pipeline, {"nearestsubspace__rank": [0, RANK]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"nearestsubspace__rank": RANK}
    assert search.score(ASKED, WORDS[TRUTH]) > 0.97
    copy = clone(search.best_estimator_)
    assert copy[-1].get_params() == {"fusion": "energy", "energy": 0.95, "rank": RANK, "most": 30}
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert (again.predict(ASKED) == search.predict(ASKED)).all()
    sure = CalibratedClassifierCV(NearestSubspace(rank=RANK), cv=3).fit(X, Y).predict_proba(ASKED)
    assert (sure.argmax(1) == np.unique(WORDS, return_inverse=True)[1][TRUTH]).mean() > 0.95


def test_columns_keep_their_names() -> None:
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(D)])
    fitted = NearestSubspace().fit(frame, Y)
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame[frame.columns[::-1]])
    assert not hasattr(fitted.fit(torch.tensor(X), Y), "feature_names_in_")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_in_tensors_out(dtype: torch.dtype) -> None:
    Z, y = torch.tensor(X, dtype=dtype), torch.tensor(CODES) + 5
    fitted = NearestSubspace(rank=RANK).fit(Z, y)
    found = fitted.predict(Z)
    assert isinstance(found, torch.Tensor)
    assert fitted.score(Z, y) == float((found == y).double().mean()) > 0.97
    assert fitted.decision_function(Z).dtype == fitted.score_samples(Z).dtype == dtype
    assert isinstance(fitted.predict(X), np.ndarray)
    assert isinstance(NearestSubspace().fit(Z, Y).predict(Z), np.ndarray), "words are no tensors"


def test_statistics_are_enough() -> None:
    Z, y = torch.tensor(X), torch.tensor(CODES)
    stats = ClassStats.of(Z, y, K, unit=False)
    fitted = NearestSubspace(rank=RANK).fit_stats(stats)
    core = SubspaceJudge(rank=RANK).fit_stats(stats)
    assert torch.equal(fitted.predict(Z), core.predict(Z))
    assert torch.equal(fitted.decision_function(Z), -core.residuals(Z))
    assert (fitted.fit_stats(stats, WORDS).predict(X) == WORDS[core.predict(Z).numpy()]).all()
    with pytest.raises(InputError, match="fit_stats has seen none"):
        fitted.kneighbors(X)
    with pytest.raises(InputError, match=r"classes must be 3 labels.*\(2,\)"):
        fitted.fit_stats(stats, ["a", "b"])


@pytest.mark.parametrize("fusion", ["energy", "average"])
def test_several_encoders_of_the_same_samples(fusion: str) -> None:
    other = np.random.default_rng(4).normal(size=X.shape)
    both, asked = np.stack([X, X + 0.02 * other]), np.stack([ASKED, ASKED])
    fitted = NearestSubspace(fusion, rank=RANK).fit(both, Y)
    core = SubspaceJudge(fusion, rank=RANK).fit(torch.tensor(both), torch.tensor(np.unique(Y, return_inverse=True)[1]))
    assert np.allclose(-fitted.decision_function(asked), core.residuals(torch.tensor(asked)).numpy(), atol=1e-9)
    assert np.allclose(fitted.kneighbors(asked)[0], NearestNeighbors().fit(both.mean(0)).kneighbors(ASKED)[0])
    assert fitted.score(asked, WORDS[TRUTH]) > 0.97
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        NearestSubspace().fit(both, Y[1:])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.zeros(3), "X must be features"),
        (torch.zeros(3, D + 1), f"X must have {D} features"),
        (torch.full((3, D), torch.nan), "X must be finite"),
        (np.zeros((2, 3, D + 1)), f"X has {D + 1} features"),
        (np.full((2, 3, D), np.inf), "infinity"),
    ],
)
def test_refusals(wrong: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NearestSubspace().fit(X, Y).predict(wrong)


@pytest.mark.parametrize(
    ("options", "words"), [({"fusion": "sum"}, "fusion"), ({"energy": 2}, "energy"), ({"most": 0}, "most")]
)
def test_settings_are_checked_when_it_is_fitted(options: dict[str, object], words: str) -> None:
    estimator = NearestSubspace(**options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{words} must"):
        estimator.fit(X, Y)
    with pytest.raises(NotFittedError):
        estimator.predict(X)
