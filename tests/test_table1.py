"""Table I: rows on the same ground, a small table trained whole and taken up again, and its four forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.trials import plan_trials
from ratemesh.report.cited import TABLE
from ratemesh.studies.compare import budget, check_comparable
from ratemesh.studies.panels import DATASETS, DIGITS, ROWS, SCALES, row_configs, table_configs
from ratemesh.studies.table1 import Table, as_latex, as_markdown, as_text, make_table, run_table

TOY: dict[str, Any] = {
    "preset": "plain",
    "rounds": 1,
    "d": 16,
    "data": {"name": "digits", "test_fraction": 0.7},
    "graph": {"name": "ring", "nodes": 3},
    "encoders": [{"name": "conv4", "width": 0.1}],
    "local": {"augment": {"shift": 1}, "batch_size": 100},
    "method": {"warm_start": {"epochs": 1}},
    "engine": {"workers": 1},
    "output": {"features": 50},
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_rows_stand_on_the_same_ground(dataset: str, scale: str) -> None:
    configs = table_configs(dataset, scale, ["data.train_limit=500", "graph.p=0.7", "method.gamma=3"])
    assert list(configs) == [row.name for row in ROWS]
    assert [row.title for row in ROWS if row.name != "independent"] == list(TABLE[dataset])
    check_comparable(configs)
    assert len({budget(config) for config in configs.values()}) == 1
    assert {config.data.model_dump()["train_limit"] for config in configs.values()} == {500}
    assert configs["centralised"].graph.nodes == 1
    assert (configs["independent"].graph.name, configs["independent"].graph.nodes) == ("empty", 10)
    assert configs["independent"].method == configs["alg1"].method
    assert configs["dsgd"].graph == configs["alg1"].graph
    assert configs["centralised"].method == configs["alg1"].method
    for row in ROWS:
        config = configs[row.name]
        assert config.method.name == row.method
        if row.graph == "star":
            assert (config.graph.name, config.graph.nodes, len(config.encoders)) == ("star", 10, 1)
            assert config.local.augment != configs["alg1"].local.augment


def test_what_cannot_be_is_answered_in_words() -> None:
    with pytest.raises(InputError, match=r"dataset must be one of .* got 'mnst'\. Did you mean 'mnist'"):
        table_configs("mnst", "small")
    with pytest.raises(InputError, match=r"method\.warm_start\.epochs must be a multiple of local\.epochs = 2"):
        row_configs(TOY, DIGITS, ["local.epochs=2"])


def test_a_graph_of_another_size_does_not_compare_but_one_node_does() -> None:
    some = [make_config({"graph": {"name": "empty", "nodes": n}}) for n in (1, 3, 4)]
    check_comparable({"a": some[0], "b": some[1]})
    with pytest.raises(InputError, match=r"differ in graph\.nodes"):
        check_comparable({"a": some[1], "b": some[2]})


SETTINGS = ["method.gauge.enabled=false", "data.validation=0"]
"""Without a validation part: the centralised row alone would have 50 samples of every class, and so hold some out."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Table]:
    out = tmp_path_factory.mktemp("table")
    configs = row_configs(TOY, DIGITS, SETTINGS)
    return out, run_table(configs, out, 1)


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_a_table_is_trained_whole_and_not_again(made: tuple[Path, Table]) -> None:
    out, table = made
    assert [line.method for line in table.lines] == [row.title for row in ROWS]  # digits are not in the paper
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/trial-1/metrics.json")}
    assert len(before) == len(ROWS)
    gone = out / "fedu" / "trial-1" / "metrics.json"
    kept = gone.read_bytes()
    gone.unlink()
    again = run_table(row_configs(TOY, DIGITS, SETTINGS), out, 1)
    assert {path for path, when in before.items() if path.stat().st_mtime_ns != when} == {gone}
    assert gone.read_bytes() == kept
    assert [line.cells["accuracy"] for line in again.lines] == [line.cells["accuracy"] for line in table.lines]


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_rows_side_by_side_give_the_same_table(made: tuple[Path, Table], tmp_path: Path) -> None:
    """Two rows at a time, each in a process of its own; what is there already is not trained again."""
    _, table = made
    configs = row_configs(TOY, DIGITS, SETTINGS)
    few = {name: configs[name] for name in ("alg1", "centralised", "dsgd")}
    told: list[str] = []

    def track(name: str, rounds: int) -> Progress:
        return lambda record: told.append(f"{name}: {record['round']} of {rounds}")

    beside = run_table(few, tmp_path, 1, track, jobs=2)
    assert [line.cells["accuracy"] for line in beside.lines] == [line.cells["accuracy"] for line in table.lines[:3]]
    assert sorted(told) == ["alg1 1: 1 of 1", "centralised 1: 1 of 1", "dsgd 1: 1 of 2", "dsgd 1: 2 of 2"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/trial-1/metrics.json")}
    run_table(few, tmp_path, 1, track, jobs=2)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert len(told) == 4


@pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")
def test_a_row_that_fails_beside_others_is_named_with_its_last_words(tmp_path: Path) -> None:
    configs = row_configs(TOY, DIGITS)
    few = {name: configs[name] for name in ("alg1", "centralised")}
    (tmp_path / "alg1").mkdir()
    plan_trials(few["alg1"], tmp_path / "alg1", 1)
    (tmp_path / "alg1" / "trial-1").write_text("a file where a folder must be")
    with pytest.raises(RatemeshError, match=r"alg1' ended with an error: .*trial-1"):
        run_table(few, tmp_path, 1, jobs=2)
    assert (tmp_path / "centralised" / "trial-1" / "metrics.json").exists()


def test_every_row_has_numbers_and_cost(made: tuple[Path, Table]) -> None:
    out, table = made
    rows = json.loads((out / "table1.json").read_text())["rows"]
    for name, row in rows.items():
        assert 0 < row["acc_average"] <= 1
        assert row["cpu_seconds"] > 0
        assert row["sample_passes"] == rows["alg1"]["sample_passes"], name
        metrics = json.loads((out / name / "trial-1" / "metrics.json").read_text())
        assert row["bytes_total"] == metrics["bytes_total"]
        assert row["bytes_per_round"] * metrics["rounds"] == pytest.approx(metrics["bytes_total"])
    assert rows["centralised"]["bytes_total"] == rows["independent"]["bytes_total"] == 0
    written = {path.name for path in out.iterdir()}
    assert {"table1.txt", "table1.md", "table1.tex", "table1.json"} <= written
    assert {"table1-cosine.png", "table1-cosine.pdf", "table1-spectra.png", "table1-spectra.svg"} <= written
    assert all(line.whose == "ours" for line in table.lines)


def test_the_papers_numbers_are_marked_and_doubted(tmp_path: Path) -> None:
    """Without a run of ours, what is left of CIFAR-100's table is the paper's."""
    (tmp_path / "alg1").mkdir()
    (tmp_path / "alg1" / "config.toml").write_text(make_config(TOY).to_toml())
    table = make_table(tmp_path, "cifar100")
    text, markdown, latex = as_text(table), as_markdown(table), as_latex(table)
    assert sum("[1][2]" in line for line in text.splitlines()) == 4
    assert "0.3834 [1][2]" in text
    assert "27.61 ± 0.16 % [1]" in markdown
    assert r"27.61 $\pm$ 0.16 \%\textsuperscript{[1]}" in latex
    assert "Cited, not measured here" in text
    assert text.count("Algorithm 1  ") == 2  # ours, unfinished, and the paper's
    for row in markdown.splitlines():
        assert not row.startswith("|") or row.count("|") == 12
    assert latex.count(r"\\") == 1 + 8
