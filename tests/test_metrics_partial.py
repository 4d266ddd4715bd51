"""Accuracies of nodes that hold only some of the classes."""

import pytest
import torch

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule
from ratemesh.errors import InputError
from ratemesh.metrics.accuracies import accuracies, partial_accuracies

RULE = SubspaceRule(rank=1)
AXES = torch.eye(4)
PLUS_MINUS = torch.cat([AXES, -AXES])


def held(*labels: int) -> ClassStats:
    """Statistics of a node whose class k lies on axis k, both ways."""
    y = torch.tensor(labels).repeat(2)
    return ClassStats.of(torch.cat([AXES[list(labels)], -AXES[list(labels)]]), y, 4)


def test_each_node_is_right_on_its_own_classes_and_the_fusion_on_all() -> None:
    """Node 0 holds 0 and 1 and sends everything else to axis 0; node 1 holds 2 and 3 and sends the rest to axis 2."""
    stats = [held(0, 1), held(2, 3)]
    y = torch.arange(4)
    Z = torch.stack([AXES[[0, 1, 0, 0]], AXES[[2, 2, 2, 3]]])
    found = partial_accuracies(stats, Z, y, RULE)
    assert found["acc_held"] == found["acc_held_closed"] == 1
    assert found["acc_foreign"] == 0
    # Foreign samples fit class 0 or 2 perfectly: a tie that the first class wins.
    assert found["acc_label_aware"] == pytest.approx(0.5)


def test_a_node_in_doubt_is_outvoted_by_those_who_know() -> None:
    stats = [held(0, 1), held(2, 3)]
    half = (AXES[0] + AXES[1]) / 2**0.5  # fits neither class of node 0
    Z = torch.stack(
        [torch.stack([AXES[0], AXES[1], half, half]), torch.stack([*[(AXES[2] + AXES[3]) / 2**0.5] * 2, *AXES[2:]])]
    )
    assert partial_accuracies(stats, Z, torch.arange(4), RULE)["acc_label_aware"] == 1


def test_a_node_that_holds_every_class_has_no_say_on_foreign_ones() -> None:
    stats = [held(0, 1, 2, 3), held(2, 3)]
    Z = torch.stack([AXES, AXES[[0, 2, 2, 3]]])
    found = partial_accuracies(stats, Z, torch.arange(4), RULE)
    assert found["acc_foreign"] == 0.5  # of node 1 alone: right on class 0, wrong on class 1
    assert found["acc_held"] == 1


def test_where_all_hold_all_there_is_nothing_partial_to_say() -> None:
    full = held(0, 1, 2, 3)
    found = accuracies([full, full], torch.stack([AXES, AXES]), torch.arange(4), RULE)
    assert set(found) == {"acc_average", "acc_energy", "acc_node", "acc_gaussian"}
    assert found["acc_average"] == found["acc_energy"] == found["acc_node"] == 1


def test_own_gaussians_judge_only_where_all_hold_the_same_classes() -> None:
    Z, y = torch.stack([AXES, AXES]), torch.arange(4)
    some = accuracies([held(0, 1), held(2, 3)], Z, y, RULE)
    assert "acc_gaussian" not in some
    assert {key: some[key] for key in ("acc_held", "acc_held_closed", "acc_foreign")} == {
        key: value
        for key, value in partial_accuracies([held(0, 1), held(2, 3)], Z, y, RULE).items()
        if key != "acc_label_aware"
    }
    unlike = [ClassStats.of(AXES, y, 4), ClassStats.of(AXES.flip(1), y, 4)]
    assert accuracies(unlike, torch.stack([AXES, AXES.flip(1)]), y, RULE)["acc_gaussian"] == 1
    assert accuracies(unlike, torch.stack([AXES.flip(1), AXES]), y, RULE)["acc_gaussian"] == 0
    same = accuracies([held(0, 1), held(0, 1)], Z[:, :2], y[:2], RULE)
    assert {"acc_gaussian", "acc_label_aware"} <= set(same)  # all lack the same classes


def test_weights_average_residuals() -> None:
    judge = SubspaceJudge(rank=1).fit_stats(held(0, 1, 2, 3))
    Z = torch.nn.functional.normalize(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), dim=2)
    w = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(1))
    single = torch.stack([judge.residuals(z) for z in Z])
    torch.testing.assert_close(judge.residuals(Z, w), (w * single).sum(0) / w.sum(0))
    w[:, :, 2] = 0
    assert bool(torch.isinf(judge.residuals(Z, w)[:, 2]).all())
    with pytest.raises(InputError, match=r"weights must have shape \(3, 1, 4\) or \(3, 5, 4\); got \(3, 4\)"):
        judge.residuals(Z, w[:, 0])
    for other, features in ((judge, Z[0]), (SubspaceJudge("average", rank=1).fit_stats(held(0, 1, 2, 3)), Z)):
        with pytest.raises(InputError, match=r"weights must come with features \(N, m, d\) and fusion='energy'"):
            other.residuals(features, w)
