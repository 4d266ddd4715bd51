"""The training loop: augmentation and learning rate depend on seed, node, purpose and round, and nothing else."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from ratemesh.data.augment import AugmentSpec
from ratemesh.encoders.networks import Conv4, Mlp
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan
from ratemesh.training.local import LocalSpec, LocalTrainer, batches
from ratemesh.training.optimizers import Name

ALL_ON = {"epochs": 2, "batch_size": 8, "schedule": "cosine", "decay_rounds": 4}
AUGMENT = {"crop_scale": (0.5, 1), "flip": 0.5, "rotate": 10, "brightness": 0.3, "contrast": 0.3, "blur": 0.5}


def pictures(n: int = 24) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(n) % 2


def trainer(node: int = 0, purpose: str = "test", **settings) -> LocalTrainer:
    encoder = Conv4(width=0.05).build((1, 8, 8), 4, 0)
    return LocalTrainer(encoder, LocalSpec(**{**ALL_ON, **settings}), 0, node, purpose)


def train(trainer: LocalTrainer, *rounds: int) -> list[Tensor]:
    """Train, and return every batch as the objective saw it."""
    X, y = pictures()
    seen = []

    def objective(batch: Tensor, labels: Tensor) -> Tensor:
        seen.append(batch.clone())
        return (trainer.modules(batch)[:, 0] * (2.0 * labels - 1)).mean()

    for t in rounds:
        trainer.train(X, y, objective, t)
    return seen


def state(trainer: LocalTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("optimizer", get_args(Name))
def test_training_with_everything_on_repeats_and_resumes_exactly(optimizer: str) -> None:
    straight, again, resumed = (trainer(augment=AUGMENT, optimizer=optimizer) for _ in range(3))
    train(straight, 1)
    resumed.load_state_dict(state(straight))
    train(straight, 2, 3)
    train(again, 1, 2, 3)
    train(resumed, 2, 3)
    assert same(state(straight), state(again))
    assert same(state(straight), state(resumed))


def test_off_leaves_batches_alone_and_on_changes_their_pixels_only() -> None:
    plain, off, on = trainer(), trainer(augment=AugmentSpec()), trainer(augment={"flip": 1.0})
    before = torch.random.get_rng_state()
    batches, flipped = train(plain, 1), train(on, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(batches, train(off, 1), strict=True))
    assert {batch.dtype for batch in batches} == {torch.uint8}  # untouched; the encoder makes floats of them
    for batch, other in zip(batches, flipped, strict=True):  # so the order of the samples did not change either
        assert torch.equal(other, batch.flip(-1).float() / 255)


@pytest.mark.parametrize("change", [{"node": 1}, {"purpose": "other"}])
def test_nodes_purposes_and_rounds_draw_on_their_own(change: dict[str, object]) -> None:
    one_batch = {"batch_size": 100, "epochs": 1, "augment": {"shift": 3, "flip": 0.5}}
    here, there = train(trainer(**one_batch), 1, 2), train(trainer(**one_batch, **change), 1)
    totals = [batch.sum((0, 1)) for batch in (*here, *there)]  # whatever the order of the samples
    assert not torch.equal(totals[0], totals[1])
    assert not torch.equal(totals[0], totals[2])


def test_cosine_falls_from_lr_to_its_part_of_it() -> None:
    local = LocalSpec(lr=0.1, schedule="cosine", lr_final=0.2).over(10)
    rates = [local.lr_at(t) for t in range(1, 12)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == local.lr_at(0) == 0.1
    assert rates[10] == pytest.approx(0.02)
    assert rates[5] == pytest.approx(0.06)
    for t, rate in enumerate(rates):  # half of 1 + cos(π t / T), t counted from 0
        assert rate == pytest.approx(0.02 + 0.08 * math.cos(math.pi * t / 20) ** 2)
    assert local.lr_at(1000) == pytest.approx(0.02)


def test_constant_is_constant_and_a_decay_of_ones_own_length_is_kept() -> None:
    assert {LocalSpec(lr=0.3, schedule="constant").over(10).lr_at(t) for t in range(12)} == {0.3}
    assert LocalSpec(decay_rounds=7).over(10).decay_rounds == 7
    assert LocalSpec().over(10).decay_rounds == 10


def test_the_optimiser_gets_the_rate_of_the_round() -> None:
    some = trainer(lr=0.1)
    for t in (1, 3):
        train(some, t)
        assert [group["lr"] for group in some.optimizers["optimizer"].param_groups] == [some.local.lr_at(t)]
    assert some.local.lr_at(3) == pytest.approx(0.1 * (0.05 + 0.95 / 2))


def test_a_cosine_without_an_end_does_not_decay() -> None:
    assert {LocalSpec(schedule="cosine", lr=0.3).lr_at(t) for t in range(5)} == {0.3}


def test_balanced_batches_have_all_classes_equally_often() -> None:
    y = torch.tensor([0] * 20 + [1] * 4)
    rows = torch.cat(list(batches(y, LocalSpec(batch_size=8, balance=True), torch.Generator())))
    assert torch.bincount(y[rows]).tolist() == [20, 20]
    plain = torch.cat(list(batches(y, LocalSpec(batch_size=8), torch.Generator())))
    assert torch.bincount(y[plain]).tolist() == [20, 4]


def test_the_run_says_how_many_rounds_there_are() -> None:
    plan = Plan(make_config({"rounds": 7, "local": {"schedule": "cosine"}}))
    assert plan.node(0).local.decay_rounds == 7


def test_augmentation_of_vectors_is_refused_before_any_work() -> None:
    config = make_config({"data": {"name": "subspaces"}, "local": {"augment": {"flip": 0.5}}})
    with pytest.raises(InputError, match=r"local\.augment must be off .* got samples of shape \(64,\)\. Leave"):
        Plan(config).check()
    some = LocalTrainer(Mlp(hidden=()).build((3,), 2, 0), LocalSpec(augment={"flip": 0.5}), 0, 0, "test")
    with pytest.raises(InputError, match=r"local\.augment must be off"):
        some.train(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), lambda X, y: X.sum(), 1)
