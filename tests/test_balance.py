"""Balanced batches: equally many rows of every class, every sample used, rare ones again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.data.balance import balanced_batches
from ratemesh.errors import InputError
from ratemesh.seeds import generator


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(4, 30), st.integers(0, 3), st.integers(0, 1000)
)
def test_every_class_appears_equally_often_in_every_batch(labels, batch_size, epochs, seed):
    y = torch.tensor(labels)
    held = torch.unique(y)
    batches = list(balanced_batches(y, batch_size, epochs, generator(seed)))
    for rows in batches:
        assert len({int((y[rows] == k).sum()) for k in held}) == 1
        assert (2 if len(y) > 1 else 1) <= len(rows) <= max(batch_size, 3)  # three rows of one class do not halve
    assert len({len(rows) for rows in batches}) <= 2
    most = int(torch.bincount(y).max())
    assert sum(map(len, batches)) == epochs * most * len(held)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=50), st.integers(0, 1000))
def test_an_epoch_uses_every_sample_and_those_of_a_class_equally(labels, seed):
    y = torch.tensor(labels)
    rows = torch.cat(list(balanced_batches(y, 8, 1, generator(seed))))
    times = torch.bincount(rows, minlength=len(y))
    for k in torch.unique(y):
        assert int(times[y == k].min()) >= 1
        assert int(times[y == k].max() - times[y == k].min()) <= 1


def test_batches_depend_on_the_generator_only():
    y = torch.tensor([0] * 9 + [1] * 2)
    a, b, c = (torch.cat(list(balanced_batches(y, 4, 2, generator(seed)))) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_what_cannot_be_balanced_is_refused():
    with pytest.raises(InputError, match=r"got 2 for 3 classes\. Take at least 3"):
        next(balanced_batches(torch.arange(3), 2, 1, generator(0)))
    with pytest.raises(InputError, match="y must hold labels"):
        next(balanced_batches(torch.tensor([], dtype=torch.int64), 2, 1, generator(0)))
