"""Nearest subspace against scikit-learn's PCA, class by class, and both fusions against loops."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule
from ratemesh.errors import InputError

MOST = SubspaceRule().most
COUNTS, D = (25, 12, 4), 7
K = len(COUNTS)


@pytest.fixture(scope="module")
def train(unit_rows, labels_of, orthogonal):
    """Return features whose classes have means and unequal spreads, and labels."""
    y = labels_of(COUNTS, 3)
    Z = unit_rows(len(y), D, 3) * torch.linspace(2, 0.2, D, dtype=torch.float64) + orthogonal(D, 4)[y]
    return Z / Z.norm(dim=1, keepdim=True), y


@pytest.fixture(scope="module")
def queries(unit_rows):
    """Return what three encoders make of the same nine samples."""
    return torch.stack([unit_rows(9, D, seed) for seed in (5, 6, 7)])


def pca_residuals(Z, y, queries, components):
    """‖x − reconstruction‖² to each class's own PCA; a number of components or a part of the variance per class."""
    out = []
    for k, r in enumerate(components):
        X = Z[y == k].numpy()
        if r == 0:  # nearest class mean
            rest = queries.numpy() - X.mean(0)
        else:
            pca = PCA(n_components=r, svd_solver="full").fit(X)
            rest = queries.numpy() - pca.inverse_transform(pca.transform(queries.numpy()))
        out.append((rest**2).sum(1))
    return np.stack(out, 1)


