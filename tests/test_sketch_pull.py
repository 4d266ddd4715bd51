"""The consensus term on sketch moments: the gradient of ⟨C, C̄⟩, and a run with it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import ClassStats
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.training.sketched import SketchPull

TINY = {
    "preset": "plain",
    "rounds": 3,
    "d": 8,
    "data": {"name": "subspaces", "classes": 2, "ambient": 8, "rank": 2, "per_class": 30},
    "graph": {"name": "complete", "nodes": 2},
    "encoders": [{"name": "mlp"}],
}


def batch(seed, n=12, d=4, p=3, K=3):
    draw = torch.Generator().manual_seed(seed)
    Z = torch.nn.functional.normalize(torch.randn(n, d, generator=draw, dtype=torch.float64), dim=1)
    return Z, torch.arange(n) % K, torch.tanh(torch.randn(n, p, generator=draw, dtype=torch.float64))


@given(st.integers(0, 10_000))
def test_the_term_is_the_product_of_sketch_moments_up_to_a_constant(seed):
    Z, y, H = batch(seed)
    other = ClassStats.of(*batch(seed + 1)[:2], 3, H=batch(seed + 1)[2])
    pull = SketchPull(lambda X: X, other.sketch, H, y, 2.0)
    lengths = [(other.sketch.C[k] @ (h - other.sketch.h[k])).square().sum() for h, k in zip(H, y.tolist(), strict=True)]
    s = (sum(lengths) / len(lengths)).sqrt()

    def by_moments(features):  # −λ Σ_k π_k ⟨C_k, C̄_k⟩ / s, classes of equal size
        C = ClassStats.of(features, y, 3, H=H, unit=False).sketch.C
        return -2.0 / s * (C * other.sketch.C).sum() / 3

    # The gradients differ by what is the same for all samples of a class: the pull on the class's mean.
    moved = Z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(pull(moved, H, y), moved)
    again = Z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(by_moments(again), again)
    for k in range(3):
        torch.testing.assert_close(slope[y == k] - slope[y == k].mean(0), expected[y == k] - expected[y == k].mean(0))


def test_moments_that_say_nothing_pull_nowhere():
    Z, y, H = batch(0)
    silent = ClassStats.of(Z[:3], y[:3], 3, H=H[:3]).sketch  # one sample a class: no covariance
    assert float(SketchPull(lambda X: X, silent, H, y, 2.0)(Z, H, y)) == 0


@pytest.mark.parametrize("method", ["alg1", "alg3"])
def test_a_run_with_it_repeats_and_differs_from_one_without(tmp_path, method):
    def played(name, weight):
        table = {"method": {"name": method, "sketch_pull": weight, "coupling": {"start": 2}}, **TINY}
        return run(make_config(table), tmp_path / name).metrics

    first = played("first", 20)
    assert played("again", 20) == first
    assert "sketch pull" in first["method"]
    assert played("without", 0)["reduction"] != first["reduction"]
