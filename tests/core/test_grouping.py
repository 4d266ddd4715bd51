"""The padded layout of a batch: nothing is lost, nothing is mixed, nothing grows without bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.core.stats import group_by_class

labels = st.integers(1, 6).flatmap(
    lambda K: st.tuples(st.just(K), st.lists(st.integers(0, K - 1), min_size=0, max_size=60))
)


@given(labels, st.booleans())
def test_pad_then_unpad_returns_the_rows(drawn, whole):
    K, y = drawn
    A = torch.arange(1.0, 3 * len(y) + 1).view(len(y), 3)
    groups = group_by_class(torch.tensor(y, dtype=torch.int64), K, whole=whole)
    P = groups.pad(A)
    assert P.shape == (groups.groups, groups.rows, 3)
    assert torch.equal(groups.unpad(P), A)
    # Nothing but the rows is in there: all entries of A are positive and each is counted once.
    assert P.sum() == A.sum()
    assert int((P != 0).sum()) == A.numel()


@given(labels, st.booleans())
def test_every_group_holds_rows_of_its_owner_only(drawn, whole):
    K, y = drawn
    groups = group_by_class(torch.tensor(y, dtype=torch.int64), K, whole=whole)
    group_of_row = (groups.place // groups.rows).tolist()
    assert [int(groups.owner[g]) for g in group_of_row] == y
    assert groups.m.tolist() == [y.count(k) for k in range(K)]
    assert sorted(set(groups.owner.tolist())) == list(range(K))


@given(labels, st.booleans())
def test_sum_by_class_adds_rows_of_each_class(drawn, whole):
    K, y = drawn
    A = torch.arange(1.0, len(y) + 1, dtype=torch.float64)[:, None]
    groups = group_by_class(torch.tensor(y, dtype=torch.int64), K, whole=whole)
    sums = groups.sum_by_class(groups.pad(A).sum(1))
    assert sums[:, 0].tolist() == [float(sum(i + 1 for i, label in enumerate(y) if label == k)) for k in range(K)]


@given(labels, st.booleans())
def test_of_class_hands_every_row_its_class_entry(drawn, whole):
    K, y = drawn
    groups = group_by_class(torch.tensor(y, dtype=torch.int64), K, whole=whole)
    per_class = torch.arange(10.0, 10.0 + K)[:, None, None]
    spread = groups.of_class(per_class).expand(groups.groups, groups.rows, 1)
    assert groups.unpad(spread)[:, 0].tolist() == [10.0 + k for k in y]


@given(labels)
def test_whole_gives_one_group_per_class(drawn):
    K, y = drawn
    groups = group_by_class(torch.tensor(y, dtype=torch.int64), K, whole=True)
    assert groups.one_per_class
    assert groups.owner.tolist() == list(range(K))
    assert groups.rows == max([y.count(k) for k in range(K)] + [1])


@given(st.integers(1, 8), st.integers(1, 12), st.floats(0, 1), st.data())
def test_layout_stays_below_three_times_the_data(K, per_class, skew, data):
    n = K * per_class
    heavy = round(skew * n)  # rows that all go to one class
    rest = data.draw(st.lists(st.integers(0, K - 1), min_size=n - heavy, max_size=n - heavy))
    groups = group_by_class(torch.tensor([K - 1] * heavy + rest), K)
    assert groups.groups * groups.rows <= 3 * n


def test_a_class_that_holds_almost_everything_is_cut():
    y = torch.tensor([0] * 97 + [1, 2, 3])
    groups = group_by_class(y, 4)
    assert groups.rows == 50
    assert groups.owner.tolist() == [0, 0, 1, 2, 3]
    assert not groups.one_per_class
    assert group_by_class(y, 4, whole=True).rows == 97


@pytest.mark.parametrize("whole", [True, False])
def test_order_inside_a_class_is_kept(whole):
    y = torch.tensor([1, 0, 1, 0, 1])
    P = group_by_class(y, 2, whole=whole).pad(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]))
    assert P[0, :2, 0].tolist() == [2, 4]
    assert P[1, :3, 0].tolist() == [1, 3, 5]