@pytest.mark.parametrize(("rank", "used"), [(0, (0, 0, 0)), (2, (2, 2, 2)), (5, (5, 5, 3)), (30, (6, 6, 3))])
def test_residuals_are_those_of_pca(train, queries, rank, used):
    """Ranks are cut to min(rank, m_k − 1, d − 1)."""
    Z, y = train
    residuals = SubspaceJudge(rank=rank).fit(Z, y).residuals(queries[0])
    np.testing.assert_allclose(residuals.numpy(), pca_residuals(Z, y, queries[0], used), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("energy", [0.3, 0.6, 0.9])
def test_energy_keeps_the_fewest_directions_that_hold_it(train, queries, energy):
    Z, y = train
    expected = pca_residuals(Z, y, queries[0], (energy,) * K)
    residuals = SubspaceJudge(energy=energy).fit(Z, y).residuals(queries[0])
    np.testing.assert_allclose(residuals.numpy(), expected, rtol=1e-10, atol=1e-13)


def test_the_default_is_95_percent_of_the_variance_and_a_rank_overrules_it(train, queries):
    Z, y = train
    residuals = [SubspaceJudge(**o).fit(Z, y).residuals(queries[0]) for o in ({}, {"energy": 0.3, "rank": 4})]
    np.testing.assert_allclose(residuals[0].numpy(), pca_residuals(Z, y, queries[0], (0.95,) * K), rtol=1e-10)
    np.testing.assert_allclose(residuals[1].numpy(), pca_residuals(Z, y, queries[0], (4, 4, 3)), rtol=1e-10)


def test_all_of_the_energy_is_the_whole_span(train):
    """energy = 1 keeps min(m_k − 1, d − 1) directions: the four samples of class 2 lie in their own span."""
    Z, y = train
    residuals = SubspaceJudge(energy=1.0).fit(Z, y).residuals(Z[y == 2])
    assert residuals[:, 2].abs().max() < 1e-12
    np.testing.assert_allclose(residuals.numpy(), pca_residuals(Z, y, Z[y == 2], (6, 6, 3)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rank", "used"), [(None, MOST), (MOST + 5, MOST + 5)])
def test_a_class_that_fills_the_space_gets_no_more_than_the_most(unit_rows, rank, used):
    wide, y = unit_rows(200, 2 * MOST, 3), torch.zeros(200, dtype=torch.long)
    found = SubspaceJudge(rank=rank).fit(wide, y).residuals(wide[:9])
    np.testing.assert_allclose(found.numpy(), pca_residuals(wide, y, wide[:9], (used,)), rtol=1e-10)


def test_a_class_without_variance_needs_no_direction():
    axes = torch.eye(8, dtype=torch.float64)
    Z = torch.cat([axes[:1].repeat(20, 1), axes[1:5], -axes[1:5]])
    fitted = SubspaceJudge(energy=0.95).fit(Z, torch.tensor([0] * 20 + [1] * 8))
    # All of class 0 is the point e_0, so what is left of any other axis is its distance, ‖e_j − e_0‖² = 2.
    np.testing.assert_allclose(fitted.residuals(axes[1:])[:, 0].numpy(), [2.0] * 7, rtol=1e-12)


def test_energy_fusion_adds_residuals_over_encoders(train, queries):
    Z, y = train
    fused = SubspaceJudge("energy", rank=2).fit(Z, y).residuals(queries)
    expected = sum(pca_residuals(Z, y, part, (2, 2, 2)) for part in queries)
    np.testing.assert_allclose(fused.numpy(), expected, rtol=1e-10)


def test_average_fusion_takes_the_residual_of_the_mean_feature(train, queries):
    Z, y = train
    fused = SubspaceJudge("average", rank=2).fit(Z, y).residuals(queries)
    mean = (queries[0] + queries[1] + queries[2]) / 3
    np.testing.assert_allclose(fused.numpy(), pca_residuals(Z, y, mean, (2, 2, 2)), rtol=1e-10)


def test_fusions_agree_when_all_encoders_agree(train, queries):
    same = queries[:1].repeat(3, 1, 1)
    energy, average = (SubspaceJudge(fusion, rank=2).fit(*train) for fusion in ("energy", "average"))
    torch.testing.assert_close(energy.residuals(same), 3 * average.residuals(same), rtol=1e-10, atol=1e-12)
    assert torch.equal(energy.predict(same), average.predict(same))


def test_predict_takes_the_smallest_residual(train, queries):
    Z, y = train
    fitted = SubspaceJudge(rank=2).fit(Z, y)
    expected = pca_residuals(Z, y, queries[0], (2, 2, 2)).argmin(1)
    assert len(set(expected.tolist())) > 1
    assert fitted.predict(queries[0]).tolist() == expected.tolist()


def test_score_is_the_part_classified_as_told(train, queries):
    fitted = SubspaceJudge(rank=2).fit(*train)
    labels = fitted.predict(queries[0])
    labels[:3] = (labels[:3] + 1) % K
    assert fitted.score(queries[0], labels) == pytest.approx(6 / 9)


def test_score_needs_one_label_per_sample(train, queries):
    fitted = SubspaceJudge(rank=2).fit(*train)
    with pytest.raises(InputError, match="y must have one label per sample"):
        fitted.score(queries[0], torch.tensor([0]))


def test_several_encoders_are_pooled_in_the_fit(train, queries, orthogonal):
    Z, y = train
    other = Z @ orthogonal(D, 11).T
    pooled = SubspaceJudge(rank=2).fit(torch.stack([Z, other]), y)
    expected = pca_residuals(torch.cat([Z, other]), torch.cat([y, y]), queries[0], (2, 2, 2))
    np.testing.assert_allclose(pooled.residuals(queries[0]).numpy(), expected, rtol=1e-10)


def test_statistics_of_nodes_are_as_good_as_their_features(train, queries):
    Z, y = train
    parts = [ClassStats.of(Z[i::3], y[i::3], K) for i in range(3)]
    from_stats = SubspaceJudge(rank=3).fit_stats(ClassStats.sum(parts))
    from_features = SubspaceJudge(rank=3).fit(Z, y)
    torch.testing.assert_close(from_stats.residuals(queries), from_features.residuals(queries), rtol=1e-9, atol=1e-12)


def test_a_class_without_samples_is_never_chosen(train, queries):
    fitted = SubspaceJudge(rank=2).fit(*train, num_classes=K + 2)
    assert fitted.residuals(queries[0]).isinf().tolist() == [[False] * K + [True] * 2] * 9
    assert int(fitted.predict(queries).max()) < K


def test_float32_agrees_with_float64(train, queries):
    Z, y = train
    double = SubspaceJudge(rank=2).fit(Z, y).residuals(queries)
    single = SubspaceJudge(rank=2).fit(Z.float(), y).residuals(queries.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "mean"}, r"fusion must be 'average' or 'energy'; got 'mean'"),
        ({"rank": -1}, r"rank must not be negative; got -1\. 0 is nearest class mean"),
        ({"energy": 0.0}, r"energy must lie in \(0, 1\]; got 0\.0\. 0\.95 keeps"),
        ({"energy": 1.1}, r"energy must lie in \(0, 1\]; got 1\.1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        SubspaceJudge(**options)


def test_it_must_be_fitted_first():
    with pytest.raises(InputError, match=r"must be fitted before use\. Call fit or fit_stats"):
        SubspaceJudge().predict(torch.eye(3))


@pytest.mark.parametrize("shape", [(D,), (4, D + 1), (2, 2, 4, D)])
def test_queries_must_have_the_width_of_the_fit(train, shape):
    with pytest.raises(InputError, match=rf"Z must have shape \(m, {D}\) or \(N, m, {D}\); got \("):
        SubspaceJudge().fit(*train).predict(torch.zeros(shape, dtype=torch.float64))


def test_queries_and_features_must_be_finite(train):
    Z, y = train
    with pytest.raises(InputError, match=r"Z must be finite; it holds NaN or infinity\. Look for a diverged encoder"):
        SubspaceJudge().fit(Z, y).predict(Z * torch.nan)
    with pytest.raises(InputError, match="Z must be finite; row 0"):
        SubspaceJudge().fit(Z * torch.nan, y)


def test_labels_must_match_the_features(train):
    Z, y = train
    with pytest.raises(InputError, match=r"y must have shape \(41,\), one label per row of Z; got \(40,\)"):
        SubspaceJudge().fit(Z, y[1:])
    with pytest.raises(InputError, match=r"y must lie in 0\.\.1; got label 2"):
        SubspaceJudge().fit(Z, y, num_classes=2)


def test_arrays_and_lists_are_as_good_as_tensors_and_precisions_may_differ(train, queries):
    Z, y = train
    labels = SubspaceJudge(rank=2).fit(Z, y).predict(queries)
    fitted = SubspaceJudge(rank=2).fit(Z.numpy(), y.numpy())
    assert torch.equal(fitted.predict(queries.numpy()), labels)
    assert torch.equal(fitted.predict(queries.tolist()), labels)
    assert torch.equal(fitted.predict(queries.float()), labels)
    assert fitted.score(queries.numpy(), labels.numpy()) == 1
    weights = torch.ones(3, 1, K)
    torch.testing.assert_close(fitted.residuals(queries, weights.numpy()), fitted.residuals(queries, weights))
    single = SubspaceJudge(rank=2).fit(Z.float().numpy(), y.numpy())
    assert single.residuals(queries.numpy()).dtype == torch.float32
    half = SubspaceJudge(rank=2).fit(Z.half(), y)
    torch.testing.assert_close(half.residuals(queries.half()).double(), fitted.residuals(queries), rtol=0, atol=5e-3)


@pytest.mark.parametrize("words", [["a"], None, {"Z": 1}])
def test_what_holds_no_numbers_is_refused(train, words):
    with pytest.raises(InputError, match=r"Z must be a tensor or an array of numbers; got \w+\. Convert with torch"):
        SubspaceJudge().fit(words, train[1])
    with pytest.raises(InputError, match="Z must be a tensor or an array of numbers"):
        SubspaceJudge().fit(*train).predict(words)
    with pytest.raises(InputError, match="y must be a tensor or an array of numbers"):
        SubspaceJudge().fit(*train).score(train[0], words)


def test_scores_of_features_that_are_not_finite_are_refused(train):
    fitted = SubspaceJudge().fit(*train)
    for call in (fitted.residuals, fitted.predict, lambda Z: fitted.score(Z, train[1])):
        with pytest.raises(InputError, match="Z must be finite; it holds NaN or infinity"):
            call(train[0].numpy() * np.nan)


def test_statistics_that_are_not_finite_are_refused_and_the_class_named(train):
    stats = ClassStats.of(*train, K)
    stats.V[1, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"stats must be finite; class 1 is not\. Look for a diverged encoder"):
        SubspaceJudge().fit_stats(stats)


def test_a_rule_says_how_many_directions():
    values = torch.tensor([[6.0, 3, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert SubspaceRule(0.9).ranks(values).tolist() == [2, 4, 1]
    assert SubspaceRule(0.75).ranks(values).tolist() == [2, 3, 1]  # exactly three of four
    assert SubspaceRule(0.9, most=3).ranks(values).tolist() == [2, 3, 1]
    assert SubspaceRule(0.9, most=None).ranks(values.new_ones(100)).item() == 90
    assert SubspaceRule(0.9).ranks(values.new_ones(100)).item() == MOST
    assert SubspaceRule(0.9, rank=3, most=2).ranks(values).tolist() == [3, 3, 3]
    with pytest.raises(InputError, match="most must be at least 1; got 0"):
        SubspaceRule(most=0)


def test_a_rule_may_be_given_whole(train, queries):
    by_rule = SubspaceJudge(rule=SubspaceRule(0.3, most=1)).fit(*train).residuals(queries)
    assert torch.equal(by_rule, SubspaceJudge(rank=1).fit(*train).residuals(queries))
