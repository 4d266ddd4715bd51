"""Trials in the report: one entry with means and intervals, the single ones beneath, and words for what is lacking."""

import json
import math
import shutil
from pathlib import Path

import pytest

from ratemesh.experiment.trials import Interval
from ratemesh.report.figures import curves, graph, matrices
from ratemesh.report.folders import open_runs
from ratemesh.report.runs import Run
from ratemesh.report.summary import cost_of, summary
from ratemesh.report.wording import in_bytes, in_degrees, in_digits, in_percent, in_places, shown
from toy_runs import Copy, Damage, copier, edited, on, page, smoke_run, smoke_trials, toy, without


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smoke_trials(tmp_path_factory.mktemp("trials"))


@pytest.fixture
def copy(trials: Path, tmp_path: Path) -> Copy:
    return copier(trials, tmp_path)


def opened(folder: Path) -> Run:
    (run,), notes = open_runs([folder])
    assert notes == []
    return run


def metrics_of(folder: Path, trial: int) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / f"trial-{trial}" / "metrics.json").read_text())
    return found


def test_numbers_are_those_of_trials_json(trials: Path) -> None:
    run = opened(trials)
    summary = json.loads((trials / "trials.json").read_text())["metrics"]
    for key in ("acc_average", "overlap", "wccr", "reduction"):
        assert run.metrics[key] == run.intervals[key].mean == summary[key]["mean"]
        assert run.intervals[key].half_width == summary[key]["half_width"]
    assert run.metrics["nodes"] == 3
    assert "nodes" not in run.intervals  # a setting, not an estimate
    assert (run.state, run.notes) == ("3 trials complete", [])


def test_the_page_shows_means_and_the_single_trials_beneath(trials: Path) -> None:
    run, found = opened(trials), page(trials)
    assert "trials on subspaces, 3 trials" in found.text
    assert "Every trial has 3 nodes" in found.text
    mean = shown(run, "acc_average")
    assert " ± " in mean
    plain = found.text.replace("\u00a0", " ")
    assert f"trials classifies {mean} of 30 held-out samples." in plain
    assert "Numbers are means over 3 trials (seeds 0, 1 and 2) ± the half-width of a 95 % t-interval." in plain
    assert "single run" not in plain
    beneath = found.text.partition(": trial by trial")[2]
    for k in (1, 2, 3):
        assert f"trial-{k} seed {k - 1}" in beneath
        assert in_digits(metrics_of(trials, k)["reduction"]) in beneath
    assert len(found.all("article")) == 1
    assert [summary for summary in found.all("details") if "open" in summary] == []


def test_ours_beside_the_paper_has_intervals_like_the_papers(copy: Copy) -> None:
    folder = copy("ours", on("mnist"))
    run, found = opened(folder), page(folder)
    accuracy, wccr = run.intervals["acc_average"], run.intervals["wccr"]
    text = found.text.partition("Beside the paper")[2]
    assert f"{100 * accuracy.mean:.2f} ± {100 * accuracy.half_width:.2f} %" in text
    assert f"{wccr.mean:.4f} ± {wccr.half_width:.4f}" in text
    assert "ours: 2 rounds of 2 local epochs, 3 trials" in text
    single = text.partition(": trial by trial")[2]
    assert all(f"{100 * metrics_of(folder, k)['acc_average']:.2f} %" in single for k in (1, 2, 3))


def test_trials_stand_among_single_runs(trials: Path, tmp_path: Path) -> None:
    found = page(trials, smoke_run(tmp_path))
    assert "Two settings on subspaces" in found.text
    assert "Numbers of trials are means over 3 trials" in found.text
    assert "Numbers of smoke are of a single run (seed 0), without a confidence interval." in found.text
    assert len(found.all("article")) == 2


PARTIAL: list[tuple[list[Damage], list[int], list[str]]] = [
    (
        [without("trial-2/metrics.json")],
        [1, 3],
        ["2 of 3 trials complete, so means and intervals are over those 2", "trial-2 (incomplete: 2 of 2 rounds)"],
    ),
    (
        [lambda f: (f / "trial-2/metrics.json").write_text("{"), lambda f: shutil.rmtree(f / "trial-3")],
        [1],
        ["1 of 3 trials complete", "of that one, without an interval", "trial-3 (not started)", "final numbers unread"],
    ),
    ([without("trial-1/config.toml")], [2, 3], ["2 of 3 trials complete", "trial-1 (not started)"]),
    (
        [without(*(f"trial-{k}/metrics.json" for k in (1, 2, 3)))],
        [],
        ["0 of 3 trials complete, so there are no means yet", "No run is complete"],
    ),
    ([without("trial-1", "trial-2", "trial-3")], [], ["0 of 3 trials complete", "trial-1 (not started)"]),
    ([lambda f: (f / "trials.json").write_text("{")], [1, 2, 3], ["trials.json does not say how many trials"]),
    ([without("trial-3"), edited("trials.json", trials=2)], [1, 2], ["2 trials complete"]),
]


@pytest.mark.parametrize(("damages", "left", "words"), PARTIAL)
def test_partial_trials_are_told_and_the_rest_is_shown(
    damages: list[Damage], left: list[int], words: list[str], copy: Copy
) -> None:
    folder = copy("part", *damages)
    run, found = opened(folder), page(folder)
    assert [word for word in words if word not in found.text] == []
    assert ("ratemesh resume" in found.text) == any("complete, so" in word or " of 3" in word for word in words)
    assert "the run is incomplete" not in found.text  # of a single trial: the trials are resumed together
    values = [metrics_of(folder, k)["acc_average"] for k in left]
    assert run.metrics.get("acc_average") == (pytest.approx(sum(values) / len(values)) if values else None)
    if len(left) > 1:
        assert run.intervals["acc_average"] == Interval.of(values)
    assert (" ± " in found.text.partition("Final numbers")[2]) == (len(left) > 1)


