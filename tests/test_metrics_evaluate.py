"""What a run's metrics.json holds, when it holds nothing for a number, and that evaluation repeats to the bit."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule, accuracy
from ratemesh.errors import InputError
from ratemesh.experiment import experiment, outcome
from ratemesh.metrics.accuracies import knn_predict, linear_predict
from ratemesh.metrics.classes import class_mean_cosine, iidr, wccr
from ratemesh.metrics.evaluate import HeldOut, Learned, evaluate, glimpse
from ratemesh.metrics.geometry import cka_paired, cka_unpaired, mean_principal_angle
from ratemesh.metrics.language import fine_pairs, judged_pairs, pair_cosine, retrieval_pairs, thinned

K, D = 3, 8
EDGES = [(0, 1), (1, 2)]
ACCURACIES = {"acc_average", "acc_energy", "acc_node", "acc_gaussian", "acc_knn", "acc_linear"}
OWN = {"acc_own", "acc_own_gaussian", "retrieval_own", "retrieval_map_own"}
CROSS = {"acc_cross", "acc_cross_worst", "acc_cross_gaussian", "retrieval_cross", "retrieval_map_cross"}
LANGUAGE = OWN | CROSS
KEYS = (
    ACCURACIES
    | LANGUAGE
    | {
        *("pair_cosine", "cross_matrix", "retrieval_matrix"),
        *("disagreement", "overlap", "rank_min", "rank_max", "expand", "compress", "reduction", "reduction_test"),
        *("wccr", "wccr_floor", "wccr_n", "wccr_per_node", "wccr_per_node_floor", "wccr_per_node_n"),
        *("iidr", "iidr_floor", "iidr_n", "iidr_per_node", "iidr_per_node_floor", "iidr_per_node_n"),
        *("class_mean_cosine_mean", "class_mean_cosine_std", "class_mean_noise", "train_samples_per_class"),
        *("cka_paired", "cka_paired_debiased", "cka_paired_n", "cka_unpaired", "cka_unpaired_floor", "cka_unpaired_n"),
        *("principal_angle_mean", "undefined"),
    }
)
TINY = {
    "preset": "plain",
    "rounds": 1,
    "d": 8,
    "data": {"name": "subspaces", "classes": 3, "ambient": 8, "rank": 2, "per_class": 24},
    "encoders": [{"name": "mlp", "hidden": [12]}],
    "local": {"epochs": 1, "batch_size": 8},
    "engine": {"workers": 1},
}


def features(y, seed):
    noise = torch.randn(len(y), D, generator=torch.Generator().manual_seed(seed))
    return normalize(torch.eye(K, D)[y] + 0.5 * noise, dim=1)


def learned_by(labels, edges=EDGES):
    """Return what nodes with these training labels learned; every node's features have another noise."""
    y = [torch.tensor(labels_i) for labels_i in labels]
    Z = [features(y_i, seed) for seed, y_i in enumerate(y)]
    y_test = torch.arange(K).repeat(5)
    Z_test = torch.stack([features(y_test, 50 + i) for i in range(len(y))])
    stats = [ClassStats.of(Z_i, y_i, K) for Z_i, y_i in zip(Z, y, strict=True)]
    return Learned(stats, Z, y, HeldOut(Z_test, y_test), edges)


@pytest.fixture
def learned():
    return learned_by([[0, 1, 2] * 4, [0, 0, 1, 1, 2, 2, 2], [0, 1, 2] * 3])


def judged(learned, rank=None):
    return evaluate(learned, eps2=0.5, rule=SubspaceRule(0.9, rank))


