"""Nearest neighbours and the linear probe against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

from ratemesh.errors import InputError
from ratemesh.metrics import probes
from ratemesh.metrics.probes import accuracy, fit_linear, knn_predict

seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blobs(n_k, K=4, d=6, seed=0, apart=1.0):
    """Return K classes around distinct means, of which a classifier gets some wrong, and their labels."""
    y = torch.arange(K).repeat(n_k)
    return apart * torch.eye(K, d, dtype=torch.float64)[y] + 0.5 * normal(len(y), d, seed=seed), y


@given(st.integers(1, 30), st.sampled_from([0.05, 0.1, 1.0]), seeds)
def test_neighbours_are_scikit_learns(k, temperature, seed):
    Z, y = blobs(8, seed=seed)
    Z_new, _ = blobs(5, seed=seed + 1)
    reference = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / temperature)
    ).fit(Z.numpy(), y.numpy())
    found = knn_predict(Z, y, Z_new, k=k, temperature=temperature)
    assert found.tolist() == reference.predict(Z_new.numpy()).tolist()


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


def test_neighbours_come_out_the_same_in_pieces(monkeypatch):
    Z, y = blobs(10)
    Z_new, _ = blobs(6, seed=1)
    whole = knn_predict(Z, y, Z_new)
    monkeypatch.setattr(probes, "CHUNK", 7)
    assert torch.equal(knn_predict(Z, y, Z_new), whole)


@given(st.sampled_from([1e-3, 0.01, 1.0]), seeds)
def test_the_linear_probe_is_ridge_regression_on_indicators(ridge, seed):
    Z, y = blobs(8, seed=seed)
    Z = Z + 2
    penalty = ridge * float(torch.cov(Z.T, correction=0).trace()) / Z.shape[1] * len(Z)
    reference = Ridge(alpha=penalty).fit(Z.numpy(), np.eye(4)[y.numpy()])
    found = fit_linear(Z, y, ridge=ridge)
    assert found.W.numpy() == pytest.approx(reference.coef_.T, abs=1e-8)
    assert found.b.numpy() == pytest.approx(reference.intercept_, abs=1e-8)
    assert found.predict(Z).tolist() == reference.predict(Z.numpy()).argmax(1).tolist()


def test_the_linear_probe_is_as_good_as_logistic_regression_and_beats_chance():
    Z, y = blobs(100, seed=1)
    Z_new, y_new = blobs(100, seed=2)
    logistic = LogisticRegression(max_iter=1000).fit(Z.numpy(), y.numpy()).score(Z_new.numpy(), y_new.numpy())
    found = accuracy(fit_linear(Z, y).predict(Z_new), y_new)
    assert 0.6 < logistic < 0.95  # some are wrong, or there were nothing to compare
    assert found == pytest.approx(logistic, abs=0.03)


@given(st.sampled_from([1e-3, 1e3]), seeds)
def test_the_linear_probe_sees_neither_frame_nor_scale_nor_shift(orthogonal, scale, seed):
    Z, y = blobs(8, seed=seed)
    moved = scale * (Z @ orthogonal(6, seed) + 1)
    assert torch.equal(fit_linear(moved, y).predict(moved), fit_linear(Z, y).predict(Z))


def test_a_linear_probe_cannot_read_classes_without_means_and_neighbours_can():
    """What MCR² learns may look like this: two lines through the origin, samples on both sides."""
    side = normal(200, 1).sign()
    y = torch.arange(2).repeat(100)
    Z = side * torch.eye(2, dtype=torch.float64)[y] + 0.05 * normal(200, 2, seed=1)
    assert accuracy(knn_predict(Z, y, Z, k=20), y) == 1
    assert accuracy(fit_linear(Z, y).predict(Z), y) < 0.8


def test_labels_keep_their_names_and_absent_ones_are_never_predicted():
    Z, y = blobs(10, K=3, apart=3.0)
    names = torch.tensor([7, 2, 4])[y]
    assert set(fit_linear(Z, names).labels.tolist()) == {2, 4, 7}
    assert accuracy(fit_linear(Z, names).predict(Z), names) == 1
    assert set(knn_predict(Z, names, -Z, k=5).tolist()) <= {2, 4, 7}
    assert set(fit_linear(Z, names).predict(normal(500, 6)).tolist()) <= {2, 4, 7}


def test_constant_features_give_the_most_frequent_class():
    found = fit_linear(torch.ones(5, 3), torch.tensor([0, 1, 1, 1, 2]))
    assert found.predict(normal(4, 3)).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda Z, y: knn_predict(Z, y, Z, k=0), "k must be at least 1; got 0"),
        (lambda Z, y: knn_predict(Z, y, Z, temperature=0), "temperature must be positive; got 0"),
        (lambda Z, y: knn_predict(Z, y, Z[:, :1]), r"Z_new must have shape \(q, 2\)"),
        (lambda Z, y: knn_predict(Z, y, Z / 0), "Z_new must be finite"),
        (lambda Z, y: knn_predict(Z[:0], y[:0], Z), "it is empty"),
        (lambda Z, y: knn_predict(Z / 0, y, Z), "Z must be finite"),
        (lambda Z, y: fit_linear(Z, y[:1]), r"y must have shape \(2,\)"),
        (lambda Z, y: fit_linear(Z, y, ridge=0), "ridge must be positive; got 0"),
    ],
)
def test_what_cannot_be_probed_is_said(call, words):
    with pytest.raises(InputError, match=words):
        call(torch.eye(2), torch.tensor([0, 1]))
