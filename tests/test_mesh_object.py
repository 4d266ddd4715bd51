"""`ratemesh.Mesh`: own networks and data in, predictions with the labels that were given out; saved and loaded."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import ratemesh as rm
from ratemesh.encoders.networks import Mlp
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.records import RunFolder
from ratemesh.graph.topology import Ring
from toy_nodes import WORDS, Forgetful, Wide, nets, nodes, samples

HOW = {
    "local": {"epochs": 5, "optimizer": "muon", "batch_size": 50},
    "method": {"cross_entropy": 10},
}


@pytest.fixture(scope="module")
def mesh() -> rm.Mesh:
    return rm.Mesh(nodes(), graph="ring", **HOW).fit(rounds=8, validation=0.1, progress=False)


def test_new_samples_get_the_labels_that_were_given(mesh) -> None:
    X, y = samples(9, 300)
    labels, scores = mesh.predict(X, return_scores=True)
    assert set(labels) <= set(WORDS)
    assert (labels == WORDS[y]).mean() > 0.85
    assert scores.shape == (300, 3)
    assert (mesh.classes[scores.argmax(1)] == labels).all()
    assert mesh.score(X, WORDS[y]) == (labels == WORDS[y]).mean()


def test_features_are_unit_vectors_of_one_node_or_the_mean_of_all(mesh) -> None:
    X, _ = samples(9, 20)
    own = [mesh.encode(X, node=i) for i in (0, 1)]
    assert own[0].shape == (20, 8)
    np.testing.assert_allclose(np.linalg.norm(own[0], axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(mesh.encode(X), (own[0] + own[1]) / 2, atol=1e-6)
    assert isinstance(mesh.encode(torch.from_numpy(X)), torch.Tensor)


def test_what_one_node_says_another_understands(mesh) -> None:
    X, y = samples(9, 300)
    assert mesh.score(X, WORDS[y], node=0, judge=1) > 0.75


@pytest.mark.parametrize("fusion", ["energy", "average", "gaussian"])
def test_every_way_of_judging_works_for_all_and_for_one(mesh, fusion) -> None:
    X, y = samples(9, 300)
    for node in (None, 0):
        assert mesh.score(X, WORDS[y], node=node, fusion=fusion) > 0.75
    assert mesh.scores(X, fusion=fusion).shape == (300, 3)


def test_networks_that_were_given_stay_as_they_were() -> None:
    given = nodes()
    before = {name: value.clone() for name, value in given[0].network.state_dict().items()}
    rm.Mesh(given).fit(rounds=1, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in given[0].network.state_dict().items())


def test_fitting_twice_gives_the_same(mesh) -> None:
    again = rm.Mesh(nodes(), graph="ring", **HOW).fit(rounds=8, validation=0.1, progress=False)
    X, _ = samples(9, 50)
    np.testing.assert_array_equal(again.encode(X), mesh.encode(X))


def test_a_saved_mesh_says_the_same_and_holds_no_pickle(mesh, tmp_path) -> None:
    folder = mesh.save(tmp_path / "trees")
    X, _ = samples(9, 50)
    loaded = rm.load(folder)
    np.testing.assert_array_equal(loaded.encode(X), mesh.encode(X))
    assert (loaded.predict(X) == mesh.predict(X)).all()
    assert sorted({path.suffix for path in folder.iterdir()}) == [".json", ".md", ".safetensors"]
    assert "optimizer" not in " ".join(torch_keys(folder))
    assert "ash, beech, cedar" in (folder / "README.md").read_text()
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(rm.load(tmp_path / "again").encode(X), mesh.encode(X))


def torch_keys(folder) -> list[str]:
    from safetensors import safe_open

    keys = []
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            keys += list(file.keys())
    return keys


def test_networks_without_a_recipe_are_asked_for(tmp_path) -> None:
    given = [rm.Node(Forgetful(5), *samples(i)) for i in (0, 1)]
    mesh = rm.Mesh(given).fit(rounds=1, progress=False)
    mesh.save(tmp_path / "m")
    assert "networks=[…]" in (tmp_path / "m" / "README.md").read_text()
    with pytest.raises(InputError, match=r"networks=\[…\]"):
        rm.load(tmp_path / "m")
    X, _ = samples(9, 10)
    loaded = rm.load(tmp_path / "m", networks=[Forgetful(5), Forgetful(5)])
    np.testing.assert_array_equal(loaded.encode(X), mesh.encode(X))
    with pytest.raises(InputError, match="weights of the network"):
        rm.load(tmp_path / "m", networks=[Forgetful(6), Forgetful(6)])
    with pytest.raises(InputError, match="one a node, 2; got 1"):
        rm.load(tmp_path / "m", networks=[Forgetful(5)])


@pytest.mark.parametrize("what", ["os:system", "no.such.module:Net", "torch.nn:NoSuchLayer"])
def test_a_card_cannot_make_anything_but_networks(mesh, tmp_path, what) -> None:
    folder = mesh.save(tmp_path / "m")
    card = json.loads((folder / "mesh.json").read_text())
    card["nodes"][0]["recipe"] = {"type": what, "arguments": {"command": "true"}}
    (folder / "mesh.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="networks must be"):
        rm.load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card.update(schema=99), "another version"),
        (lambda card: card.update(d=9), "in 9 dimensions|weights of the network"),
        (lambda card: card.update(classes=["a", "b"]), "must hold 2 classes"),
        (lambda card: card.pop("intake"), "intake"),
        (lambda card: card.update(extra=1), "extra is not a setting"),
    ],
)
def test_a_damaged_card_is_refused_in_words(mesh, tmp_path, change, words) -> None:
    folder = mesh.save(tmp_path / "m")
    card = json.loads((folder / "mesh.json").read_text())
    change(card)
    (folder / "mesh.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match=words):
        rm.load(folder)


def test_a_mesh_is_not_saved_over_something_else(mesh, tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        mesh.save(tmp_path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    table = {
        "data": {"name": "subspaces", "per_class": 30},
        "graph": {"name": "ring", "nodes": 3},
        "d": 32,
        "rounds": 2,
    }
    return run(table, tmp_path_factory.mktemp("runs") / "r").folder


def test_any_finished_run_can_be_loaded_without_its_data(run_folder) -> None:
    from ratemesh.experiment.plan import Plan
    from ratemesh.experiment.storage import read_tensors

    mesh = rm.load(run_folder)
    plan = Plan(RunFolder(run_folder).load_config())
    kept = read_tensors(run_folder / "features.safetensors")
    np.testing.assert_array_equal(mesh.features(plan.data.X_test).numpy(), kept["Z_test"].numpy())
    y = plan.data.y_test.numpy()
    assert mesh.score(plan.data.X_test, y, fusion="energy") == mesh.metrics["acc_energy"]
    assert mesh.score(plan.data.X_test, y, fusion="average") == mesh.metrics["acc_average"]
    own = [mesh.score(plan.data.X_test, y, node=i, fusion="energy") for i in range(3)]
    assert np.mean(own) == pytest.approx(mesh.metrics["acc_own"])
    assert mesh.predict(plan.data.X_test).dtype == np.int64  # classes are whole numbers


def test_what_is_no_mesh_is_told(tmp_path, run_folder) -> None:
    with pytest.raises(InputError, match=r"neither mesh.json nor config.toml"):
        rm.load(tmp_path)
    shutil.copytree(run_folder, tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "mesh")
    with pytest.raises(InputError, match="ratemesh resume"):
        rm.load(tmp_path / "r")


def test_d_is_that_of_the_networks_or_checked_against_them() -> None:
    X, y = samples(0)
    assert rm.Mesh([rm.Node(Wide(d=5), X, y)]).config().d == 5
    assert rm.Mesh([rm.Node("mlp", X, y)]).config().d == 128
    with pytest.raises(InputError, match=r"node 'a': expected d = 128, your network gives 8"):
        rm.Mesh([rm.Node(Wide(), X, y, name="a")], d=128)
    with pytest.raises(InputError, match=r"one number of features d; got node '0' 8, node '1' 4"):
        rm.Mesh([rm.Node(Wide(), X, y), rm.Node(Wide(d=4), X, y)])


def test_networks_that_cannot_take_the_samples_are_found_out_before_training() -> None:
    X, y = samples(0)
    with pytest.raises(InputError, match=r"must take samples of shape \(6,\)"):
        rm.Mesh([rm.Node(nn.Linear(7, 8), X, y)])
    with pytest.raises(InputError, match=r"must give a tensor \(m, d\)"):
        rm.Mesh([rm.Node(nn.Flatten(0), X, y)])
    with pytest.raises(InputError, match=r"encoders\[0\] .*: expected d = 128, your network gives 8"):
        make = make_config(
            {"encoders": [rm.encoders.OwnModule.of(Wide())], "data": {"name": "subspaces", "ambient": 6}}
        )
        run(make)


def test_samples_for_evaluation_are_the_test_part() -> None:
    mesh = rm.Mesh(nodes(eval=(samples(5)[0], WORDS[samples(5)[1]]))).fit(rounds=2, progress=False)
    assert mesh.metrics["test_samples"] == 240
    assert 0 < mesh.metrics["acc_cross"] <= 1


@pytest.mark.parametrize("graph", ["ring", {"name": "ring"}, Ring(nodes=3), [(0, 1), (1, 2), (2, 0)]])
def test_graphs_are_names_tables_objects_or_edges(graph) -> None:
    import networkx as nx

    X, y = samples(0)
    three = [rm.Node("mlp", X, y) for _ in range(3)]
    for given in (graph, nx.cycle_graph(3)):
        assert rm.Mesh(three, graph=given).config().graph.build(0).edges == ((0, 1), (0, 2), (1, 2))


def test_settings_given_as_objects_need_no_name() -> None:
    config = make_config({"encoders": [Mlp(hidden=(4,))], "graph": Ring(nodes=3)})
    assert config.encoders[0].name == "mlp"
    assert config.graph.name == "ring"
    assert make_config(tomllib.loads(config.to_toml())) == config


def test_an_interrupted_fit_goes_on_as_if_it_had_not_stopped(tmp_path) -> None:
    whole = rm.Mesh(nodes()).fit(rounds=4, out=tmp_path / "whole", progress=False)

    def end(record) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rm.Mesh(nodes()).fit(rounds=4, out=tmp_path / "part", progress=False, callbacks=[end])
    again = rm.Mesh(nodes()).fit(rounds=4, out=tmp_path / "part", resume=True, progress=False)
    for name in ("rounds.jsonl", "metrics.json"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    X, _ = samples(9, 10)
    np.testing.assert_array_equal(again.encode(X), whole.encode(X))
    (tmp_path / "part" / "metrics.json").unlink()
    with pytest.raises(InputError, match="given as objects"):
        resume(tmp_path / "part")


def test_an_untrained_mesh_says_so() -> None:
    mesh = rm.Mesh(nodes())
    with pytest.raises(InputError, match="Call fit first"):
        mesh.predict(samples(0)[0])
    assert "not trained yet" in repr(mesh)


def test_training_stops_when_nothing_gets_better_and_when_a_callback_says_so() -> None:
    patient = rm.Mesh(nodes(), **HOW).fit(rounds=60, validation=0.2, patience=2, progress=False)
    assert patient.metrics["stopped_early"]
    assert patient.metrics["best_round"] < patient.metrics["rounds_played"] < 60

    def enough(record) -> None:
        if record["round"] == 2:
            raise rm.StopTraining("enough")

    assert rm.Mesh(nodes()).fit(rounds=9, progress=False, callbacks=[enough]).metrics["rounds_played"] == 2


@pytest.mark.filterwarnings("ignore:Assumption 1")
def test_of_a_class_that_some_nodes_hold_only_these_are_asked() -> None:
    (X, y), (X_new, y_new) = samples(0, 240), samples(9, 300)
    parts = [y != 0, y != 2]
    given = [rm.Node(nets()[0], X[part], WORDS[y[part]], eval=(X_new, WORDS[y_new])) for part in parts]
    mesh = rm.Mesh(given, **HOW).fit(rounds=4, progress=False)
    assert mesh.score(X_new, WORDS[y_new], fusion="energy") == mesh.metrics["acc_label_aware"]
    assert set(mesh.predict(X_new, node=0)) == {"beech", "cedar"}


def test_settings_of_the_mesh_and_of_fit_are_laid_on_each_other_table_by_table() -> None:
    mesh = rm.Mesh(nodes(), local={"optimizer": "adam"}, output={"evaluate_every": 0}, stopping={"least": 0.01})
    config = mesh.config(local={"epochs": 3})
    assert (config.local.optimizer, config.local.epochs) == ("adam", 3)
    seen = []
    mesh.fit(rounds=2, progress=False, callbacks=[seen.append])
    assert not [record for record in seen if "evaluation" in record]  # what was set stays beside what is usual
