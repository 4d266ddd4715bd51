"""One contract for every registered encoder, and the sizes of the image networks counted by hand."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import ratemesh
from ratemesh.data import Dataset, DatasetSpec
from ratemesh.data.dataset import split
from ratemesh.encoders import ENCODERS, EncoderSpec
from ratemesh.encoders.networks import ChannelsLast
from ratemesh.errors import InputError

NARROW: dict[str, dict[str, object]] = {name: {"width": 0.06} for name in ENCODERS} | {"mlp": {"hidden": (12,)}}
SHAPES = [(1, 28, 28), (3, 32, 32), (3, 30, 41), (2, 33, 28)]
SMALL_SHAPES = [(1, 8, 8), (3, 9, 12)]
FROM_EIGHT = [name for name in ENCODERS if not name.startswith("vgg")]
IMAGES_ONLY = [name for name in ENCODERS if name != "mlp"]


def narrow(name: str) -> EncoderSpec:
    return ENCODERS[name](**NARROW[name])


def samples(m: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(m, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in ENCODERS for shape in SHAPES]
    + [(name, shape) for name in FROM_EIGHT for shape in SMALL_SHAPES],
)
@pytest.mark.parametrize("training", [True, False])
def test_unit_vectors_come_out_of_every_shape(name: str, shape: tuple[int, ...], training: bool) -> None:
    Z = narrow(name).build(shape, 10, 0).train(training)(samples(4, shape))
    assert Z.shape == (4, 10)
    torch.testing.assert_close(Z.norm(dim=1), torch.ones(4), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder = narrow(name).build((1, 28, 28), 10, 0)
    (encoder(samples(16, (1, 28, 28))) * samples(16, (10,), seed=1)).sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().max() > 1e-12, key


@pytest.mark.parametrize("name", ENCODERS)
def test_seed_and_names_decide_the_weights(name: str) -> None:
    def weights(seed: int, *names: object) -> Tensor:
        encoder = narrow(name).build((3, 32, 32), 10, seed, *names)
        return torch.cat([p.detach().flatten() for p in encoder.parameters()])

    assert torch.equal(weights(0, 1), weights(0, 1))
    assert not torch.equal(weights(0, 1), weights(0, 2))
    assert not torch.equal(weights(0, 1), weights(1, 1))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_state_makes_another_encoder_the_same(name: str) -> None:
    shape, X = (1, 28, 28), samples(8, (1, 28, 28))
    one, other = (narrow(name).build(shape, 10, seed) for seed in (0, 1))
    one(X)  # moves the running means
    assert all(value.is_contiguous() for value in one.state_dict().values())  # messages and files need not care
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.eval()(X), one.eval()(X))


@pytest.mark.parametrize("name", ENCODERS)
def test_bytes_are_read_as_parts_of_255(name: str) -> None:
    raw = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = narrow(name).build((1, 28, 28), 10, 0).eval()
    assert torch.equal(encoder(raw), encoder(raw.float() / 255))


@pytest.mark.parametrize("name", IMAGES_ONLY)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_changes_no_result(name: str, channels: int) -> None:
    """Channels innermost is a matter of speed: taken out, the features are the same to rounding."""
    encoder = narrow(name).build((channels, 32, 32), 10, 0).eval()
    X = samples(4, (channels, 32, 32))
    first = encoder.network[0]
    assert isinstance(first, ChannelsLast)
    assert first(X).stride()[1] == 1
    expected = encoder(X)
    encoder.network[0] = nn.Identity()
    torch.testing.assert_close(encoder(2 * X - 1 if first.centred else X), expected, rtol=0, atol=1e-5)


def count(name: str, channels: int, d: int) -> int:
    """Parameters of the network at full width, none left out and none drawn."""
    with torch.device("meta"):
        return sum(p.numel() for p in ENCODERS[name]().network((channels, 32, 32), d).parameters())


def conv(kernel: int, inputs: int, outputs: int) -> int:
    return kernel * kernel * inputs * outputs + 2 * outputs  # and scale and offset of the normalisation


def head(d: int) -> int:
    hidden = 512 if d <= 512 else 2 * d
    return 512 * hidden + hidden + hidden * d + d


def resnet(blocks: list[int], channels: int) -> int:
    """Layer by layer: 3×3 stem; every block two 3×3; the first of stages two to four a 1×1 shortcut."""
    total = conv(3, channels, 64)
    for stage, (inputs, outputs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
        total += conv(3, inputs, outputs) + (2 * blocks[stage] - 1) * conv(3, outputs, outputs)
        total += conv(1, inputs, outputs) if inputs != outputs else 0
    return total


def vgg(convolutions: list[int], channels: int) -> int:
    return sum(conv(3, inputs, outputs) for inputs, outputs in pairwise([channels, *convolutions]))


@pytest.mark.parametrize(("channels", "d"), [(3, 128), (1, 128), (3, 600)])
def test_parameters_are_counted_by_hand(channels: int, d: int) -> None:
    A = [64, 128, 256, 256, 512, 512, 512, 512]  # columns A and D of the VGG paper's table
    D = [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert count("resnet18", channels, d) == resnet([2, 2, 2, 2], channels) + head(d)
    assert count("resnet34", channels, d) == resnet([3, 4, 6, 3], channels) + head(d)
    assert count("vgg11", channels, d) == vgg(A, channels) + head(d)
    assert count("vgg16", channels, d) == vgg(D, channels) + head(d)
    four = 16 * (channels * 64 + 64 * 128 + 128 * 256 + 256 * max(128, d)) + 2 * (128 + 256)
    assert count("conv4", channels, d) == four + max(128, d) * d + d


def test_parameters_agree_with_what_is_known() -> None:
    """Known counts of the bodies; the VGGs' include a bias for each channel, which normalisation makes idle."""
    biases = {"vgg11": 2752, "vgg16": 4224}
    known = {"resnet18": 11_168_832, "resnet34": 21_276_992, "vgg11": 9_225_984, "vgg16": 14_723_136}
    for name, body in known.items():
        assert count(name, 3, 128) == body - biases.get(name, 0) + head(128)


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_a_narrow_body_does_not_bound_the_rank(name: str) -> None:
    """Behind five pooled channels an ELU of 2d units still fills the space; a linear head could not."""
    encoder = ENCODERS[name](width=0.01).build((1, 28, 28), 24, 0).double()
    head, X = encoder.network[-1], samples(200, (1, 28, 28)).double()
    assert (head[0].in_features, head[0].out_features) == (5, 48)
    assert torch.linalg.matrix_rank(encoder(X).detach()) == 24
    head[1] = nn.Identity()
    assert torch.linalg.matrix_rank(encoder(X).detach()) <= 6  # five channels and the bias


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 7, 8), (1, 8, 7), (32, 32, 3), (1, 1, 8, 8), (0, 32, 32)])
@pytest.mark.parametrize("name", IMAGES_ONLY)
def test_what_is_no_image_is_refused_with_the_sizes_that_work(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InputError, match=rf"'{name}' must be given images of at least \d+×\d+; got .*shape \("
    ) as caught:
        ENCODERS[name]().network(shape, 10)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("name", ["vgg11", "vgg16"])
