"""No GPU is here: that nothing mixes devices or waits for one is shown on devices that are not there (`toy_device`)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ratemesh.core.consensus import coupled_loss, dual_step, edge_weights, fold_neighbours
from ratemesh.core.gauge import align
from ratemesh.core.lagrangian import Coupling, RunningStats
from ratemesh.core.stats import ClassStats, group_by_class
from ratemesh.data.augment import AugmentSpec
from ratemesh.data.sketches import Convolutions
from ratemesh.devices import CPU
from ratemesh.encoders.networks import Conv4, Mlp
from ratemesh.errors import NonFiniteError
from ratemesh.messages.codecs import CODECS, PACKED
from ratemesh.methods import METHODS
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalSpec, LocalTrainer, encode
from ratemesh.training.optimizers import make_optimizers
from ratemesh.training.sketched import SketchPull
from test_method_contract import CASES, COUPLED, LINE, OWN, SETTINGS, make, nodes, play
from toy_device import AWAY, Away, MixedError, Picks, Pretend, WaitedError, pretending

pytestmark = pytest.mark.filterwarnings("ignore:.*num_batches_tracked. copying from a non-meta:UserWarning")
K, D = 3, 8
EVERYTHING = AugmentSpec(
    **{"crop_scale": (0.5, 1), "flip": 0.5, "rotate": 10, "shift": 1, "brightness": 0.3, "contrast": 0.3, "hue": 0.2},
    **{"saturation": 0.3, "grey": 0.2, "blur": 0.5, "solarize": 0.5},
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    with pretending(monkeypatch) as mode:
        yield mode


def pictures(n: int = 24) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(n) % K


def trainer(device: torch.device, **settings: object) -> LocalTrainer:
    encoder = Conv4(width=0.1).build((3, 8, 8), D, 0).placed(device)
    return LocalTrainer(Classifier(encoder, K), LocalSpec(batch_size=8, **settings), 0, 0, "test")


def test_the_pretended_device_refuses_what_a_gpu_would(device: Pretend) -> None:
    here, there = torch.ones(3), torch.ones(3, device=AWAY)
    assert isinstance(there, Away)
    assert (there + 1).cpu().tolist() == [2, 2, 2]
    with pytest.raises(MixedError, match=r"add.* two devices"):
        there + here
    with pytest.raises(MixedError, match="index"):
        there[torch.tensor([0, 1])]
    device.strict = True
    there + torch.tensor(2.0)  # a number may come from the host
    here.to(AWAY, non_blocking=True)
    for wait in (
        lambda: there.sum().item(),
        lambda: bool(there.any()),
        there.cpu,
        there.nonzero,
        lambda: there[there > 0],
        lambda: torch.bincount(there.long()),
        lambda: here.to(AWAY),
        lambda: here.copy_(there),
    ):
        with pytest.raises(WaitedError, match="makes the host wait"):
            wait()


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_rounds_of_every_method_mix_no_devices_and_no_step_waits(
    case: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, words = case
    _, _, programs = make(case, LINE)
    wanted = [play(programs, t)[0] for t in (1, 2)]
    with pretending(monkeypatch) as device:
        spec = METHODS[name](name=name, **(SETTINGS[words] if name in COUPLED else OWN.get(name, {})))
        given = [replace(node, encoder=node.encoder.placed(AWAY)) for node in nodes(LINE)]
        away = [spec.program(node) for node in given]
        found = [play(away, t)[0] for t in (1, 2)]
        assert all(program.stats.V.device == AWAY for program in away)
        assert device.waits.total() > 0  # between steps a round may wait: for its log, and to look at what it reads
    for ours, theirs in zip(chain(*found), chain(*wanted), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert math.isnan(value) or ours[key] == pytest.approx(value, rel=0.01, abs=0.01), key


@pytest.mark.parametrize("optimizer", ["adam", "muon", "sgd"])
@pytest.mark.parametrize("uint8", [True, False])
def test_training_on_pictures_with_all_augmentation_is_that_of_the_cpu(
    optimizer: str, uint8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = pictures()
    X = X if uint8 else X.float() / 255
    settings = {"augment": EVERYTHING, "optimizer": optimizer, "balance": True}
    here = trainer(CPU, **settings)
    loss = here.train(X, y, here.modules.loss, 1)
    with pretending(monkeypatch):
        there = trainer(AWAY, **settings)
        assert there.train(X, y, there.modules.loss, 1) == pytest.approx(loss, rel=1e-5)
        assert {value.device for name, value in there.state_dict().items() if "modules" in name} == {AWAY}
        weights = {name: value.cpu() for name, value in there.modules.state_dict().items()}
        features = encode(there.modules, X)
        assert type(features) is Tensor
    for name, value in here.modules.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(features, encode(here.modules, X), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "peek",
    [
        lambda loss, X, y: loss.item(),
        lambda loss, X, y: bool(loss > 0),
        lambda loss, X, y: X[y == 0],
        lambda loss, X, y: y.cpu(),
        lambda loss, X, y: torch.ones(2).to(X.device),
    ],
)
def test_a_step_that_waits_is_found(peek, device: Pretend) -> None:
    X, y = pictures()
    some = trainer(AWAY)

    def objective(batch: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = some.modules.loss(batch, labels)
        peek(loss, batch, labels)
        return loss

    with pytest.raises(WaitedError):
        some.train(X, y, objective, 1)
    assert not device.strict


def test_a_loss_that_is_no_number_is_told_at_the_end_of_the_round(device: Pretend) -> None:
    X, y = pictures()
    some = trainer(AWAY)
    with pytest.raises(NonFiniteError, match=r"loss of node 0 must be finite; got nan in round 3, class [012]\."):
        some.train(X, y, lambda batch, labels: some.modules.loss(batch, labels) * math.nan, 3)


def test_features_that_are_no_numbers_are_told_with_their_class(device: Pretend) -> None:
    X, y = pictures()
    some = trainer(AWAY)
    X = X.float()
    X[4] = math.nan
    with pytest.raises(NonFiniteError, match=r"features of node 0 must be finite; got nan in round 2, class 1\."):
        some.stats(some.modules.encoder, X, y, K, 2)


@pytest.mark.parametrize("counts", [[5, 5, 5], [20, 1, 0], [0, 0, 7], [1, 0, 0], [40, 30, 2]])
def test_the_layout_of_classes_needs_no_number_of_the_device(counts: list[int], device: Pretend) -> None:
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    Z = torch.nn.functional.normalize(torch.randn(len(y), D, generator=torch.Generator().manual_seed(2)), dim=1)
    wanted = ClassStats.of(Z, y, 3)
    device.strict = True
    there = ClassStats.unchecked(Z.to(AWAY, non_blocking=True), y.to(AWAY, non_blocking=True), 3)
    groups = group_by_class(y.to(AWAY, non_blocking=True), 3)
    device.strict = False
    assert groups.groups * groups.rows <= 3 * max(len(y), 3) + 6  # a small multiple of the data
    torch.testing.assert_close(there.V.cpu(), wanted.V)
    torch.testing.assert_close(there.mu.cpu(), wanted.mu)
    assert torch.equal(there.m.cpu(), wanted.m)


def test_a_sketch_is_copied_to_the_device_once(device: Pretend) -> None:
    X, y = pictures()
    sketch = Convolutions(p=4, filters=8, grid=2).build((3, 8, 8), 0)
    H, Z = sketch(X), torch.nn.functional.normalize(torch.randn(len(y), D), dim=1)
    target = ClassStats.of(Z, y, K, H=H).sketch
    assert target is not None
    wanted = SketchPull(sketch, target, H, y, 1.0)(Z, X, y)
    moments = replace(target, **{name: part.to(AWAY) for name, part in target.tensors().items()})
    pull = SketchPull(sketch, moments, H, y, 1.0)
    Z, X, y = Z.to(AWAY), X.to(AWAY), y.to(AWAY)
    device.strict = True
    found = [pull(Z, X, y) for _ in range(3)]
    device.strict = False
    torch.testing.assert_close(found[-1].cpu(), wanted)


class Yes(TorchDispatchMode):
    """Answers every question for a number with 1: without numbers nobody knows."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        return func(*args, **(kwargs or {}))


