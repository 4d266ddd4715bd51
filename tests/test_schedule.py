"""Graphs that change between rounds: who talks to whom, resuming, and files that say what is wrong with them."""

import json
from pathlib import Path

import pytest

from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.graph.topology import Schedule, of_edges

CHANGES = """
[[change]]
round = 1
edges = [[0, 1]]

[[change]]
round = 3
edges = [[1, 2], [0, 2]]
"""


def written(folder: Path, text: str = CHANGES) -> Path:
    path = folder / "links.toml"
    path.write_text(text)
    return path


def config(path: Path, rounds: int = 4, **method: object):
    table = {
        "rounds": rounds,
        "d": 6,
        "data": {"name": "subspaces", "classes": 3, "ambient": 8, "rank": 2, "per_class": 20},
        "graph": {"name": "schedule", "nodes": 3, "path": str(path)},
        "encoders": [{"name": "mlp", "hidden": [12]}],
        "local": {"batch_size": 8},
        "method": {"name": "alg1", "coupling": {"start": 2}, **method},
        "engine": {"name": "inprocess", "workers": 1},
    }
    return make_config(table)


def test_a_round_has_the_edges_of_the_last_change(tmp_path: Path) -> None:
    graph = Schedule(name="schedule", nodes=3, path=written(tmp_path))
    assert [graph.at(t, 0) for t in (1, 2, 3, 9)] == [of_edges(3, [(0, 1)])] * 2 + [of_edges(3, [(1, 2), (0, 2)])] * 2
    assert graph.build(0) == of_edges(3, [(0, 1), (1, 2), (0, 2)])


@pytest.mark.parametrize("method", ["alg1", "dsgd", "fedpcl"])
def test_only_the_edges_of_the_round_are_used_and_records_say_so(tmp_path: Path, method: str) -> None:
    settings = config(written(tmp_path))
    if method != "alg1":
        settings = make_config(settings.model_dump(mode="json", exclude_none=True) | {"method": {"name": method}})
    run(settings, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [[node["neighbours"] for node in r["nodes"]] for r in records] == [[1, 1, 0]] * 2 + [[1, 1, 2]] * 2
    assert records[2]["bytes"] == 2 * records[0]["bytes"]
    assert all(node["outside_theorem"] == 1 for r in records for node in r["nodes"])


def test_resuming_equals_not_stopping(tmp_path: Path) -> None:
    settings = config(written(tmp_path))
    run(settings, tmp_path / "whole")
    part = tmp_path / "part"
    seen = []

    def stop_after_two(record: dict[str, object]) -> None:
        seen.append(record["round"])
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, part, progress=stop_after_two)
    resume(part)
    for name in ("rounds.jsonl", "metrics.json"):
        assert (part / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.parametrize("method", [{"name": "alg3"}, {"codec": "delta"}])
def test_methods_that_plan_with_one_graph_refuse(tmp_path: Path, method: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"graph must stay the same .* Use method 'alg1' without codec delta"):
        run(config(written(tmp_path), **method), tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold \[\[change\]\] tables"),
        ("change = 3", r"must hold \[\[change\]\] tables"),
        ("[[change]\n", "must be a readable TOML file"),
        ("[[change]]\nedges = [[0, 1]]", "change 1 must have `round`"),
        ("[[change]]\nround = 1\nedges = [[0, 5]]", r"two node numbers in 0\.\.2; got \[0, 5\]"),
        ("[[change]]\nround = 2\nedges = [[0, 1]]", "must begin with round 1"),
        ("[[change]]\nround = 1\nedges = [[0, 1]]", "graph must be connected"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(name="schedule", nodes=3, path=written(tmp_path, text)).build(0)
