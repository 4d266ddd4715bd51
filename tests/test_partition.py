"""Partitions: nothing lost, nothing twice, each what it promises; and errors that say what to change."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ratemesh.core.theory import proportion_gap
from ratemesh.data import PARTITIONS, PartitionSpec, class_counts
from ratemesh.data.by_label import SCENARIOS
from ratemesh.data.partition import Dirichlet, Quantity, Shards
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.seeds import generator
from ratemesh.specs import resolve

K = 5
label_lists = st.lists(st.integers(0, K - 1), min_size=2, max_size=60)
seeds = st.integers(0, 10_000)


def partition(how, y, nodes, draw, num_classes=None):
    """Split samples with labels y by a table of settings, or a bare name."""
    spec = resolve(how, PARTITIONS, PartitionSpec, "partition")
    return spec.split(y, nodes, num_classes or int(y.max()) + 1, draw)


def is_partition(parts, m):
    """Whether the parts are disjoint and together hold 0..m-1."""
    return torch.equal(torch.cat(list(parts)).sort().values, torch.arange(m))


@st.composite
def label_tables(draw):
    """Labels of nodes that hold every label between them."""
    rows = draw(st.lists(st.sets(st.integers(0, K - 1), min_size=1), min_size=1, max_size=6))
    missing = set(range(K)) - set().union(*rows)
    return [sorted(row | missing) if i == 0 else sorted(row) for i, row in enumerate(rows)]


def counts_of(y, parts):
    return class_counts(y, parts, K)


@given(st.sampled_from(["iid", "stratified"]), label_lists, st.data(), seeds)
def test_even_partitions_are_partitions(name, labels, data, seed):
    y = torch.tensor(labels)
    nodes = data.draw(st.integers(1, len(labels) // 2))
    parts = partition(name, y, nodes, generator(seed))
    assert len(parts) == nodes
    assert sorted(i for part in parts for i in part.tolist()) == list(range(len(labels)))
    assert is_partition(parts, len(labels))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(label_lists, st.data(), seeds)
def test_stratified_deals_every_class_evenly(labels, data, seed):
    y = torch.tensor(labels)
    nodes = data.draw(st.integers(1, len(labels) // 2))
    counts = counts_of(y, partition("stratified", y, nodes, generator(seed)))
    assert int((counts.max(0).values - counts.min(0).values).max()) <= 1


def test_stratified_meets_assumption_one_where_whole_samples_allow():
    y = torch.arange(5).repeat(12)
    assert proportion_gap(counts_of(y, partition("stratified", y, 4, generator(0)))) == 0


def test_iid_does_not_look_at_labels():
    parts = [partition("iid", y, 4, generator(0)) for y in (torch.arange(40) % 2, torch.zeros(40, dtype=torch.int64))]
    assert all(torch.equal(a, b) for a, b in zip(*parts, strict=True))


@given(label_tables(), st.lists(st.integers(12, 30), min_size=K, max_size=K), seeds)
def test_labels_go_to_their_holders_only_and_evenly(rows, sizes, seed):
    y = torch.repeat_interleave(torch.arange(K), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=generator(seed, "order"))]
    parts = partition({"name": "labels", "labels": rows}, y, len(rows), generator(seed))
    assert is_partition(parts, len(y))
    counts = counts_of(y, parts)
    for k in range(K):
        held = [int(counts[i, k]) for i, row in enumerate(rows) if k in row]
        assert sum(held) == sizes[k]  # so nobody else has any
        assert max(held) - min(held) <= 1
        assert min(held) > 0


@pytest.mark.parametrize(("name", "nodes"), [("4x5", 4), ("5x4", 5)])
def test_the_papers_scenarios(name, nodes):
    y = torch.arange(10).repeat(20)
    parts = partition({"name": "labels", "labels": name}, y, nodes, generator(0))
    assert [sorted(y[part].unique().tolist()) for part in parts] == [sorted(row) for row in SCENARIOS[name]]
    assert {len(part) for part in parts} == {200 // nodes}  # every label has two holders


@given(st.floats(0.05, 100), st.integers(1, 6), seeds)
def test_dirichlet_is_a_partition_with_enough_for_everyone(alpha, nodes, seed):
    y = torch.arange(300) % K
    how = Dirichlet(alpha=alpha, min_samples=2)
    parts = how.split(y, nodes, K, generator(seed))
    assert is_partition(parts, len(y))
    assert min(map(len, parts)) >= 2


def test_dirichlet_has_the_mean_and_spread_of_its_proportions():
    """Shares p of a class have mean 1/N and variance (1/N)(1 − 1/N)/(Nα + 1)."""
    y, nodes, alpha = torch.arange(20_000) % 20, 4, 0.7
    shares = torch.cat(
        [
            class_counts(y, Dirichlet(alpha=alpha).split(y, nodes, 20, generator(seed)), 20).double() / 1000
            for seed in range(20)
        ]
    )
    assert shares.mean().item() == pytest.approx(1 / nodes, abs=1e-9)
    assert shares.var().item() == pytest.approx(0.25 * 0.75 / (nodes * alpha + 1), rel=0.15)


def test_dirichlet_goes_from_one_holder_to_even():
    y = torch.arange(4000) % K
    skewed, even = (Dirichlet(alpha=a, min_samples=2).split(y, 4, K, generator(1)) for a in (0.01, 1e6))
    assert counts_of(y, skewed).max(0).values.double().mean() > 0.9 * 800
    assert proportion_gap(counts_of(y, even)) < 0.01


@given(st.floats(0.3, 100), st.integers(1, 5), seeds)
def test_quantity_skews_sizes_and_keeps_proportions(alpha, nodes, seed):
    y = torch.cat([torch.arange(K).repeat(60), torch.zeros(200, dtype=torch.int64)])
    how = Quantity(alpha=alpha, min_samples=2)
    parts = how.split(y, nodes, K, generator(seed))
    assert is_partition(parts, len(y))
    counts = counts_of(y, parts)
    assert min(map(len, parts)) >= 2
    assert bool((counts > 0).all())
    size = counts.sum(1, keepdim=True)
    assert bool(((counts - size * torch.bincount(y) / len(y)).abs() <= 1 + K * torch.bincount(y) / len(y)).all())


def test_quantity_makes_sizes_differ():
    y = torch.arange(4000) % K
    sizes = [len(part) for part in Quantity().split(y, 5, K, generator(0))]
    assert max(sizes) > 2 * min(sizes)


@given(label_lists, st.integers(1, 4), st.data(), seeds)
def test_shards_are_runs_of_the_sorted_samples(labels, per_node, data, seed):
    y = torch.tensor(labels)
    nodes = data.draw(st.integers(1, len(labels) // 2))
    assume(nodes * per_node <= len(y))
    how = Shards(per_node=per_node)
    parts = how.split(y, nodes, K, generator(seed))
    assert is_partition(parts, len(y))
    counts = counts_of(y, parts)
    sizes = counts.sum(1)
    assert int(sizes.max() - sizes.min()) <= per_node
    assert int((counts > 0).sum()) <= nodes * per_node + K - 1


def test_shards_of_whole_labels():
    y = torch.arange(10).repeat(20)
    parts = partition("shards", y, 5, generator(0))
    assert [len(y[part].unique()) for part in parts] == [2] * 5


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        (Dirichlet(min_samples=5), [[3, 1], [4, 3]]),
        (Quantity(min_samples=2), [[90, 10], [10, 90]]),
        (Quantity(min_samples=2), [[90, 90], [2, 0]]),
    ],
)
def test_draws_that_are_too_uneven_are_not_accepted(how, counts):
    assert not how.accepts(torch.tensor(counts))


TABLES = {
    "dirichlet": "dirichlet",
    "iid": "iid",
    "labels": {"name": "labels", "labels": [[0, 1], [1, 2], [0, 2]]},
    "quantity": "quantity",
    "shards": "shards",
    "stratified": {"name": "stratified"},
}


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_partitions_depend_on_the_seed_only(name):
    y = torch.arange(120) % 3
    a, b, c = (partition(TABLES[name], y, 3, generator(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(a, c, strict=True))


@pytest.mark.parametrize(
    ("parts", "m", "answer"),
    [
        ([[2, 0], [1]], 3, True),
        ([[0, 1], [1, 2]], 3, False),
        ([[0, 1]], 3, False),
        ([[0, 1], [3, 2]], 3, False),
        ([[0, 0], [2]], 3, False),
    ],
    ids=["partition", "twice", "missing", "too many", "twice in one"],
)
def test_the_checker_sees_what_is_a_partition(parts, m, answer):
    assert is_partition([torch.tensor(part) for part in parts], m) is answer


@pytest.mark.parametrize(
    ("table", "nodes", "message"),
    [
        ("stratifed", 2, r"partition\.name must be a known partition; got 'stratifed'\. Did you mean 'stratified'\?"),
        ("iid", 6, r"at least 2 samples each; got 6 nodes for 10 samples"),
        ("labels", 2, r"partition\.labels: Field required"),
        ({"name": "labels", "labels": "5x5"}, 5, r"known scenario; got '5x5'\. Did you mean '.x.'\? Known: 4x5, 5x4"),
        (
            {"name": "labels", "labels": [[0, 1, 2, 3, 4]]},
            2,
            r"one row a node.*got 1 rows for 2 nodes.*graph\.nodes = 1",
        ),
        (
            {"name": "labels", "labels": [[0, 1, 2], [4]]},
            2,
            r"nobody holds label 3, which has 2 samples\. Add 3 to a row",
        ),
        ({"name": "labels", "labels": [[0, 1, 2, 3], []]}, 2, r"every node a label; row 1 is empty"),
        ({"name": "labels", "labels": [[0, 1, 2], [3, 5]]}, 2, r"labels in 0\.\.4; row 1 has 5"),
        ({"name": "labels", "labels": [[0, 1, -1], [3]]}, 2, r"labels in 0\.\.4; row 0 has -1"),
        ({"name": "labels", "labels": [[0, 1, 1], [3]]}, 2, r"once a row; row 0 is \[0, 1, 1\]"),
        (
            {"name": "labels", "labels": [[0, 1], [0, 2], [0, 3, 4]]},
            3,
            r"3 nodes hold label 0, which has 2\. Take 0 out of 1 rows",
        ),
        ({"name": "labels", "labels": [["a"]]}, 1, r"labels in 0\.\.4; row 0 has a\."),
        ({"name": "dirichlet", "alpha": 0}, 2, r"partition\.alpha: .*got 0"),
        ({"name": "dirichlet", "min_samples": 6}, 2, r"min_samples must fit.*got 6 for 2 nodes and 10.*at most 5"),
        ({"name": "quantity", "min_samples": 2}, 3, r"got 2 of class 0 for 3 nodes"),
        (
            {"name": "quantity", "alpha": 0.001, "min_samples": 2},
            2,
            r"fewer than 2 or without a class\. Raise partition\.alpha",
        ),
        ({"name": "shards", "per_node": 6}, 2, r"per_node must leave a sample a shard; got 6.*at most 5"),
        ({"name": "shards", "shards": 6}, 2, r"partition\.shards is not a setting"),
        (3, 2, r"partition must be a table or a name; got 3"),
    ],
)
def test_bad_settings_name_key_value_and_remedy(table, nodes, message):
    with pytest.raises(InputError, match=message):
        partition(table, torch.arange(10) % 5, nodes, generator(0))


def test_redraws_are_bounded():
    message = r"partition\.alpha must leave.*got 0\.001.*1000 draws.*fewer than 500\. Raise partition\.alpha"
    with pytest.raises(InputError, match=message):
        Dirichlet(alpha=0.001, min_samples=500).split(torch.zeros(1000, dtype=torch.int64), 2, 1, generator(0))


def test_an_agent_without_data_is_named():
    y = torch.tensor([0] * 9 + [1])
    with pytest.raises(InputError, match=r"at least 2 samples; 'labels' gives node 1 1 of 10"):
        partition({"name": "labels", "labels": [[0], [1]]}, y, 2, generator(0))


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (torch.tensor([0, 1, 2, 3]), 3, r"labels in 0\.\.2; got 3"),
        (torch.tensor([0, -1, 2, 1]), 3, r"labels in 0\.\.2; got -1"),
        (torch.tensor([0.0, 1.0]), 2, r"whole numbers; got shape \(2,\), torch\.float32"),
        (torch.zeros(2, 2, dtype=torch.int64), 2, r"got shape \(2, 2\)"),
    ],
)
def test_labels_of_the_data_are_checked(y, classes, message):
    with pytest.raises(InputError, match=message):
        partition("iid", y, 1, generator(0), classes)


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_there_must_be_a_node(name):
    with pytest.raises(InputError, match="nodes"):
        partition(TABLES[name], torch.arange(30) % 3, 0, generator(0))


@pytest.mark.parametrize(
    "table", ["iid", {"name": "iid"}, {"name": "labels", "labels": "4x5"}, {"name": "dirichlet", "alpha": 1}]
)
def test_a_configuration_takes_a_name_or_a_table(table):
    config = make_config({"partition": table})
    assert config.partition.name == (table if isinstance(table, str) else table["name"])
    assert make_config(config.model_dump(mode="json", exclude_none=True)) == config


def test_a_preset_s_partition_gives_way():
    assert make_config({}).partition.name == "stratified"
    config = make_config({"partition": "stratified"}, ["partition.name=shards", "partition.per_node=3"])
    assert (config.partition.name, config.partition.per_node) == ("shards", 3)
