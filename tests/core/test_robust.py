"""Robust folding: medians and trimmed means against plain loops, and what a liar can reach."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.consensus import centre, majority
from ratemesh.core.stats import ClassStats
from toy_stats import keep

K, D = 3, 4


def peers(n: int, seed: int) -> list[ClassStats]:
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        Z = torch.nn.functional.normalize(torch.randn(12, D, generator=draw, dtype=torch.float64), dim=1)
        found.append(ClassStats.of(Z, torch.randint(0, K, (12,), generator=draw), K))
    return found


@given(n=st.integers(1, 7), drop=st.integers(0, 4), seed=st.integers(0, 50))
def test_the_centres_are_those_of_a_plain_loop(n: int, drop: int, seed: int) -> None:
    given_peers = peers(n, seed)
    values, held = torch.stack([s.V for s in given_peers]), torch.stack([s.held for s in given_peers])
    for k in range(K):
        rows = [values[j, k] for j in range(n) if held[j, k]]
        if not rows:
            assert not centre(values, held, "median", drop)[k].any()
            continue
        entries = zip(*(row.flatten().tolist() for row in rows), strict=True)
        median = torch.tensor([statistics.median(entry) for entry in entries], dtype=torch.float64).reshape(D, D)
        torch.testing.assert_close(centre(values, held, "median", drop)[k], median)
        near = sorted(rows, key=lambda row: float((row - median).norm()))
        kept = near[: len(near) - min(drop, (len(near) - 1) // 2)]
        torch.testing.assert_close(centre(values, held, "trimmed", drop)[k], sum(kept) / len(kept))


@pytest.mark.parametrize("how", ["median", "trimmed"])
def test_one_liar_among_four_cannot_pull_the_majority_far(how: str) -> None:
    honest = ClassStats.of(torch.eye(D, dtype=torch.float64)[:K].repeat(4, 1), torch.arange(K).repeat(4), K)
    lie = ClassStats(honest.V.roll(1, 0), honest.mu.roll(1, 0), honest.m * 1000)
    for told in majority([honest, honest, lie, honest], how, 1):  # type: ignore[arg-type]
        torch.testing.assert_close(told.V, honest.V)
        torch.testing.assert_close(told.mu, honest.mu)
    plain = ClassStats.sum(majority([honest, honest, lie, honest], "off"))
    assert float((plain.V - honest.V).norm()) > 1


def test_classes_that_a_neighbour_lacks_stay_empty() -> None:
    first, second = peers(2, 0)
    told = majority([keep(first, [0, 1]), second], "median")
    assert not told[0].V[2].any()
    assert told[0].held.tolist() == keep(first, [0, 1]).held.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_trimmed_mean_keeps_unit_trace_and_no_negative_eigenvalue(n: int) -> None:
    for told in majority(peers(n, 3), "trimmed", 1):
        traces = told.V.diagonal(dim1=1, dim2=2).sum(1)[told.held]
        torch.testing.assert_close(traces, torch.ones_like(traces))
        assert float(torch.linalg.eigvalsh(told.V).min()) > -1e-12