def test_cuda_tensors_without_numbers_walk_through_all_of_it() -> None:
    """Shapes and devices only: torch itself says where CUDA and CPU would meet."""
    X, y = pictures()
    PACKED.encode(torch.zeros(1, D, D))  # what codecs keep between calls must be real, for later tests
    with FakeTensorMode(allow_non_fake_inputs=True), Yes(), Picks(), torch.no_grad():
        cuda = torch.device("cuda:0")
        sketch = Convolutions(p=4, filters=8, grid=2).build((3, 8, 8), 0)
        encoder = on_cuda(Mlp(hidden=(16,)).build((3, 8, 8), D, 0)).eval()
        X, y = X.to(cuda), y.to(cuda)
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            torch.ones(2, device=cuda) + torch.ones(2)
        batch = AugmentSpec(shift=1, flip=0.5, brightness=0.3, hue=0.2, grey=0.5).apply(X, torch.Generator())
        Z = encoder(batch)
        stats, other = (ClassStats.unchecked(Z, y, K, sketch(X)) for _ in range(2))
        w = edge_weights(stats, [other], gamma=1.0, eps2=0.5, balance=0.01)
        Y = dual_step(torch.zeros_like(stats.V), stats, [other], 0.1, w)
        coupling = Coupling.of(Y, *fold_neighbours(stats, [other], w), 1.0)
        for beta in (0.1, 1.0):
            terms = coupled_loss(Z, y, coupling, eps2=0.5, scale=1.0, running=RunningStats(stats, beta))
            assert terms.total.device == cuda
        Q = align(stats, other, iterations=2)
        encoder.turn(Q)
        parts = [*stats.rotated(Q).tensors().values(), encoder.gauge]
        for name, spec in CODECS.items():
            codec = spec(name=name, **({"rank": 2} if name == "lowrank" else {}))
            coded = codec.encode(stats.V) | ({"step": torch.tensor(1)} if name == "delta" else {})
            parts += [codec.decode(coded, D, Z.dtype), *codec.bound(coded, D, Z.dtype)]
            parts += [codec.settle(codec.decode(coded, D, Z.dtype)), coded["V"]]
        for optimizer in make_optimizers(encoder, "muon", 0.1, 0.1).values():
            for weight in encoder.parameters():
                weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert {part.device for part in (*parts, *encoder.parameters())} == {cuda}


def on_cuda(encoder):
    """Move weights one by one: torch's own way of moving modules refuses tensors without numbers."""
    for module in encoder.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(weight.detach().to("cuda:0")))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to("cuda:0"))
    return encoder
