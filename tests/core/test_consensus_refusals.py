"""What the losses refuse, and the words they say it in."""

import pytest
import torch

from ratemesh.core.consensus import consensus_loss, mcr2_loss
from ratemesh.errors import InputError

GOOD = {"Y": torch.zeros(2, 3, 3), "T_bar": torch.zeros(2, 3, 3), "n": 1, "gamma": 1.0}
ROWS = torch.eye(3)


@pytest.mark.parametrize(
    ("Z", "y", "options", "message"),
    [
        (ROWS[:1], [0], {}, r"Z must have at least 2 rows; got 1\. Raise the batch size"),
        (ROWS * torch.nan, [0, 1, 0], {}, r"Z must be finite; row 0 \(label 0\) is not"),
        (ROWS * 1.1, [0, 1, 0], {}, r"unit length; row 0 has length 1\.1\. Apply torch"),
        (ROWS, [0, 1, 2], {}, r"y must lie in 0\.\.1; got label 2\. Renumber"),
        (ROWS, [0.0, 1.0, 0.0], {}, r"y must hold integers; got torch\.float32\. Convert"),
        (ROWS, [0, 1], {}, r"y must have shape \(3,\).*got \(2,\)"),
        (ROWS[0], [0, 1, 0], {}, r"Z must have shape \(m, d\).*got \(3,\)"),
        (ROWS, [0, 1, 0], {"eps2": 0.0}, r"eps2 must be positive; got 0\.0"),
        (ROWS, [0, 1, 0], {"Y": torch.zeros(2, 4, 4)}, r"shape \(K, d, d\) with d = 3.*\(2, 4, 4\) and \(2, 3, 3\)"),
        (ROWS, [0, 1, 0], {"T_bar": torch.zeros(3, 3, 3)}, r"got \(2, 3, 3\) and \(3, 3, 3\)"),
    ],
)
def test_bad_batches_are_refused_in_words(Z, y, options, message):
    with pytest.raises(InputError, match=message):
        consensus_loss(Z, torch.tensor(y), **(GOOD | options))
    if not options or "eps2" in options:
        with pytest.raises(InputError, match=message):
            mcr2_loss(Z, torch.tensor(y), 2, **options)


@pytest.mark.parametrize("options", [{"n": torch.ones(3)}, {"Y": torch.zeros(2, 3, 3).double()}])
def test_coupling_that_does_not_fit_is_refused_in_words(options):
    with pytest.raises(InputError, match=r"n must|dtype"):
        consensus_loss(ROWS, torch.tensor([0, 1, 0]), **(GOOD | options))


def test_midpoints_that_are_not_symmetric_are_refused():
    crooked = torch.zeros(2, 3, 3)
    crooked[1, 0, 2] = 0.5
    with pytest.raises(InputError, match=r"T_bar must be symmetric.*got entries 0\.5 apart.*Use fold_neighbours"):
        consensus_loss(ROWS, torch.tensor([0, 1, 0]), **(GOOD | {"T_bar": crooked}))
