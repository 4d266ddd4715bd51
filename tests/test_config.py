"""One strict TOML file: typos are errors, every key is read, presets and overrides win in order."""

import ast
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ratemesh
from ratemesh.cli.listing import CATALOGUES, meaning
from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, load_config, make_config, merged
from ratemesh.experiment.presets import PRESETS, RECIPES
from ratemesh.methods.alg1 import Alg1
from ratemesh.specs import Spec
from ratemesh.training.optimizers import MUON_LR

SRC = Path(ratemesh.__file__).parent
EXPERIMENTS = sorted((SRC.parents[1] / "experiments").glob("*.toml"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"ronds": 3}, ["ronds is not a setting", "Did you mean 'rounds'?"]),
        ({"method": {"gama": 3}}, ["method.gama is not a setting", "'gamma'"]),
        ({"method": {"coupling": {"strat": 3}}}, ["method.coupling.strat is not a setting", "'start'"]),
        ({"graph": {"name": "rng"}}, ["graph.name must be a known topology; got 'rng'", "Did you mean 'ring'?"]),
        ({"data": "digit"}, ["data.name must be a known data set; got 'digit'", "'digits'"]),
        ({"encoders": [{"name": "mpl"}]}, ["encoders.name must be a known encoder; got 'mpl'", "'mlp'"]),
        ({"encoders": []}, ["encoders", "at least 1"]),
        ({"rounds": 0}, ["rounds", "greater than or equal to 1", "got 0"]),
        ({"local": {"batch_size": 1}}, ["local.batch_size", "got 1"]),
        ({"partition": "stratify"}, ["partition.name must be a known partition; got 'stratify'", "'stratified'"]),
        ({"preset": "papr"}, ["preset must be a known name; got 'papr'", "'paper'"]),
        ({"preset": ["paper"]}, ["preset must be a known name; got ['paper']"]),
        ({"method": {"name": "no.such:Thing"}}, ["method.name must be importable", "no.such"]),
        ({"method": {"name": "json:JSONEncoder"}}, ["must be a subclass of MethodSpec"]),
        ({"method": {"name": 3}}, ["method.name must name a method; got 3"]),
        ({"graph": 7}, ["graph must be a table or a name; got 7"]),
    ],
)
def test_a_wrong_setting_is_named_with_the_remedy(table: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        make_config(table)
    for word in words:
        assert word in str(caught.value)


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        make_config({"ronds": 3, "local": {"lr": -1}})
    assert "ronds" in str(caught.value)
    assert "local.lr" in str(caught.value)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_shipped_experiments_are_valid(path: Path) -> None:
    load_config(path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, word in ((tmp_path / "none.toml", "readable"), (broken, "valid TOML"), (binary, "readable")):
        with pytest.raises(InputError, match=word) as caught:
            load_config(path)
        assert path.name in str(caught.value)


def test_overrides_win_over_file_over_preset_over_defaults() -> None:
    assert make_config({}).method.model_dump()["objective_scale"] == "local"
    assert make_config({"preset": "paper"}).local.lr == 0.1
    assert make_config({"preset": "paper", "local": {"lr": 0.5}}).local.lr == 0.5
    assert make_config({"preset": "paper", "local": {"lr": 0.5}}, ["local.lr=0.25"]).local.lr == 0.25
    assert make_config({"data": "digits"}, ["data.test_fraction=0.5"]).data.model_dump()["test_fraction"] == 0.5
    assert make_config({}, ["graph.name=ring", "graph.nodes=4"]).graph.nodes == 4
    assert make_config({}, ["preset=paper-stable"]).local.lr == 1e-3


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3", ""])
def test_a_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--set must look like"):
        make_config({}, [text])


class Derived(Alg1):
    """A method of a user's own, with Algorithm 1's settings and one more."""

    more: int


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "alg1"),
        ("alg3", "alg3"),
        ({"name": "alg3", "eps2": 0.4}, "alg3"),
        ("alg1_weights", "alg1_weights"),
        ({"name": "alg1_weights", "scope": "group"}, "alg1_weights"),
        ({"name": "test_config:Derived", "more": 3}, "test_config:Derived"),
    ],
)
def test_preset_paper_turns_every_switch_off_whatever_inherits_them(given: object, name: str) -> None:
    method = make_config({"preset": "paper", **({"method": given} if given else {})}).method.model_dump()
    assert method["name"] == name
    assert all(method[key] == value for key, value in given.items()) if isinstance(given, dict) else True
    assert method["gauge"]["enabled"] is False
    assert method["running"]["beta"] == 1
    assert method["coupling"]["schedule"] == "constant"
    assert method["warm_start"]["epochs"] == 0
    assert method["objective_scale"] == "paper"


def test_a_preset_keeps_local_training_for_methods_with_other_settings() -> None:
    config = make_config({"preset": "paper", "method": "dsgd"})
    assert (config.method.name, config.local.lr, config.local.epochs) == ("dsgd", 0.1, 5)
    assert config.method == make_config({"method": "dsgd"}).method
    with pytest.raises(InputError, match=r"method\.name must be a known method; got 'alg2'"):
        make_config({"preset": "paper", "method": "alg2"})


def test_what_names_no_preset_has_the_recipe_of_its_samples_and_plain_the_defaults_of_the_fields() -> None:
    config = make_config({})
    assert config.preset == "default"
    assert (config.rounds, config.local.optimizer, config.local.lr) == (24, "muon", MUON_LR)
    assert config.method.model_dump()["cross_entropy"] == 30
    assert "cross-entropy" in config.method.label(config.graph.build(0))  # a hybrid, and called one
    assert make_config({"preset": "plain"}) == Config()
    assert {make_config({"preset": name}).digest() for name in RECIPES} >= {config.digest()}


