"""Running statistics: one code path from the paper's in-batch loss to the full-data gradient in small batches."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.consensus import consensus_loss
from ratemesh.core.lagrangian import RunningStats
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from toy_stats import keep, no_samples

K, D, EPS2, SCALE, GAMMA = 3, 5, 0.4, 1.3, 0.6


@pytest.fixture(scope="session")
def shard(unit_rows, labels_of):
    """Return features and labels of a shard with unequal classes."""
    return unit_rows(40, D, 1), labels_of((20, 13, 7), 1)


@pytest.fixture(scope="session")
def coupling(unit_rows):
    """Return duals, midpoints and neighbour counts, all different per class."""
    a, b = (ClassStats.of(unit_rows(30, D, seed), torch.arange(K).repeat(10), K).V for seed in (2, 3))
    options = {"gamma": GAMMA, "eps2": EPS2, "scale": SCALE}
    return {"Y": a - b, "T_bar": (a + b) / 2, "n": torch.tensor([1.0, 2, 3], dtype=torch.float64), **options}


def terms_and_gradient(Z, y, coupling, running=None):
    Z = Z.clone().requires_grad_()
    terms = consensus_loss(Z, y, **coupling, running=running)
    return terms, torch.autograd.grad(terms.total, Z)[0]


def lagrangian_of(V, m, coupling):
    """L as a function of statistics, by eigenvalues and loops; only classes with samples count."""
    alpha, pi = D / EPS2, m / m.sum()

    def rate(A):
        return 0.5 * torch.log1p(alpha * torch.linalg.eigvalsh(A)).sum()

    total = -SCALE * rate(sum(pi[k] * V[k] for k in range(K)))
    for k in (k for k in range(K) if m[k] > 0):
        total = total + SCALE * pi[k] * rate(V[k]) + (coupling["Y"][k] * V[k]).sum()
        total = total + GAMMA * coupling["n"][k] * (V[k] - coupling["T_bar"][k]).square().sum()
    return total


def sample_gradient(Z, y, V, m, coupling):
    """(2/m_Bk) Z_k H_k with H the derivative of L at V, sample by sample; and L itself."""
    V = V.clone().requires_grad_()
    value = lagrangian_of(V, m, coupling)
    (H,) = torch.autograd.grad(value, V)
    H = (H + H.mT) / 2
    return value.detach(), torch.stack([2 / int((y == k).sum()) * z @ H[k] for z, k in zip(Z, y.tolist(), strict=True)])


def close(a, b, tol=1e-10):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("rows", [6, 40])
def test_beta_one_is_the_in_batch_loss_exactly(shard, coupling, unit_rows, rows):
    """Six rows take the Gram branch, forty the dense one; what V̂ started from must not matter."""
    Z, y = shard[0][:rows], shard[1][:rows]
    elsewhere = ClassStats.of(unit_rows(9, D, 50), torch.arange(K).repeat(3), K)
    plain, expected = terms_and_gradient(Z, y, coupling)
    terms, gradient = terms_and_gradient(Z, y, coupling, RunningStats(elsewhere, beta=1))
    assert torch.equal(gradient, expected)
    for name in ("expand", "compress", "dual", "penalty", "total"):
        assert torch.equal(getattr(terms, name), getattr(plain, name)), name


@pytest.mark.parametrize("beta", [0, 0.3])
def test_exact_statistics_give_the_full_data_loss_and_gradient(shard, coupling, beta):
    Z, y = shard
    plain, expected = terms_and_gradient(Z, y, coupling)
    terms, gradient = terms_and_gradient(Z, y, coupling, RunningStats(ClassStats.of(Z, y, K), beta=beta))
    close(gradient, expected)
    for name in ("expand", "compress", "dual", "penalty", "total"):
        close(getattr(terms, name), getattr(plain, name))


@given(st.lists(st.integers(2, 15), min_size=1, max_size=8), st.integers(0, 1000))
def test_batches_reassemble_the_full_gradient(shard, coupling, sizes, seed):
    """Weighed by m_Bk/m_k, the gradients of any split into batches are the rows of the full gradient."""
    Z, y = shard
    _, expected = terms_and_gradient(Z, y, coupling)
    running = RunningStats(ClassStats.of(Z, y, K), beta=0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    gathered = torch.full_like(Z, torch.nan)
    cuts = [cut for cut in accumulate(sizes) if cut <= 38]  # no batch of fewer than two
    for part in order.tensor_split(cuts):
        _, gradient = terms_and_gradient(Z[part], y[part], coupling, running)
        weight = torch.bincount(y[part], minlength=K) / torch.bincount(y, minlength=K).double()
        gathered[part] = weight[y[part], None] * gradient
    close(gathered, expected)


@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_a_stream_of_batches_follows_the_formulas(shard, coupling, beta):
    """V̂_k ← (1−β)V̂_k + βV_Bk for classes in the batch; gradient and value of L at V̂ with the shard's counts."""
    Z, y = shard
    start = ClassStats.of(Z, y, K)
    running = RunningStats(start, beta=beta)
    V_hat = start.V.clone()
    for rows in ([0, 1, 2, 3, 4, 5], [7, 9, 11], list(range(20, 34)), (y == 1).nonzero()[:3, 0].tolist()):
        Z_B, y_B = Z[rows], y[rows]
        for k in range(K):
            if (y_B == k).any():
                V_B = sum(torch.outer(z, z) for z in Z_B[y_B == k]) / int((y_B == k).sum())
                V_hat[k] = (1 - beta) * V_hat[k] + beta * V_B
        terms, gradient = terms_and_gradient(Z_B, y_B, coupling, running)
        value, expected = sample_gradient(Z_B, y_B, V_hat, start.m, coupling)
        close(running.V, V_hat)
        close(gradient, expected)
        close(terms.total.detach(), value)


