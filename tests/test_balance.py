"""Balanced batches: equally many rows of every class, every sample used, rare ones again; the same in the loss."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.theory import Proportions
from ratemesh.encoders.networks import Mlp
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.methods.alg1 import Alg1
from ratemesh.seeds import generator
from ratemesh.training.local import LocalSpec, batches
from ratemesh.training.protocol import Node


def balanced(y: torch.Tensor, batch_size: int, epochs: int, seed: int) -> Iterator[torch.Tensor]:
    return batches(y, LocalSpec(batch_size=batch_size, epochs=epochs, balance=True), generator(seed))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(4, 30), st.integers(0, 3), st.integers(0, 1000)
)
def test_every_class_appears_equally_often_in_every_batch(labels, batch_size, epochs, seed):
    y = torch.tensor(labels)
    held = torch.unique(y)
    drawn = list(balanced(y, batch_size, epochs, seed))
    for rows in drawn:
        assert len({int((y[rows] == k).sum()) for k in held}) == 1
        assert (2 if len(y) > 1 else 1) <= len(rows) <= max(batch_size, 3)  # three rows of one class do not halve
    assert len({len(rows) for rows in drawn}) <= 2
    most = int(torch.bincount(y).max())
    assert sum(map(len, drawn)) == epochs * most * len(held)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=50), st.integers(0, 1000))
def test_an_epoch_uses_every_sample_and_those_of_a_class_equally(labels, seed):
    y = torch.tensor(labels)
    rows = torch.cat(list(balanced(y, 8, 1, seed)))
    times = torch.bincount(rows, minlength=len(y))
    for k in torch.unique(y):
        assert int(times[y == k].min()) >= 1
        assert int(times[y == k].max() - times[y == k].min()) <= 1


def test_batches_depend_on_the_generator_only():
    y = torch.tensor([0] * 9 + [1] * 2)
    a, b, c = (torch.cat(list(balanced(y, 4, 2, seed))) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_what_cannot_be_balanced_is_refused():
    with pytest.raises(InputError, match=r"got 2 for a node with 3 classes\. Take at least 3"):
        next(balanced(torch.arange(3), 2, 1, 0))
    with pytest.raises(InputError, match="y must hold labels"):
        next(balanced(torch.tensor([], dtype=torch.int64), 2, 1, 0))


def lone_node(counts: tuple[int, ...] = (12, 3, 6)) -> Node:
    """A node by itself, float64, whose batch is all it has; counts divide the largest, so that all weigh the same."""
    draw = torch.Generator().manual_seed(1)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    X = torch.randn(len(y), 5, generator=draw, dtype=torch.float64)
    local = LocalSpec(epochs=1, batch_size=1000, lr=0.01, weight_decay=0, schedule="constant", balance=True)
    encoder = Mlp(hidden=()).build((5,), 4, 0, 0).double()
    return Node(0, (), X, y, len(counts), 1.0, encoder, local, seed=0)


@pytest.mark.parametrize("beta", [1.0, 0.1], ids=["in batch", "running"])
def test_a_round_maximises_the_rate_reduction_with_equal_proportions(beta: float) -> None:
    node = lone_node()
    plain = copy.deepcopy(node.encoder)
    program = Alg1(warm_start={"epochs": 0}, running={"beta": beta}).program(node)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)

    def reduction() -> torch.Tensor:
        """ΔR with π_k = 1/3 whatever the counts, class by class."""
        Z, alpha, eye = plain(node.X), 4 / 0.5, torch.eye(4, dtype=torch.float64)
        V = [Z[node.y == k].T @ Z[node.y == k] / (node.y == k).sum() for k in range(3)]
        return torch.logdet(eye + alpha * sum(V) / 3) / 2 - sum(torch.logdet(eye + alpha * v) for v in V) / 6

    for t in (1, 2, 3):
        optimizer.zero_grad()
        (-reduction()).backward()
        optimizer.step()
        try:
            next(round_ := program.round(t))
            round_.send({})
        except StopIteration as end:
            log = end.value
        for ours, theirs in zip(node.encoder.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        assert log["reduction"] == pytest.approx(reduction().item(), rel=1e-9)
    assert program.stats.m.tolist() == [12, 3, 6]  # what is sent are the true counts


def skewed(**changes: object) -> dict[str, object]:
    partition = {"name": "dirichlet", "alpha": 3.0}
    return {"data": "digits", "partition": partition, "graph": {"name": "ring", "nodes": 3}, **changes}


def test_a_balanced_run_meets_assumption_1_without_a_warning() -> None:
    plan = Plan(make_config(skewed(local={"balance": True})))
    assert not Proportions.of(plan.counts()).holds
    plan.check()  # a warning would be an error here


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"local": {"balance": True, "batch_size": 7}}, "local.batch_size"),
        (
            {"local": {"balance": True}, "method": {"warm_start": {"epochs": 1, "batch_size": 7}}},
            "method.warm_start.batch_size",
        ),
    ],
)
def test_too_small_a_batch_is_refused_before_any_work(changes: dict[str, object], named: str, tmp_path: Path) -> None:
    message = rf"{named} must leave room.*got 7 for a node with 10 classes\. Take at least 10, or set local.balance"
    with pytest.raises(InputError, match=message):
        run(skewed(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