@pytest.mark.parametrize("preset", RECIPES)
def test_a_recipe_gives_way_to_what_is_set(preset: str) -> None:
    given = {"preset": preset, "rounds": 3, "method": {"cross_entropy": 0}}
    config = make_config(given, ["local.optimizer=adam"])
    assert (config.preset, config.rounds, config.local.lr) == (preset, 3, 1e-3)  # Adam's own rate, not Muon's
    assert config.method.model_dump()["cross_entropy"] == 0
    assert config.method.model_dump()["running"]["refresh"] == 4


@pytest.mark.parametrize(
    ("method", "weight"), [("alg3", 30), ({"name": "test_config:Derived", "more": 3}, 30), (Alg1(name="alg1"), 0)]
)
def test_a_recipe_is_for_whatever_has_the_settings_of_algorithm_1(method: object, weight: float) -> None:
    """A method that comes as an object has all of its settings already."""
    config = make_config({"method": method})
    assert config.method.model_dump()["cross_entropy"] == weight
    assert (config.rounds, config.local.optimizer) == (24, "muon")


@pytest.mark.parametrize("method", ["fedproto", "dsgd", "fedsimclr"])
def test_no_recipe_is_forced_on_methods_that_it_was_not_tried_with(method: str) -> None:
    plain = make_config({"preset": "plain", "method": method})
    assert make_config({"method": method}) == plain.model_copy(update={"preset": "default"})


def test_a_run_folder_of_before_there_were_recipes_reads_as_it_was() -> None:
    """It says "default" and has every setting written out."""
    old = {**tomllib.loads(Config().to_toml()), "preset": "default"}
    assert make_config(old) == Config().model_copy(update={"preset": "default"})


@pytest.mark.parametrize("preset", PRESETS)
def test_resolved_configuration_reads_back_the_same(preset: str) -> None:
    config = make_config({"preset": preset, "graph": {"name": "grid", "nodes": 6}, "encoders": ["mlp", "conv4"]})
    again = make_config(tomllib.loads(config.to_toml()))
    assert again == config
    assert again.digest() == config.digest()
    assert make_config(json.loads(config.model_dump_json(exclude_none=True))) == config


def test_digest_follows_what_decides_the_results_only() -> None:
    base = make_config({})
    assert make_config({}, ["engine.workers=2", "output.features=0"]).digest() == base.digest()
    for change in ("seed=1", "method.gamma=2", "engine.threads=2", "local.lr=0.5"):
        assert make_config({}, [change]).digest() != base.digest()


def specs() -> set[type[Spec]]:
    """Every settings class that a configuration can reach."""
    found: set[type[Spec]] = set()
    todo: list[type[Spec]] = [Config, *(cls for registry in CATALOGUES.values() for cls in registry.values())]
    while todo:
        cls = todo.pop()
        if cls not in found:
            found.add(cls)
            inner = [field.annotation for field in cls.model_fields.values()]
            todo += [a for a in inner if isinstance(a, type) and issubclass(a, Spec)]
    return found


def test_every_setting_is_read_somewhere() -> None:
    """A setting that no code reads is a flag that does nothing."""
    read = {
        node.attr
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    unread = {f"{cls.__name__}.{name}" for cls in specs() for name in cls.model_fields if name not in read}
    assert unread <= {"Config.preset"}  # used up before validation, kept to be seen in the run folder


def test_every_setting_is_described() -> None:
    found = specs()
    silent = {f"{cls.__name__}.{n}" for cls in found for n, f in cls.model_fields.items() if not meaning(f)}
    assert {name for name in silent if not name.endswith(".name")} == set()
    assert all(field.description for field in Config.model_fields.values())


words = st.sampled_from(["a", "b", "c"])
tables = st.recursive(st.integers(), lambda inner: st.dictionaries(words, inner, max_size=3), max_leaves=8)


@given(st.dictionaries(words, tables, max_size=3), st.dictionaries(words, tables, max_size=3))
def test_merging_keeps_all_of_the_upper_table(base: dict[str, object], over: dict[str, object]) -> None:
    out = merged(base, over)
    assert merged(out, over) == out
    assert set(out) == set(base) | set(over)
    assert merged({}, over) == over
    assert merged(base, {}) == base


@pytest.mark.parametrize(("rank", "found"), [(None, None), (5, 5), ("d/K", 12)])
def test_the_rank_of_a_class_may_be_what_orthogonal_classes_have_room_for(rank: object, found: int | None) -> None:
    judge = make_config({"evaluation": {} if rank is None else {"rank": rank}}).evaluation
    assert judge.rule(128, 10).rank == found


@pytest.mark.parametrize("rank", [-1, "d", 2.5])
def test_other_ranks_are_refused(rank: object) -> None:
    with pytest.raises(InputError, match=r"evaluation\.rank"):
        make_config({"evaluation": {"rank": rank}})


def test_more_classes_than_dimensions_still_have_a_direction_each() -> None:
    assert make_config({"evaluation": {"rank": "d/K"}}).evaluation.rule(8, 100).rank == 1


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_nodes_have_names_of_their_own(names) -> None:
    with pytest.raises(InputError, match="names must be one a node, all different, 2 in all"):
        make_config({"names": names, "graph": {"name": "ring", "nodes": 2}})