def test_absent_classes_keep_their_estimate(shard, coupling):
    Z, y = shard
    start = ClassStats.of(Z, y, K)
    running = RunningStats(start, beta=0.5)
    rows = (y == 1).nonzero()[:4, 0]
    terms_and_gradient(Z[rows], y[rows], coupling, running)
    assert torch.equal(running.V[0], start.V[0])
    assert torch.equal(running.V[2], start.V[2])
    assert not torch.allclose(running.V[1], start.V[1])


def test_the_statistics_it_started_from_are_left_alone(shard, coupling):
    Z, y = shard
    start = ClassStats.of(Z, y, K)
    before = start.V.clone()
    terms_and_gradient(Z[:9], y[:9], coupling, RunningStats(start, beta=0.9))
    assert torch.equal(start.V, before)


def test_between_refreshes_the_last_h_is_used_and_the_estimate_still_moves(shard, coupling):
    Z, y = shard
    start = ClassStats.of(Z, y, K)
    every, third = RunningStats(start, beta=0.4), RunningStats(start, beta=0.4, refresh=3)
    for step, part in enumerate(torch.arange(40).split(8)):
        Z_B, y_B = Z[part], y[part]
        terms, gradient = terms_and_gradient(Z_B, y_B, coupling, third)
        fresh, _ = terms_and_gradient(Z_B, y_B, coupling, every)
        close(third.V, every.V, 0)
        if step % 3 == 0:
            V_used = third.V.clone()
            assert torch.equal(terms.total, fresh.total)
        else:
            assert not torch.equal(terms.total, fresh.total)
        value, expected = sample_gradient(Z_B, y_B, V_used, start.m, coupling)
        close(gradient, expected)
        close(terms.total.detach(), value)


def test_the_lagrangian_is_called_once_per_refresh(shard):
    batch = ClassStats.of(*shard, K)
    seen = []

    def lagrangian(stats):
        seen.append(stats)
        return object(), torch.zeros(K, D, D)

    running = RunningStats(batch, beta=0.1, refresh=4)
    results = [running.move_towards(batch, lagrangian) for _ in range(9)]
    assert len(seen) == 3
    assert [results[i] is results[4 * (i // 4)] for i in range(9)] == [True] * 9
    assert results[0] is not results[4]


def test_a_gradient_does_not_depend_on_the_other_samples_of_a_batch(shard, coupling):
    """Given H the loss is a sum over samples: m_Bk times a row's gradient is the same in every batch."""
    Z, y = shard
    running = RunningStats(ClassStats.of(Z, y, K), beta=0)
    row, others = 0, (y != y[0]).nonzero()[:, 0]
    mates = (y == y[0]).nonzero()[1:, 0]
    small = torch.cat([torch.tensor([row]), others[:1]])
    large = torch.cat([torch.tensor([row]), mates[:5], others[3:9]])
    _, alone = terms_and_gradient(Z[small], y[small], coupling, running)
    _, together = terms_and_gradient(Z[large], y[large], coupling, running)
    close(alone[0], 6 * together[0])


def test_a_class_new_to_the_shard_counts_as_often_as_in_the_batch(shard, coupling):
    Z, y = shard
    known = keep(ClassStats.of(Z, y, K), [0, 1])
    running = RunningStats(known, beta=0.5)
    rows = torch.cat([(y == 2).nonzero()[:4, 0], (y == 0).nonzero()[:3, 0]])
    terms, gradient = terms_and_gradient(Z[rows], y[rows], coupling, running)
    m = known.m + torch.tensor([0, 0, 4])
    value, expected = sample_gradient(Z[rows], y[rows], running.V, m, coupling)
    close(gradient, expected)
    close(terms.total.detach(), value)


def test_a_class_without_count_does_not_enter_the_value(shard, coupling):
    Z, y = shard
    known = keep(ClassStats.of(Z, y, K), [0, 1])
    running = RunningStats(known, beta=0.5)
    terms_and_gradient(Z[y == 2], y[y == 2], coupling, running)
    rows = (y < 2).nonzero()[:8, 0]
    terms, gradient = terms_and_gradient(Z[rows], y[rows], coupling, running)
    value, expected = sample_gradient(Z[rows], y[rows], running.V, known.m, coupling)
    close(gradient, expected)
    close(terms.total.detach(), value)


@pytest.mark.parametrize("beta", [-0.1, 1.5, float("nan")])
def test_beta_must_be_a_weight(beta):
    with pytest.raises(InputError, match=rf"beta must lie in 0\.\.1; got {beta}\. 0\.05 to 0\.2 works"):
        RunningStats(no_samples(2, 3), beta=beta)


def test_refresh_must_be_positive():
    with pytest.raises(InputError, match=r"refresh must be at least 1; got 0\. It counts batches"):
        RunningStats(no_samples(2, 3), refresh=0)
