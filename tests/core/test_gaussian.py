"""Own Gaussians against scikit-learn's discriminant and against densities written out, and what they must not need."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor
from torch.distributions import MultivariateNormal

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from toy_stats import keep

D, K = 6, 3


@pytest.fixture(scope="module")
def nodes(unit_rows, orthogonal):
    """Return a function that draws features and labels of N nodes, classes with these counts."""

    def draw(counts, seed, N=3):
        y = torch.repeat_interleave(torch.arange(K), torch.tensor(counts))
        spread = torch.linspace(1, 0.1, D, dtype=torch.float64)
        return [(unit_rows(len(y), D, seed + i) * spread + 0.3 * orthogonal(D, seed + i)[y], y) for i in range(N)]

    return draw


def stats_of(nodes) -> list[ClassStats]:
    return [ClassStats.of(Z, y, K, unit=False) for Z, y in nodes]


def centred(scores: Tensor) -> Tensor:
    """Drop what a sample adds to the scores of all classes alike."""
    return scores - scores.mean(1, keepdim=True)


@given(seed=st.integers(0, 2**16), shrink=st.sampled_from([0.01, 0.1, 0.6, 1.0]))
def test_one_node_is_scikit_learns_discriminant(nodes, unit_rows, seed, shrink):
    found = nodes((9, 9, 9), seed, N=1)
    Z, y = found[0]
    X = unit_rows(7, D, seed + 50)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrink, priors=[1 / K] * K).fit(Z.numpy(), y.numpy())
    ours = OwnGaussians(shrink=shrink).fit(stats_of(found)).log_likelihoods(X[None])
    expected = centred(torch.from_numpy(theirs.decision_function(X.numpy())))
    np.testing.assert_allclose(centred(ours).numpy(), expected.numpy(), rtol=1e-8, atol=1e-9)


@given(seed=st.integers(0, 2**16))
def test_nodes_add_their_log_densities(nodes, unit_rows, seed):
    """Also with unequal classes: the covariance goes by samples, the decision does not."""
    found = nodes((12, 5, 3), seed)
    X = torch.stack([unit_rows(7, D, seed + 50 + i) for i in range(3)])
    expected = torch.zeros(7, K, dtype=torch.float64)
    for (Z, y), x in zip(found, X, strict=True):
        mu = torch.stack([Z[y == k].mean(0) for k in range(K)])
        rest = Z - mu[y]
        S = rest.T @ rest / len(y)
        S = 0.9 * S + 0.1 * S.trace() / D * torch.eye(D, dtype=S.dtype)
        expected += torch.stack([MultivariateNormal(m, S).log_prob(x) for m in mu], 1)
    scores = OwnGaussians().fit(stats_of(found)).log_likelihoods(X)
    torch.testing.assert_close(centred(scores), centred(expected), rtol=1e-8, atol=1e-8)


@given(seed=st.integers(0, 2**16))
def test_nodes_need_no_common_space(nodes, unit_rows, orthogonal, seed):
    found = nodes((8, 6, 7), seed)
    X = torch.stack([unit_rows(5, D, seed + 50 + i) for i in range(3)])
    turns = [orthogonal(D, seed + 90 + i) for i in range(3)]
    turned = [(Z @ Q.T, y) for (Z, y), Q in zip(found, turns, strict=True)]
    X_turned = torch.stack([x @ Q.T for x, Q in zip(X, turns, strict=True)])
    here = OwnGaussians().fit(stats_of(found)).log_likelihoods(X)
    there = OwnGaussians().fit(stats_of(turned)).log_likelihoods(X_turned)
    torch.testing.assert_close(here, there, rtol=1e-8, atol=1e-8)


def test_a_class_that_nobody_has_is_never_the_answer(nodes, unit_rows):
    found = stats_of(nodes((8, 0, 7), 1))
    scores = OwnGaussians().fit(found).log_likelihoods(torch.stack([unit_rows(20, D, i) for i in range(3)]))
    assert bool((scores[:, 1] == -torch.inf).all())
    assert bool(torch.isfinite(scores[:, [0, 2]]).all())


def test_collapsed_features_are_judged_by_their_means():
    """Neural collapse: no spread inside classes to measure by."""
    Z = torch.eye(K, D)
    y = torch.arange(K)
    judge = OwnGaussians().fit([ClassStats.of(Z, y, K)])
    assert judge.score((Z + 0.1)[None], y) == 1


@pytest.mark.parametrize("noise", [0.0, 1e-8, 1e-5, 1e-4, 1e-3])
def test_nearly_collapsed_features_in_float32(noise):
    """What is left of V − μμᵀ is rounding, of both signs."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(K).repeat(4)
    centres = torch.nn.functional.normalize(torch.randn(K, D, generator=draw), dim=1)
    Z = torch.nn.functional.normalize(centres[y] + noise * torch.randn(len(y), D, generator=draw), dim=1)
    judge = OwnGaussians().fit([ClassStats.of(Z, y, K)])
    assert judge.score(Z[None], y) == 1


def broken(stats):
    mu = stats.mu.clone()
    mu[1, 0] = torch.inf
    return ClassStats(stats.V, mu, stats.m)


def test_arrays_are_as_good_as_tensors(nodes, unit_rows):
    judge = OwnGaussians().fit(stats_of(nodes((5, 5, 5), 0)))
    Z = torch.stack([unit_rows(4, D, i) for i in range(3)])
    labels = judge.predict(Z)
    assert torch.equal(judge.predict(Z.numpy()), labels)
    assert torch.equal(judge.predict(Z.float()), labels)
    assert judge.score(Z.numpy(), labels.numpy()) == 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda s, X: OwnGaussians(shrink=0), r"shrink must lie in \(0, 1\]; got 0"),
        (lambda s, X: OwnGaussians().fit([]), "stats must hold one entry an encoder"),
        (lambda s, X: OwnGaussians().fit([s[0], keep(s[1], [0, 1])]), "the same classes at every encoder"),
        (lambda s, X: OwnGaussians().predict(X), "must be fitted before use"),
        (lambda s, X: OwnGaussians().fit(s).predict(X[0]), r"Z must have shape \(3, m, 6\)"),
        (lambda s, X: OwnGaussians().fit(s).predict(X / 0), "Z must be finite"),
        (lambda s, X: OwnGaussians().fit([broken(s[0])]), "stats must be finite; class 1 is not"),
        (lambda s, X: OwnGaussians().fit(s).predict(["a"]), "Z must be a tensor or an array of numbers; got list"),
        (lambda s, X: OwnGaussians().fit(s).score(X, torch.zeros(2)), "y must have one label per sample"),
    ],
)
def test_bad_input_is_refused_in_words(nodes, unit_rows, act, words):
    with pytest.raises(InputError, match=words):
        act(stats_of(nodes((5, 5, 5), 0)), torch.stack([unit_rows(4, D, i) for i in range(3)]))
