"""Sentences and cells of the report from invented runs: what is said, what is left out, what cannot be known."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.cli.screen import sparkline
from ratemesh.experiment.storage import write_json
from ratemesh.experiment.trials import Interval
from ratemesh.metrics.table import LABEL_AWARE
from ratemesh.report.figures.style import listed
from ratemesh.report.folders import DIFFERS, open_runs, open_trials
from ratemesh.report.page import flattened
from ratemesh.report.progress import in_words
from ratemesh.report.runs import Run, number
from ratemesh.report.summary import Cost, summary, title
from ratemesh.report.wording import in_bytes, in_count, in_digits, in_percent, judged, own_cells, written
from toy_runs import toy

POWERS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def known(name: str = "a", **metrics: object) -> Run:
    run = toy(name, config={"data": {"name": "digits"}, "seed": 4})
    run.metrics = {**run.metrics, **metrics}
    return run


def said(*runs: Run, costs: list[Cost] | None = None) -> str:
    return " ".join(summary(runs, costs or [Cost(math.nan)] * len(runs))).replace("\u00a0", " ")


@given(st.floats(0, 9e14))
def test_bytes_keep_three_digits_and_need_no_power_of_ten(count):
    text, unit = in_bytes(count).split()
    assert float(text) * POWERS[unit] == pytest.approx(count, rel=5.1e-3)
    assert count < 0.0001 or "e" not in text or count < 1
    assert in_count(count).split()[0] == text


@given(st.floats(0.001, 999), st.floats(1e-6, 100))
def test_an_interval_never_vanishes_and_the_mean_keeps_its_value(value, half):
    mean, _, width = in_digits(value, half).partition(" ± ")
    assert float(width) > 0
    assert float(mean) == pytest.approx(value, abs=max(5.1e-4, half))
    assert in_percent(value / 1000, half / 1000).endswith(" %")


def test_lists_in_cells_are_whole_equal_or_a_range():
    assert written("x", [3]) == "3"
    assert written("x", [1, None, "a"]) == "1, –, a"
    assert written("x", [None] * 20) == "– each"
    assert written("x", ["a", "b"] * 10) == "20 values"
    assert written("x", [1, math.nan] * 10) == "1 to 1"


@pytest.mark.parametrize("value", [None, True, "3", [1], {}])
def test_what_is_no_number_is_not_one(value):
    assert math.isnan(number(value))


@given(st.lists(st.sampled_from(["a", "b", "c d"]), max_size=5))
def test_a_list_reads_back_from_its_sentence(names):
    text = listed(names)
    assert [part for piece in text.split(" and ") for part in piece.split(", ") if part] == names
    assert text.count(" and ") == (len(names) > 1)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(1, 20))
def test_a_sparkline_begins_and_ends_where_the_values_do(values, width):
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    bars = "▁▂▃▄▅▆▇█"
    assert set(line) <= set(bars)
    if len(line) > 1 and values[0] == min(values) < max(values) == values[-1]:
        assert (line[0], line[-1]) == (bars[0], bars[-1])


def test_a_line_of_a_round_leaves_out_what_is_not_known():
    record = {"nodes": [{}, {}], "reduction": 1.234}
    for distance in ({}, {"disagreement": None}, {"disagreement": math.nan}):
        assert in_words(record | distance) == "2 nodes  ΔR 1.23"
    assert in_words(record | {"disagreement": 0.5}) == "2 nodes  ΔR 1.23  disagreement 0.500"


def test_a_collapsed_run_is_named_and_not_praised():
    collapsed = known("flat", rank_max=1.1, overlap=0.99, disagreement=0.0)
    words = said(collapsed, known("sound", rank_max=9.0, overlap=0.25, disagreement=0.5))
    assert "flat has collapsed: every class has an effective rank below 2" in words
    assert "In sound, neighbours end 0.500 apart and classes overlap by 0.250; 0 is ideal." in words
    assert "best in flat" not in words


def test_the_nearest_and_the_most_orthogonal_run_may_be_two():
    words = said(known("a", disagreement=0.1, overlap=0.9, rank_max=5), known("b", disagreement=0.2, overlap=0.3))
    assert "Neighbours agree best in a: they end 0.100 apart" in words
    assert "Classes overlap least in b: by 0.300" in words


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (
            Cost(1000, dsgd=4000, dsgd_alike=4000),
            "would send 4 kB (4 times as much), all parameters to all neighbours.",
        ),
        (Cost(1000, dsgd=500, dsgd_alike=500), "would send 500 B (0.5 of it), all"),
        (Cost(1000, dsgd=4000, dsgd_alike=2000), "or 2 kB to those of the same architecture."),
        (Cost(1000), "A round of a sends 1 kB in all."),
    ],
)
def test_costs_are_compared_whichever_way_it_comes_out(cost, expected):
    assert expected in said(known(), costs=[cost])


def test_nothing_is_said_of_what_nobody_sent():
    assert "A round of" not in said(known(), costs=[Cost(0.0, dsgd=10.0)])


def test_nodes_with_some_labels_stand_beside_those_with_all():
    some = known("some", **{LABEL_AWARE: 0.75, "acc_held": 0.5})
    words = said(some, known("all", acc_average=0.875))
    assert "Nodes with some labels reach 75.0 % label-aware (some), where nodes with all of them reach 87.5 %" in words
    assert judged(some).metric == LABEL_AWARE
    assert own_cells(some)["accuracy"] == "75.00 %"
    assert own_cells(some)["wccr"] == "–"


def test_single_values_have_no_interval_to_meet():
    a, b = known("a", acc_average=0.9), known("b", acc_average=0.89)
    for run in (a, b):
        run.intervals = {"acc_average": Interval(run.metrics["acc_average"], math.inf, (0.9,))}
    assert "though its interval meets" not in said(a, b)
    assert "Every number is of a single run (seed 4), without a confidence interval." in said(a, b)


def test_titles_count_in_words_up_to_nine():
    assert title([known()]) == "a on digits"
    assert title([known()] * 9) == "Nine runs on digits"
    assert title([known()] * 10) == "10 runs on digits"
    assert title([toy()]) == "toy on unknown data"


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.integers(0, 9) | st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), min_size=1),
    )
)
def test_flat_tables_lead_back_to_the_nested_ones(content):
    for key, value in flattened(content).items():
        outer, _, inner = key.partition(".")
        assert value == (content[outer][inner] if inner else content[outer])
    assert len(flattened(content)) == sum(len(v) if isinstance(v, dict) else 1 for v in content.values())


def test_trials_of_which_nothing_is_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text('{"trials": "some"}')
    (tmp_path / "trial-x").mkdir()
    (tmp_path / "trial-2").mkdir()  # without a configuration it was never started
    run = open_trials(tmp_path, "none")
    assert (run.planned, run.trials, run.metrics, run.records) == (0, [], {}, [])
    assert "trials.json does not say how many trials there should be; 0 are there." in run.notes
    assert any("config.toml cannot be read" in note for note in run.notes)


def test_what_differs_between_trials_is_not_averaged(tmp_path: Path) -> None:
    """No mean of words, and none of settings that are the same; a number that one lacks is of the other."""
    (tmp_path / "config.toml").write_text("rounds = 4\n")
    write_json(tmp_path / "trials.json", {"trials": 2})
    for k, changed in ((1, {}), (2, {"method": "another", "acc_average": None, "undefined": ["x: why"]})):
        (tmp_path / f"trial-{k}").mkdir()
        (tmp_path / f"trial-{k}" / "config.toml").write_text("rounds = 4\n")
        write_json(
            tmp_path / f"trial-{k}" / "metrics.json", {"method": "one", "acc_average": 0.5, "rounds": 4, **changed}
        )
    ((run,), notes) = open_runs([tmp_path])
    assert notes == []
    assert run.state == "2 trials complete"
    assert (run.metrics["method"], run.metrics["acc_average"], run.metrics["rounds"]) == (DIFFERS, 0.5, 4)
    assert run.metrics["undefined"] == ["trial-2: x: why"]
    assert run.intervals == {"acc_average": Interval(0.5, math.inf, (0.5,))}  # of the one that has it
    assert "no round is recorded, so there are no curves and no measured cost." in run.notes  # of both, said once


def test_what_stopped_early_or_is_judged_by_an_earlier_round_is_said():
    ends = {"rounds_played": 18, "judged_round": 9, "stop_reason": "no better in 3 evaluations"}
    words = said(toy("a", metrics=ends))
    assert "a stopped after round 18 (no better in 3 evaluations) and is judged by its best round, 9." in words
    whole = {"rounds_played": 24, "judged_round": 24, "stop_reason": ""}
    assert "judged by" not in said(toy("b", metrics=whole))
