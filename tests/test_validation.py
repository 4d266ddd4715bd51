"""The validation part: every node's and class's share, from the seed, and in nothing that is trained or counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.data import class_counts, hold_out
from ratemesh.engines.inprocess import InProcess
from ratemesh.engines.protocol import Site
from ratemesh.errors import InputError
from ratemesh.experiment import outcome as experiment_outcome
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.outcome import finish, glance
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.site_files import SiteSpec
from ratemesh.experiment.standalone import SitePlan
from ratemesh.experiment.storage import read_tensors
from ratemesh.metrics.accuracies import accuracies
from ratemesh.metrics.evaluate import Learned, evaluate
from ratemesh.seeds import generator
from test_experiment import TINY, outcome, stop_at, tiny
from test_partition import is_partition

K = 4
node_counts = st.lists(st.lists(st.integers(0, 70), min_size=K, max_size=K), min_size=1, max_size=4)
DATA = {**TINY["data"], "validation": 0.25}
PARTIAL = {"partition": {"name": "labels", "labels": [[0, 1], [1, 2], [0, 2], [0, 1, 2]]}}


def dealt(counts: list[list[int]], seed: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return shuffled labels, and the rows of nodes with so many of each class; two more of class 0 each."""
    table = torch.tensor(counts) + 2 * torch.eye(K, dtype=torch.int64)[0]
    k = torch.arange(K).repeat(len(counts)).repeat_interleave(table.flatten())
    node = torch.arange(len(counts)).repeat_interleave(table.sum(1))
    order = torch.randperm(len(k), generator=generator(seed, "order"))
    return k[order], [(node[order] == i).nonzero().flatten() for i in range(len(counts))]


@given(node_counts, st.floats(0, 0.999), st.integers(0, 1000))
def test_every_node_gives_its_part_of_every_class_and_nothing_is_lost(counts, fraction, seed):
    y, parts = dealt(counts, seed)
    before = class_counts(y, parts, K)
    try:
        kept, validation = hold_out(y, parts, K, fraction, generator(seed))
    except InputError as error:
        few = before - (before.double() * fraction).floor()
        assert "must leave every node" in str(error) or "must hold out a sample" in str(error)
        assert bool((few.sum(1) < 2).any()) or float((before * fraction).max()) < 1
        return
    assert is_partition([*kept, validation], len(y))
    assert torch.equal(validation, validation.sort().values)
    after = class_counts(y, kept, K)
    held = before - after
    assert bool(((held - before * fraction).abs() < 1 + 1e-9).all())
    assert torch.equal(after > 0, before > 0)
    for part, own in zip(parts, kept, strict=True):
        assert torch.equal(own, own.sort().values)
        assert bool(torch.isin(own, part).all())


