"""A training step of the image networks: what their layout saves, what others would; and how to cut up encoding."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.tables import Table
from benchmarks.timing import Competitor, Timing, interleave, milliseconds, ratio
from ratemesh.encoders import ENCODERS
from ratemesh.threads import pinned
from ratemesh.training import local

BATCHES = (64, 128, 256, 512, 1024)
SHARD = 1024


class Case(NamedTuple):
    """A network, its width, the samples' shape, and rows of a step."""

    encoder: str
    width: float
    shape: tuple[int, int, int]
    rows: int

    def __str__(self) -> str:
        return f"{self.encoder}, width {self.width:g}, {self.rows} of {'×'.join(map(str, self.shape))}"

    def network(self) -> nn.Sequential:
        """Return the network as it is shipped."""
        spec = ENCODERS[self.encoder].model_validate({"width": self.width})
        network = spec.network(self.shape, 128)
        assert isinstance(network, nn.Sequential)
        return network


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
NARROW = tuple(Case(name, 0.25, COLOUR, 100) for name in ("resnet18", "vgg11"))
CONV = (Case("conv4", 0.25, GREY, 250), Case("conv4", 1.0, GREY, 250))
WIDE = tuple(Case(name, 1.0, COLOUR, 100) for name in ("resnet18", "vgg11"))


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    cases = (CONV[0], *NARROW) if quick else (*CONV, *NARROW, *WIDE)
    steps: dict[str, dict[str, Timing]] = {}
    for count in (1,) if quick else (1, 2):
        with pinned(count):
            for case in cases:
                repeats = 3 if quick or case in WIDE else 12
                label = f"{case}, {count} thread{'s' * (count > 1)}"
                steps[label] = interleave(_variants(case), repeats, warmup=1)
    with pinned(1):
        encoding = {str(case): interleave(_cuts(case), 2 if quick else 8, warmup=1) for case in cases[:4]}
    return [_step_table(steps), _cut_table(encoding)]


def _variants(case: Case) -> dict[str, Competitor]:
    """Return a training step of the network as it is, and of copies with one choice made otherwise."""
    shipped = case.network()
    usual = copy.deepcopy(shipped)
    usual[0] = nn.Identity()  # in place of the layer that lays samples out with their channels last
    weights = copy.deepcopy(shipped).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    in_place = copy.deepcopy(shipped)
    for layer in in_place.modules():
        if isinstance(layer, nn.ReLU | nn.LeakyReLU):
            layer.inplace = True
    networks = {"shipped": shipped, "usual": usual, "weights": weights, "in place": in_place}
    X = torch.rand(case.rows, *case.shape)
    return {name: _step(network, X) for name, network in networks.items()}


def _step(network: nn.Module, X: Tensor) -> Competitor:
    def step() -> None:
        network.zero_grad(set_to_none=True)
        torch.autograd.backward(network(X)[:, 0].sum())

    return step


def _cuts(case: Case) -> dict[str, Competitor]:
    """Return the encoding of a shard in parts of every size."""
    network, X = case.network().eval(), torch.rand(SHARD, *case.shape)

    def encode(rows: int) -> None:
        with torch.no_grad():
            for part in X.split(rows):
                network(part)

    return {str(rows): partial(encode, rows) for rows in BATCHES}


def _step_table(steps: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = [
        [
            case,
            f"{ratio(of['usual'], of['shipped']):.2f}×",
            f"{ratio(of['weights'], of['shipped']):.2f}×",
            f"{ratio(of['in place'], of['shipped']):.2f}×",
            *milliseconds(of["shipped"]),
        ]
        for case, of in steps.items()
    ]
    return Table(
        "A training step of the image networks",
        "What a step costs with one choice made otherwise, relative to the network as it is: samples with channels "
        "last, weights in the usual layout, activations not in place.",
        (
            "",
            "samples in the usual layout",
            "weights with channels last, too",
            "activations in place",
            "as it is: lower quartile, ms",
            "median, ms",
        ),
        rows,
        "Forward and backward without loss and optimiser, float32.",
    )


def _cut_table(encoding: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = [[case, *(f"{ratio(of['1024'], of[str(size)]):.2f}×" for size in BATCHES)] for case, of in encoding.items()]
    return Table(
        f"Encoding {SHARD} samples in parts",
        f"How many times as fast parts of a size are as one of 1024; `ENCODE_BATCH` is {local.ENCODE_BATCH}.",
        ("", *map(str, BATCHES)),
        rows,
        "Forward only, evaluation mode, float32, one thread.",
    )
