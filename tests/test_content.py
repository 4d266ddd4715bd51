"""What programs take from peers they cannot trust, and rounds in which some of it is missing."""

import random
from functools import cache
from typing import Any

import pytest
import torch

from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import ExperimentSite, Plan
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange

SMALL: dict[str, Any] = {
    "preset": "plain",
    "rounds": 3,
    "d": 12,
    "data": {"name": "subspaces", "classes": 4, "ambient": 12, "rank": 2, "per_class": 30},
    "graph": {"name": "complete", "nodes": 4},
    "encoders": [{"name": "mlp", "hidden": [16]}],
    "local": {"epochs": 1, "batch_size": 20},
}
METHODS: dict[str, dict[str, Any]] = {
    "alg1": {"method": {"name": "alg1", "warm_start": {"epochs": 0}}},
    "alg1 delta": {"method": {"name": "alg1", "warm_start": {"epochs": 0}, "codec": "delta"}},
    "alg3": {
        "method": {"name": "alg3", "warm_start": {"epochs": 0}},
        "partition": {"name": "labels", "labels": [[0, 1], [2, 3], [0, 2], [1, 3]]},
    },
    "dsgd": {"method": {"name": "dsgd"}, "same_init": True},
    "fedproto": {"method": {"name": "fedproto"}},
}


@cache
def plan(method: str) -> Plan:
    return Plan(make_config(SMALL | METHODS[method]))


def said(method: str, node: int) -> Exchange:
    """Return the first exchange of a node."""
    return next(ExperimentSite(plan(method), node).round(1))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", METHODS)
def test_a_real_message_passes_and_changes_nothing(method: str) -> None:
    site, exchange = ExperimentSite(plan(method), 0), said(method, 1)
    before = {name: value.clone() for name, value in site.program.state().items()}
    site.read(exchange.tag, 1, exchange.send[0])
    after = {name: value for name, value in site.program.state().items() if ".told." not in name}
    assert same(before, after)  # what codec delta remembers of a sender is all that may be new


CHANGES: dict[str, Any] = {
    "no number": lambda x: torch.full_like(x, float("nan")),
    "infinite": lambda x: torch.full_like(x, float("inf")),
    "another type": lambda x: x.double(),
    "another shape": lambda x: x[:-1],
    "one axis more": lambda x: x[None],
    "nothing": lambda x: x[:0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("method", [m for m in METHODS if m != "alg1 delta"])
def test_tensors_that_do_not_fit_are_refused(method: str, change: Any) -> None:
    site, exchange = ExperimentSite(plan(method), 0), said(method, 1)
    payload = exchange.send[0]
    for name, tensor in payload.items():
        if tensor.is_floating_point():
            if name != "m" and change is CHANGES["another type"] and method not in ("dsgd", "fedproto"):
                continue  # V and means are read in the type of the counts
            with pytest.raises(RatemeshError, match="the message of node 1 was refused"):
                site.read(exchange.tag, 1, {**payload, name: change(tensor)})


@pytest.mark.parametrize(
    "change",
    [
        {"m": -torch.ones(4)},
        {"m": torch.full((4,), 1e30)},
        {"hops": torch.tensor(2**31 - 1, dtype=torch.int32)},
        {"hops": torch.tensor(-5, dtype=torch.int32)},
        {"hops": torch.tensor([0, 1], dtype=torch.int32)},
        {"V": torch.zeros(4, 78)},
        {"V": 2 * torch.eye(12)[tuple(torch.triu_indices(12, 12))].expand(4, 78) / 12},
        {"mu": torch.ones(4, 12)},
        {"more": torch.zeros(1)},
    ],
    ids=str,
)
def test_statistics_that_no_unit_vectors_have_are_refused(change: dict[str, torch.Tensor]) -> None:
    site, exchange = ExperimentSite(plan("alg1"), 0), said("alg1", 1)
    with pytest.raises(RatemeshError, match="the message of node 1 was refused"):
        site.read(exchange.tag, 1, {**exchange.send[0], **change})


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(RatemeshError, match="'gossip' is no message of this method"):
        ExperimentSite(plan("alg1"), 0).read("gossip", 1, said("alg1", 1).send[0])


def disturbed(rng: random.Random, payload: Payload) -> dict[str, torch.Tensor]:
    """Return a payload with one tensor changed, gone, renamed or added."""
    found = {name: tensor.clone() for name, tensor in payload.items()}
    name = rng.choice(list(found))
    tensor = found.pop(name)
    match rng.randrange(6):
        case 0:
            found[name] = tensor.to(rng.choice([torch.int8, torch.int64, torch.float16, torch.float64]))
        case 1:
            found[name] = torch.randn(tuple(rng.randint(0, 5) for _ in range(rng.randint(0, 4))))
        case 2:
            found[name[:-1] + rng.choice("xyz")] = tensor
        case 3 if tensor.numel():
            flat = tensor.flatten()
            flat[rng.randrange(len(flat))] = rng.choice([-1, 127, 3]) if not flat.is_floating_point() else 1e38
            found[name] = flat.reshape(tensor.shape)
        case 4:
            found[name] = tensor
            found[rng.choice(["V.scale", "mu", "degree", "step", ""])] = torch.randn(2)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_no_payload_breaks_a_reader(method: str) -> None:
    """Whatever comes is taken or refused, and nothing else happens."""
    rng = random.Random(method)
    torch.manual_seed(0)
    site, exchange = ExperimentSite(plan(method), 0), said(method, 1)
    refused = 0
    for _ in range(200):
        try:
            site.read(exchange.tag, 1, disturbed(rng, exchange.send[0]))
        except RatemeshError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("absent", [{3}, {1, 2}, {1, 2, 3}], ids=str)
@pytest.mark.parametrize("method", ["alg1", "alg3", "dsgd", "fedproto"])
def test_a_round_can_be_played_without_some_or_all_peers(method: str, absent: set[int]) -> None:
    """Nodes are played one after the other here, so a turn says what was said before it."""
    site = ExperimentSite(plan(method), 0)
    words = {j: said(method, j).send[0] for j in (1, 2, 3)}
    program = site.round(1)
    exchange = next(program)
    while True:
        try:
            heard = sorted(exchange.recv - absent)
            exchange = program.send({j: site.read(exchange.tag, j, words[j]) for j in heard})
        except StopIteration as end:
            log = end.value
            break
    assert torch.isfinite(torch.tensor([log["total"], log["reduction"]])).all()
    assert torch.isfinite(site.program.stats.V).all()