@given(node_counts, st.integers(0, 1000))
def test_left_out_a_tenth_is_held_out_where_every_class_held_has_fifty(counts, seed):
    y, parts = dealt(counts, seed)
    kept, _ = hold_out(y, parts, K, None, generator(seed))
    for before, after in zip(class_counts(y, parts, K).tolist(), class_counts(y, kept, K).tolist(), strict=True):
        enough = all(m >= 50 for m in before if m)
        assert after == ([m - m // 10 for m in before] if enough else before)


@pytest.mark.parametrize(("counts", "held"), [([50, 0, 61, 0], 11), ([49, 0, 61, 0], 0)])
def test_the_rule_on_both_sides_of_fifty(counts, held):
    y = torch.repeat_interleave(torch.arange(K), torch.tensor(counts))
    assert len(hold_out(y, [torch.arange(len(y))], K, None, generator(0))[1]) == held


def test_the_part_depends_on_the_seed_only():
    y, parts = dealt([[30] * K] * 3, 0)
    a, b, c = (hold_out(y, parts, K, 0.3, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(a[1], b[1])
    assert all(torch.equal(p, q) for p, q in zip(a[0], b[0], strict=True))
    assert not torch.equal(a[1], c[1])


def test_fractions_that_leave_or_take_nothing_are_refused():
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    parts = [torch.tensor([0, 1]), torch.tensor([2, 3, 4, 5])]
    with pytest.raises(InputError, match=r"at least 2 samples to train on; got 0\.5, and node 0 keeps 1 of 2"):
        hold_out(y, parts, 2, 0.5, generator(0))
    with pytest.raises(InputError, match=r"must hold out a sample; got 0\.2, .*Raise it"):
        hold_out(y, parts, 2, 0.2, generator(0))
    for wrong in (1, -0.1):
        with pytest.raises(InputError, match=rf"data\.validation: .*got {wrong}"):
            make_config({"data": {"name": "digits", "validation": wrong}})


@pytest.mark.parametrize("changes", [{}, PARTIAL], ids=["all labels", "partial labels"])
def test_nothing_that_is_trained_or_counted_has_seen_it(changes: dict[str, Any]) -> None:
    """Statistics, shares, features and passes are those of the training rows alone."""
    plan = Plan(make_config(tiny(data=DATA, **changes)))
    y = plan.data.y_train
    assert is_partition([*plan.parts, plan.validation], len(y))
    assert plan.labels() == Plan(make_config(tiny(**changes))).labels()
    assert sum(plan.node(i).share for i in range(4)) == pytest.approx(1)
    samples = {x.numpy().tobytes() for x in plan.data.X_train[plan.validation]}
    with InProcess(name="inprocess", workers=1).open(plan, 4) as engine:
        engine.play(1)
        stats, own = engine.ask(Site.stats), engine.ask(Site.features, "train")
    for i, part in enumerate(plan.parts):
        node = plan.node(i)
        assert not samples.intersection(x.numpy().tobytes() for x in node.X)
        assert node.share == len(part) / (len(y) - len(plan.validation))
        assert stats[i]["m"].tolist() == torch.bincount(y[part], minlength=3).tolist()
        assert torch.equal(own[i]["y"], y[part])
        assert int(stats[i]["sample_passes"]) == 3 * len(part)  # two epochs of warm start


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Learned]:
    """Return a list that gets what evaluation is given."""
    seen: list[Learned] = []

    def look(learned: Learned, **options: Any) -> dict[str, Any]:
        seen.append(learned)
        return evaluate(learned, **options)

    monkeypatch.setattr(experiment_outcome, "evaluate", look)
    return seen


def test_evaluation_is_given_the_validation_part_and_fine_labels(tmp_path: Path, judged: list[Learned]) -> None:
    config = make_config({"d": 8, "data": {"name": "digits", "coarse": True}, "graph": {"name": "ring", "nodes": 3}})
    plan = Plan(config)
    folder = RunFolder.create(tmp_path / "run", config)
    with InProcess(name="inprocess", workers=1).open(plan, 3) as engine:
        metrics = finish(engine, plan, folder)
        curve = glance(engine, plan)
    (learned,) = judged
    data, rows = plan.data, plan.validation
    assert metrics["val_samples"] == len(rows) > 100
    assert learned.validation is not None
    assert torch.equal(learned.validation.y, data.y_train[rows])
    assert torch.equal(learned.validation.fine, data.fine_train[rows])
    assert torch.equal(learned.test.fine, data.fine_test)
    assert learned.validation.Z.shape == (3, len(rows), 8)
    found = accuracies(learned.stats, learned.validation.Z, learned.validation.y, plan.rule)
    assert {f"val_{name}": value for name, value in found.items()}.items() <= curve.items()
    assert torch.equal(read_tensors(folder.features)["fine_test"], data.fine_test)
    network = json.loads(folder.network.read_text())
    assert network["fine_classes"] == list("0123456789")
    assert [node["samples"] for node in network["nodes"]] == [len(part) for part in plan.parts]


def test_without_a_validation_part_there_is_none(tmp_path: Path, judged: list[Learned]) -> None:
    plan = Plan(make_config(TINY))
    with InProcess(name="inprocess", workers=1).open(plan, 4) as engine:
        finish(engine, plan, RunFolder.create(tmp_path / "run", plan.config))
        assert not any(name.startswith("val_") for name in glance(engine, plan))
    assert (len(plan.validation), judged[0].validation, judged[0].test.fine) == (0, None, None)


def test_resuming_with_a_validation_part_is_exact(tmp_path: Path) -> None:
    table = tiny(rounds=4, data=DATA, output={"evaluate_every": 1})
    whole, cut = run(table, tmp_path / "whole").folder, tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run(table, cut, progress=stop_at(2))
    resume(cut)
    assert outcome(cut) == outcome(whole)
    last = json.loads((cut / "rounds.jsonl").read_text().splitlines()[-1])
    assert "val_acc_average" in last["evaluation"]
    assert "acc_average" not in last["evaluation"]  # the test samples are for the end


def test_a_site_with_its_own_data_holds_its_part_out_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {"x_train": draw.normal(size=(63, 8)), "y_train": np.arange(63) % 3}
    np.savez(tmp_path / "own.npz", **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    own = {"name": "npz", "path": str(tmp_path / "own.npz"), "validation": 0.2}
    site = {"name": "b", "out": str(tmp_path / "out"), "listen": ["localhost:1"], "data": own, "share": 0.4}
    spec = {"run": "r", "config": tiny(graph={"name": "complete", "nodes": 2}), "insecure": True}
    plan = SitePlan(SiteSpec.model_validate({**spec, "peers": {"a": 0, "b": 1}, "site": site}))
    y = plan.data.y_train
    assert is_partition([plan.parts[1], plan.validation], 63)
    assert torch.bincount(y[plan.validation]).tolist() == [4, 4, 4]
    node = plan.node(1)
    assert torch.equal(node.y, y[plan.parts[1]])
    assert torch.equal(node.X, plan.data.X_train[plan.parts[1]])
    assert node.share == 0.4
    features = plan.site(1).features("validation")
    assert torch.equal(features["y"], y[plan.validation])
