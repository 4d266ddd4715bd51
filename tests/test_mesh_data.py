"""What a node's data may come in, and what is said of data that it cannot hold."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ratemesh as rm
from ratemesh.errors import InputError
from toy_nodes import WORDS, Wide, nets, samples


def forms(X: np.ndarray, y: np.ndarray) -> dict[str, tuple]:
    """The same samples and labels in whatever people hold them in."""
    import datasets
    import pandas as pd

    frame = pd.DataFrame(X, columns=list("abcdef"))
    tensors = torch.from_numpy(X), torch.from_numpy(y)
    return {
        "tensors": tensors,
        "Dataset": (TensorDataset(*tensors), None),
        "list of pairs": (Pairs(*tensors), None),
        "DataLoader": (DataLoader(TensorDataset(*tensors), batch_size=50), None),
        "frame": (frame, y),
        "frame with labels": (frame.assign(kind=y), "kind"),
        "frame with usual labels": (frame.assign(label=y), None),
        "Hugging Face": (datasets.Dataset.from_dict({"x": X.tolist(), "label": y.tolist()}), None),
    }


class Pairs(torch.utils.data.Dataset):
    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.X[i], int(self.y[i])


def test_samples_are_the_same_whatever_holds_them() -> None:
    plain = rm.Mesh([rm.Node(nets()[0], *samples(0))])._held.data
    for name, (X, y) in forms(*samples(0)).items():
        held = rm.Mesh([rm.Node(nets()[0], X, y)])._held.data
        torch.testing.assert_close(held.X_train, plain.X_train, msg=name)
        assert torch.equal(held.y_train, plain.y_train), name
        assert held.classes == ("0", "1", "2"), name


def test_hugging_face_pictures_keep_the_names_of_their_classes() -> None:
    import datasets

    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"image": list(pictures), "label": [i % 2 for i in range(12)]}, features=features)
    held = rm.Mesh([rm.Node("conv4", data)])._held.data
    assert held.classes == ("cat", "dog")
    assert held.X_train.shape == (12, 3, 8, 8)
    np.testing.assert_array_equal(held.X_train[3].numpy(), pictures[3].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"y": ["x"] * 120}, "y must hold labels of the mesh; got 'x'"),
        ({"y": [0.5] * 120}, "whole numbers or words"),
        ({"y": [0] * 7}, "7 labels for 120 samples"),
        ({"y": None}, "y must be given"),
        ({"X": np.full((120, 6), np.nan)}, "must be finite; row 0"),
        ({"X": np.array([["a"] * 6] * 120)}, "must hold numbers"),
        ({"X": np.zeros((120, 5), np.float32)}, r"must be like that of node '0'"),
    ],
)
def test_what_nodes_cannot_hold_is_told(how, words) -> None:
    X, y = samples(0)
    other = {"X": X, "y": WORDS[y], **how}
    with pytest.raises(InputError, match=words):
        rm.Mesh([rm.Node(Wide(), X, WORDS[y]), rm.Node(Wide(), **other)], classes=list(WORDS))


def test_labels_may_be_places_among_named_classes() -> None:
    X, y = samples(0)
    held = rm.Mesh([rm.Node(Wide(), X, y)], classes=["c", "a", "b"])._held.data
    assert held.classes == ("c", "a", "b")
    assert torch.equal(held.y_train, torch.from_numpy(y))


def test_standardising_is_learned_once_and_kept(tmp_path) -> None:
    X, y = samples(0)
    far = X * 100 + 7
    mesh = rm.Mesh([rm.Node(nets()[0], far[i::2], y[i::2]) for i in (0, 1)], standardise=True)
    held = mesh._held.data.X_train
    torch.testing.assert_close(held.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(held.std(0, correction=0), torch.ones(6), atol=1e-5, rtol=0)
    mesh.fit(rounds=1, progress=False)
    mesh.save(tmp_path / "m")
    np.testing.assert_array_equal(rm.load(tmp_path / "m").encode(far), mesh.encode(far))
    with pytest.raises(InputError, match="no rows"):
        rm.Mesh([rm.Node("mlp", np.zeros((9, 2, 2), np.float32), np.arange(9) % 2)], standardise=True)


def test_new_frames_may_have_their_columns_in_any_order() -> None:
    import pandas as pd

    X, y = samples(0)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    mesh = rm.Mesh([rm.Node(nets()[0], frame, y)]).fit(rounds=1, progress=False)
    np.testing.assert_array_equal(mesh.encode(frame[list("fedcba")]), mesh.encode(X))
    with pytest.raises(InputError, match="column 'c'"):
        mesh.encode(frame[list("abdef")])
