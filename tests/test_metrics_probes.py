"""Nearest neighbours and the linear probe against their definitions, by loops and in closed form."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from ratemesh.core.subspace import accuracy
from ratemesh.errors import InputError
from ratemesh.metrics.accuracies import knn_predict, linear_predict

seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blobs(n_k, K=4, d=6, seed=0, apart=1.0):
    """Return K classes around distinct means, of which a classifier gets some wrong, and their labels."""
    y = torch.arange(K).repeat(n_k)
    return apart * torch.eye(K, d, dtype=torch.float64)[y] + 0.5 * normal(len(y), d, seed=seed), y


@given(st.integers(1, 30), st.sampled_from([0.05, 0.1, 1.0]), seeds)
def test_neighbours_vote_by_cosine(k, temperature, seed):
    Z, y = blobs(8, seed=seed)
    Z_new, _ = blobs(5, seed=seed + 1)
    expected = []
    for query in Z_new.numpy():
        s = np.array([query @ z / np.linalg.norm(query) / np.linalg.norm(z) for z in Z.numpy()])
        nearest = np.argsort(-s)[:k]
        votes = [sum(np.exp(s[i] / temperature) for i in nearest if y[i] == label) for label in range(4)]
        expected.append(int(np.argmax(votes)))
    assert knn_predict(Z, y, Z_new, k=k, temperature=temperature).tolist() == expected


def test_more_neighbours_than_samples_are_all_samples():
    Z, y = blobs(5)
    assert torch.equal(knn_predict(Z, y, Z, k=200), knn_predict(Z, y, Z, k=20))
    assert knn_predict(Z, y, Z, k=1).tolist() == y.tolist()


def test_near_samples_outvote_many_far_ones():
    """One sample at cosine 1 against nine at cosine 0: e^10 > 9 at T = 0.1, e^(1/T) < 9 at T = 1."""
    Z = torch.eye(2)[[0] + [1] * 9]
    y = torch.tensor([3] + [1] * 9)
    assert knn_predict(Z, y, torch.tensor([[2.0, 0.0]])).tolist() == [3]
    assert knn_predict(Z, y, torch.tensor([[2.0, 0.0]]), temperature=1.0).tolist() == [1]


def closed_form(Z, y, Z_new, ridge):
    """Return labels by (S + λI)⁻¹ C, S the covariance of the features and C theirs with the classes' indicators."""
    X, E = Z.numpy() - Z.numpy().mean(0), np.eye(int(y.max()) + 1)[y.numpy()]
    S, C = X.T @ X / len(X), X.T @ (E - E.mean(0)) / len(X)
    W = np.linalg.solve(S + ridge * np.trace(S) / len(S) * np.eye(len(S)), C)
    return ((Z_new.numpy() - Z.numpy().mean(0)) @ W + E.mean(0)).argmax(1).tolist()


@given(st.sampled_from([1e-3, 0.01, 1.0, 100.0]), st.integers(2, 4), seeds)
def test_the_linear_probe_is_ridge_regression_on_indicators(ridge, K, seed):
    Z, y = blobs(8, K=K, seed=seed)
    Z_new, _ = blobs(20, K=K, seed=seed + 1)
    assert linear_predict(Z + 2, y, Z_new + 2, ridge=ridge).tolist() == closed_form(Z + 2, y, Z_new + 2, ridge)


def test_the_linear_probe_is_as_good_as_logistic_regression_and_beats_chance():
    Z, y = blobs(100, seed=1)
    Z_new, y_new = blobs(100, seed=2)
    logistic = LogisticRegression(max_iter=1000).fit(Z.numpy(), y.numpy()).score(Z_new.numpy(), y_new.numpy())
    found = accuracy(linear_predict(Z, y, Z_new), y_new)
    assert 0.6 < logistic < 0.95  # some are wrong, or there were nothing to compare
    assert found == pytest.approx(logistic, abs=0.03)


@given(st.sampled_from([1e-3, 1e3]), seeds)
def test_the_linear_probe_sees_neither_frame_nor_scale_nor_shift(orthogonal, scale, seed):
    Z, y = blobs(8, seed=seed)
    moved = scale * (Z @ orthogonal(6, seed) + 1)
    assert torch.equal(linear_predict(moved, y, moved), linear_predict(Z, y, Z))


def test_a_linear_probe_cannot_read_classes_without_means_and_neighbours_can():
    """What MCR² learns may look like this: two lines through the origin, samples on both sides."""
    side = normal(200, 1).sign()
    y = torch.arange(2).repeat(100)
    Z = side * torch.eye(2, dtype=torch.float64)[y] + 0.05 * normal(200, 2, seed=1)
    assert accuracy(knn_predict(Z, y, Z, k=20), y) == 1
    assert accuracy(linear_predict(Z, y, Z), y) < 0.8


def test_labels_keep_their_names_and_absent_ones_are_never_predicted():
    Z, y = blobs(10, K=3, apart=3.0)
    names = torch.tensor([7, 2, 4])[y]
    assert accuracy(linear_predict(Z, names, Z), names) == 1
    assert set(knn_predict(Z, names, -Z, k=5).tolist()) <= {2, 4, 7}
    assert set(linear_predict(Z, names, normal(500, 6)).tolist()) <= {2, 4, 7}


def test_constant_features_give_the_most_frequent_class():
    found = linear_predict(torch.ones(5, 3), torch.tensor([0, 1, 1, 1, 2]), normal(4, 3))
    assert found.tolist() == [1, 1, 1, 1]


def test_a_node_of_one_class_knows_no_other():
    Z = normal(6, 3)
    for predict in (knn_predict, linear_predict):
        assert predict(Z, torch.full((6,), 5), normal(4, 3, seed=1)).tolist() == [5] * 4


@pytest.mark.parametrize("predict", [knn_predict, linear_predict])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda Z, y: (Z, y[:1], Z), r"y must have shape \(2,\)"),
        (lambda Z, y: (Z[:0], y[:0], Z), "it is empty"),
        (lambda Z, y: (Z / 0, y, Z), "Z must be finite"),
        (lambda Z, y: (Z, y, Z / 0), "Z_new must be finite"),
    ],
)
def test_what_cannot_be_probed_is_said(predict, change, words):
    with pytest.raises(InputError, match=words):
        predict(*change(torch.eye(2), torch.tensor([0, 1])))