def test_one_planned_trial_is_a_single_run_under_its_settings_name(copy: Copy) -> None:
    run = opened(copy("alone", without("trial-2", "trial-3"), edited("trials.json", trials=1)))
    assert (run.name, run.trials, run.state) == ("alone", [], "complete")


def test_what_several_trials_lack_is_said_once(copy: Copy) -> None:
    every = [f"trial-{k}/environment.json" for k in (1, 2, 3)]
    assert opened(copy("all", without(*every))).notes == [
        "environment.json is missing, so versions and machine are not known."
    ]
    (note,) = opened(copy("two", without(*every[1:]))).notes
    assert note.startswith("trial-2, trial-3: environment.json is missing")


def test_numbers_that_some_trials_lack_say_so(copy: Copy) -> None:
    folder = copy("some", lambda f: edited("metrics.json", disagreement=None, note="x")(f / "trial-2"))
    run, text = opened(folder), page(folder).text
    assert len(run.intervals["disagreement"].values) == 2
    assert "not defined in 1 of 3 trials" in text
    assert "differs by trial" in text


def test_curves_are_means_over_trials_and_bands_span_them(trials: Path, tmp_path: Path) -> None:
    run = opened(trials)
    curve, single = run.curve("overlap"), [trial.curve("overlap").mean for trial in run.trials]
    assert curve.rounds == [1, 2]
    for t in (0, 1):
        values = [mean[t] for mean in single]
        assert (curve.low[t], curve.high[t]) == (min(values), max(values))
        assert curve.mean[t] == pytest.approx(sum(values) / 3)
    for draw in (curves.draw_convergence, curves.draw_consensus):
        caption = draw([run], tmp_path / "a", formats=["svg"]).caption
        assert "means over nodes and trials, bands reach from the lowest to the highest trial" in caption
    mixed = curves.draw_consensus([run, toy()], tmp_path / "b", formats=["svg"]).caption
    assert "from the lowest to the highest node, or trial where there are some" in mixed


def test_features_and_network_are_of_the_first_complete_trial(copy: Copy, tmp_path: Path) -> None:
    run = opened(copy("ours", without("trial-1/metrics.json")))
    assert run.features is run.trials[1].features
    for draw in (matrices.draw_cosine, graph.draw_network):
        drawn = draw([run], tmp_path / "a", formats=["svg"])
        assert "ours, trial-2" in drawn.alt
        assert drawn.caption.endswith("Of trials, the first complete one is shown.")


def test_accuracy_against_cost_has_a_line_a_trial_and_ends_once(trials: Path, tmp_path: Path) -> None:
    run = opened(trials)
    found = curves.points(run)
    assert len(found) == 2  # the end of a run is its last evaluation, for means as well
    ends = [curves.points(trial)[-1].accuracy["acc_node"] for trial in run.trials]
    assert found[-1].accuracy["acc_node"] == pytest.approx(sum(ends) / 3)
    assert "thin ones the single trials" in curves.draw_accuracy([run], tmp_path / "a", formats=["svg"]).caption


def test_costs_are_means_over_trials(trials: Path) -> None:
    run = opened(trials)
    costs = [cost_of(trial) for trial in run.trials]
    mean = cost_of(run)
    assert mean.measured == pytest.approx(sum(cost.measured for cost in costs) / 3)
    assert (mean.full, mean.dsgd, mean.notes) == (costs[0].full, costs[0].dsgd, ())


@pytest.mark.parametrize(("half", "said"), [(0.2, True), (0.001, False), (math.inf, False)])
def test_a_lead_inside_the_intervals_is_not_called_one(half: float, said: bool) -> None:
    entries = []
    for name, mean in (("a", 0.9), ("b", 0.8)):
        spread = {"acc_average": Interval(mean, half, (mean,))}
        entries.append(toy(name, metrics={"acc_average": mean}, intervals=spread))
    words = " ".join(summary(entries, [cost_of(entry) for entry in entries]))
    assert ("though its interval meets that of b" in words) == said
    assert "the most of all" in words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (in_percent(0.967, 0.0042), "96.7 ± 0.4 %"),
        (in_percent(1.0, 0.0), "100.0 ± 0.0 %"),
        (in_percent(0.967, 0.0001), "96.7 ± 0.01 %"),
        (in_percent(0.967, math.inf), "96.7 %"),
        (in_bytes(537e6, 12e6), "537 ± 12 MB"),
        (in_digits(10.716, 2.808), "10.7 ± 2.8"),
        (in_digits(0.282, 0.013), "0.282 ± 0.013"),
        (in_digits(12.0, 31.0), "12 ± 31"),
        (in_digits(0.00012, 0.00003), "0.00012 ± 0.00003"),
        (in_digits(math.nan, 1.0), "–"),
        (in_degrees(23.31, 3.46), "23.3 ± 3.5°"),
        (in_places(-0.071, 0.012, 2), "−0.07 ± 0.01"),
        (in_places(math.nan, math.nan, 2), "–"),
    ],
)
def test_intervals_as_people_write_them(text: str, expected: str) -> None:
    assert text == expected
