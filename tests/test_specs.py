"""Tables of settings by name: plug-ins that cannot be had, numbers that are none, words that are nearly right."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.graph import TOPOLOGIES, TopologySpec
from ratemesh.specs import nearest, resolve


@pytest.mark.parametrize(
    "name", [":", ":Ring", ".graph:Ring", "..:Ring", "ratemesh:", "ratemesh.graph:Absent", "a b:C"]
)
def test_a_plug_in_that_no_import_can_take_is_refused_in_words(name):
    with pytest.raises(
        InputError, match=rf"graph\.name must be importable as 'module:Class'; got '{name}' \(.*\)\. Check"
    ):
        resolve({"name": name}, TOPOLOGIES, TopologySpec, "graph")


def test_a_plug_in_of_ones_own_takes_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_graphs.py").write_text(
        "from ratemesh.graph.topology import TopologySpec, of_edges\n"
        "class Line(TopologySpec):\n"
        "    step: int = 1\n"
        "    def draw(self, seed):\n"
        "        return of_edges(self.nodes, [(i, i + self.step) for i in range(self.nodes - self.step)])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve({"name": "own_graphs:Line", "nodes": 3}, TOPOLOGIES, TopologySpec, "graph")
    assert found.build(0).edges == ((0, 1), (1, 2))
    with pytest.raises(InputError, match=r"graph\.stepp is not a setting\. Did you mean 'step'\?"):
        resolve({"name": "own_graphs:Line", "stepp": 3}, TOPOLOGIES, TopologySpec, "graph")
    sys.modules.pop("own_graphs")


@pytest.mark.parametrize("key", ["method.gamma", "method.eps2", "local.lr", "local.augment.brightness"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_settings_are_finite(key, value):
    """What crosses to another process as JSON must come back; infinity would come back as nothing."""
    with pytest.raises(InputError, match=rf"{key}: .*; got {value}\."):
        make_config({}, [f"{key}={value}"])


def test_a_name_an_instance_and_a_table_are_the_same():
    ring = resolve("ring", TOPOLOGIES, TopologySpec, "graph")
    assert resolve({"name": "ring"}, TOPOLOGIES, TopologySpec, "graph") == ring
    assert resolve(ring, TOPOLOGIES, TopologySpec, "graph") is ring
    with pytest.raises(InputError, match=r"graph\.name must name a topology; got ''\. Known: complete, "):
        resolve("", TOPOLOGIES, TopologySpec, "graph")


@given(st.sampled_from(sorted(TOPOLOGIES)), st.integers(0, 20))
def test_a_word_with_one_letter_lost_is_recognised(word, place):
    lost = word[: place % len(word)] + word[place % len(word) + 1 :]
    assert nearest(lost, TOPOLOGIES) == f"Did you mean '{word}'? Known: {', '.join(sorted(TOPOLOGIES))}."
    assert nearest("", TOPOLOGIES).startswith("Known: ")


@given(st.floats(0, 1e6), st.integers(1, 99), st.booleans())
def test_a_configuration_comes_back_from_its_json(gamma, rounds, balance):
    config = make_config({"rounds": rounds, "method": {"gamma": gamma}, "local": {"balance": balance}})
    again = make_config(json.loads(config.model_dump_json(exclude_none=True)))
    assert again == config
    assert again.digest() == config.digest()