def test_vgg_needs_enough_to_halve_five_times(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' must be given images of at least 28×28; .*'conv4'.*8×8"):
        ENCODERS[name]().network((1, 27, 32), 10)


def test_vgg_frames_small_images_with_zeros() -> None:
    encoder = narrow("vgg11").build((1, 28, 28), 10, 0).eval()
    wide = narrow("vgg11").build((1, 32, 32), 10, 0).eval()
    wide.load_state_dict(encoder.state_dict())
    X = samples(3, (1, 28, 28))
    torch.testing.assert_close(encoder(X), wide(nn.functional.pad(X, (2, 2, 2, 2))))


class Pictures(DatasetSpec):
    """Noise of 28×28 bytes around a brightness for each class."""

    def load(self, seed: int) -> Dataset:
        y = torch.arange(60) % 2
        X = torch.randint(0, 100, (60, 1, 28, 28), generator=torch.Generator().manual_seed(seed))
        return split((X + 100 * y[:, None, None, None]).to(torch.uint8), y, 0.2, 2, seed)


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_nodes_with_different_networks_train_together(tmp_path) -> None:
    table = {
        "rounds": 2,
        "d": 8,
        "data": {"name": "test_encoder_contract:Pictures"},
        "graph": {"name": "ring", "nodes": len(ENCODERS)},
        "encoders": [{"name": name, **NARROW[name]} for name in ENCODERS],
        "local": {"epochs": 1, "schedule": "cosine", "augment": {"shift": 2, "brightness": 0.2}},
        "method": {"coupling": {"schedule": "constant"}},
        "engine": {"workers": 1},
    }
    metrics = ratemesh.run(table, tmp_path / "run").metrics
    assert 0 <= metrics["acc_energy"] <= 1
    short = ratemesh.experiment.config.make_config({"encoders": ["resnet18", "vgg11", "resnet34", "vgg16"]})
    assert [spec.name for spec in short.encoders] == ["resnet18", "vgg11", "resnet34", "vgg16"]