def test_every_number_is_there_and_its_own(learned):
    found = judged(learned)
    Z, y, Z_test, y_test = learned.Z_train, learned.y_train, learned.test.Z, learned.test.y
    assert set(found) == KEYS
    assert found["undefined"] == []
    for name, metric in (("wccr", wccr), ("iidr", iidr)):
        assert (found[name], found[f"{name}_floor"]) == (metric(Z, y).value, metric(Z, y).floor)
        each = metric(Z, y, per_node=True)
        assert (found[f"{name}_per_node"], found[f"{name}_per_node_floor"]) == (each.value, each.floor)
        assert (found[f"{name}_n"], found[f"{name}_per_node_n"]) == (28, 28 / 3)
    cosine = class_mean_cosine(Z, y)
    assert (found["class_mean_cosine_mean"], found["class_mean_cosine_std"]) == (cosine.mean, cosine.std)
    assert found["train_samples_per_class"] == [9, 9, 10]
    assert found["cka_paired"] == cka_paired(Z_test)
    assert found["cka_paired_debiased"] == cka_paired(Z_test, debiased=True)
    unpaired = cka_unpaired(Z, torch.Generator().manual_seed(0))
    assert (found["cka_unpaired"], found["cka_unpaired_floor"]) == (unpaired.value, unpaired.floor)
    assert (found["cka_paired_n"], found["cka_unpaired_n"]) == (15, 7)
    assert found["principal_angle_mean"] == mean_principal_angle(learned.stats, EDGES, SubspaceRule(0.9, most=None))
    held_out = ClassStats.of(Z_test.reshape(-1, D), y_test.repeat(3), K)
    assert found["reduction_test"] == pytest.approx(float(rate_reduction(held_out, 0.5).reduction), rel=1e-5)
    nodes = list(zip(Z, y, Z_test, strict=True))
    linear = [accuracy(linear_predict(a, b, c), y_test) for a, b, c in nodes]
    assert found["acc_linear"] == pytest.approx(sum(linear) / 3)
    assert found["acc_knn"] == pytest.approx(sum(accuracy(knn_predict(a, b, c), y_test) for a, b, c in nodes) / 3)


def test_what_nodes_say_to_each_other_is_that_of_the_pairs(learned):
    found = judged(learned)
    Z, y = learned.test.Z, learned.test.y
    P = judged_pairs(learned.stats, Z, y, SubspaceRule(0.9))
    recall, precision = retrieval_pairs(Z, y)
    assert (found["cross_matrix"], found["retrieval_matrix"]) == (P.tolist(), recall.tolist())
    assert found["acc_own"] == pytest.approx(float(P.trace()) / 3)
    assert found["acc_cross"] == pytest.approx(float(P.sum() - P.trace()) / 6)
    assert found["acc_cross_worst"] == float(P[~torch.eye(3, dtype=torch.bool)].min())
    assert found["retrieval_cross"] == pytest.approx(float(recall.sum() - recall.trace()) / 6)
    assert found["retrieval_map_own"] == pytest.approx(float(precision.trace()) / 3)
    assert found["pair_cosine"] == pair_cosine(Z)


def test_validation_and_finer_labels_have_numbers_of_their_own(learned):
    """Validation samples that are the test samples must give its numbers, and finer labels that are the coarse ones."""
    plain = judged(learned)
    held = HeldOut(learned.test.Z, learned.test.y, learned.test.y + 7)
    found = judged(replace(learned, test=held, validation=held))
    fine = {f"{key}_fine" for key in LANGUAGE - {"acc_own_gaussian", "acc_cross_gaussian"}}
    chosen_by = (ACCURACIES - {"acc_knn", "acc_linear"}) | LANGUAGE | fine | {"pair_cosine"}
    matrices = {"cross_matrix_fine", "retrieval_matrix_fine"}
    assert set(found) == KEYS | fine | matrices | {f"val_{key}" for key in chosen_by}
    assert all(found[f"val_{key}"] == found[key] for key in chosen_by)
    assert all(found[key] == plain[key] for key in LANGUAGE)
    assert all(found[f"{key}_fine"] == found[key] for key in LANGUAGE if key.startswith("retrieval"))
    assert found["cross_matrix_fine"] == fine_pairs(held.Z, held.fine, SubspaceRule(0.9)).tolist()
    alone = judged(replace(learned_by([[0, 1, 2] * 4], edges=[]), validation=HeldOut(held.Z[:1], held.y)))
    assert {f"val_{key}" for key in CROSS} <= {note.split(":")[0] for note in alone["undefined"]}


def test_a_glimpse_has_the_numbers_of_the_end_by_part(learned):
    rule = SubspaceRule(0.9)
    found = glimpse(learned.stats, {"": learned.test, "val_": learned.test, "none_": None}, rule)
    keys = {"acc_average", "acc_energy", "acc_node", "acc_gaussian", "acc_own", "acc_cross"}
    keys |= {"retrieval_own", "retrieval_cross"}
    assert set(found) == keys | {f"val_{key}" for key in keys}
    end = judged(learned)
    assert all(found[key] == found[f"val_{key}"] == end[key] for key in keys)


def test_rank_reaches_the_angles_and_rank_zero_leaves_them_to_energy(learned):
    one = SubspaceRule(rank=1)
    assert judged(learned, 1)["principal_angle_mean"] == mean_principal_angle(learned.stats, EDGES, one)
    assert judged(learned, 0)["principal_angle_mean"] == judged(learned)["principal_angle_mean"]


def test_one_node_has_nobody_to_agree_with():
    found = judged(learned_by([[0, 1, 2] * 4], edges=[]))
    missing = {key for key, value in found.items() if isinstance(value, float) and math.isnan(value)}
    names = CROSS | {
        "pair_cosine",
        "disagreement",
        "cka_paired",
        "cka_paired_debiased",
        "cka_unpaired",
        "principal_angle_mean",
    }
    assert missing == names | {"cka_unpaired_floor"}
    assert {note.split(":")[0] for note in found["undefined"]} == names
    assert set(found) == KEYS


def test_nodes_of_one_class_are_named_and_what_pooling_can_measure_is_measured():
    found = judged(learned_by([[0] * 6, [1] * 6, [2] * 6]))
    assert 0 < found["wccr"] < 1
    assert math.isnan(found["wccr_per_node"])
    notes = dict(note.split(":", 1) for note in found["undefined"])
    strangers = {"acc_cross", "acc_cross_worst", "acc_cross_gaussian"}
    assert set(notes) == strangers | {"wccr_per_node", "iidr_per_node", "principal_angle_mean"}
    assert 0 <= found["acc_hearsay"] <= 1
    assert "two classes" in notes["wccr_per_node"]
    some = judged(learned_by([[0, 0, 1, 1, 2, 2], [1] * 6, [0, 1, 2, 2]]))
    assert some["wccr_per_node_n"] == 5
    assert any(note.startswith("wccr_per_node: nodes [1] are left out") for note in some["undefined"])


def test_a_collapsed_encoder_ends_in_words_not_in_a_traceback(learned):
    Z_test = learned.test.Z.clone()
    Z_test[0] = Z_test[0, 0]
    found = judged(Learned(learned.stats, learned.Z_train, learned.y_train, HeldOut(Z_test, learned.test.y), EDGES))
    assert math.isnan(found["cka_paired"])
    assert "collapsed encoder" in " ".join(found["undefined"])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 60), st.integers(0, 99))
def test_thinning_keeps_every_class_in_proportion(labels_of, counts, most, seed):
    y = labels_of(counts, seed)
    rows = thinned(y, most)
    assert len(rows) == min(most, len(y))
    assert bool((rows.diff() > 0).all())
    expected = torch.tensor(counts) * len(rows) / len(y)
    found = y[rows].bincount(minlength=len(counts))
    assert bool(((found - expected).abs() <= 1 + 1e-9).all())


def test_thinning_does_not_fall_in_step_with_labels_that_repeat():
    assert thinned(torch.arange(10).repeat(100), 100).remainder(10).bincount().tolist() == [10] * 10


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_run_writes_numbers_lists_and_words(tmp_path, nodes):
    folder = experiment.run({**TINY, "graph": {"name": "empty", "nodes": nodes}}, tmp_path / "run").folder
    found = json.loads((folder / "metrics.json").read_text())
    assert set(found) >= KEYS
    assert all(0 <= found[key] <= 1 for key in ACCURACIES | OWN | {"wccr", "wccr_per_node"})
    assert [len(row) for row in found["cross_matrix"]] == [nodes] * nodes
    assert found["wccr_n"] == 72
    assert found.pop("best_round") is None  # no [stopping], no best
    absent = {key.removesuffix("_floor") for key, value in found.items() if value is None}
    assert absent == {note.split(":")[0] for note in found["undefined"]}
    assert all(isinstance(value, float | int | str | list) for value in found.values() if value is not None)


def test_evaluation_uses_one_thread_whatever_this_process_has(tmp_path, monkeypatch):
    """With workers this process keeps its own number of threads, and sums of floats depend on it."""
    seen = []

    def spy(*args, **settings):
        seen.append(torch.get_num_threads())
        return evaluate(*args, **settings)

    monkeypatch.setattr(outcome, "evaluate", spy)
    setting = {**TINY, "graph": {"name": "ring", "nodes": 3}, "engine": {"workers": 1, "threads": 2}}
    experiment.run(setting, tmp_path / "run")
    assert seen == [1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": TINY["data"] | {"classes": 1}}, r"data must have at least two classes to tell apart; got 1\. Check"),
        ({"method": {"eps2": 1e-7}}, r"eps2 must be at least 9\.5e-06 for second moments of torch\.float32 with d = 8"),
    ],
)
def test_a_run_that_no_number_could_judge_is_refused(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        experiment.run(TINY | changes, tmp_path / "run")
    assert not (tmp_path / "run").exists()
