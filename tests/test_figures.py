"""Figures say what the records say, stay readable without colour, and survive what runs lack."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ratemesh.metrics.table import LABEL_AWARE
from ratemesh.report.figures import FIGURES, curves, matrices, style
from ratemesh.report.figures import graph as graph_figures
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run
from toy_runs import NODES, ROUNDS, K, features, graph, records, toy

Draw = Callable[..., Drawn]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Draw, Sequence[Run]], tuple[Figure, Drawn]]:
    """Draw without writing, and return the figure to look into."""

    def call(draw: Draw, runs: Sequence[Run]) -> tuple[Figure, Drawn]:
        kept: list[Figure] = []
        monkeypatch.setattr(style, "save", lambda figure, stem, formats: kept.append(figure) or (stem,))
        out = draw(runs, Path("figure"))
        return (kept[0] if kept else Figure()), out

    return call


def lines(axis: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axis.get_lines() if not str(line.get_label()).startswith("_")}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_in_three_formats_with_words(name: str, tmp_path: Path) -> None:
    out = FIGURES[name]([toy("first"), toy("second", 1)], tmp_path / "deep" / "v1.2" / name)
    assert [file.name for file in out.files] == [f"{name}.png", f"{name}.svg", f"{name}.pdf"]
    with Image.open(out.files[0]) as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(10**6) or []) > 20  # something was drawn
    assert ET.parse(out.files[1]).getroot().tag.endswith("svg")
    assert out.files[2].read_bytes().startswith(b"%PDF")
    assert all(word in out.alt for word in ("first", "second"))
    assert out.title
    assert out.caption


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (curves.draw_convergence([toy()], tmp_path / name / "a").files for name in ("x", "y"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_drawing_leaves_the_callers_settings_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    graph_figures.draw_network([toy()], tmp_path / "a", formats=["svg"])
    assert dict(mpl.rcParams) == before


def test_convergence_shows_means_and_the_range_over_nodes(drawn: Any) -> None:
    run = toy()
    figure, _ = drawn(curves.draw_convergence, [run])
    axis = figure.axes[0]
    shown = lines(axis)
    for label, key, sign in (("$-R_i$ (expansion)", "expand", -1), ("$R^c_i$ (compression)", "compress", 1)):
        assert shown[label].get_ydata() == pytest.approx([sign * record[key] for record in run.records])
    assert shown["total loss"].get_xdata() == pytest.approx(range(1, ROUNDS + 1))
    band = axis.collections[0].get_paths()[0].get_extents()
    expand = [node["expand"] for record in run.records for node in record["nodes"]]
    assert (band.y0, band.y1) == pytest.approx((-max(expand), -min(expand)))


def test_a_diverged_run_does_not_flatten_the_others(drawn: Any) -> None:
    wild = records()
    wild[-1]["total"] = 1e6
    calm, _ = drawn(curves.draw_convergence, [toy("a"), toy("b")])
    assert calm.axes[0].get_ylim() == calm.axes[1].get_ylim()
    apart, _ = drawn(curves.draw_convergence, [toy("a"), toy("b", records=wild)])
    assert apart.axes[0].get_ylim()[1] < 100 < apart.axes[1].get_ylim()[1]


@pytest.mark.parametrize("draw", [curves.draw_convergence, curves.draw_consensus, curves.draw_accuracy])
def test_lines_differ_without_colour(draw: Draw, drawn: Any) -> None:
    figure, _ = drawn(draw, [toy(f"run {i}") for i in range(7)])
    looks = [(line.get_linestyle(), line.get_marker()) for line in lines(figure.axes[0]).values()]
    assert len(looks) >= 3
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(
    "draw", [curves.draw_convergence, matrices.draw_spectra, curves.draw_consensus, curves.draw_accuracy]
)
@pytest.mark.parametrize("count", [1, 5])
def test_legends_are_not_cut_off(count: int, draw: Draw, drawn: Any) -> None:
    runs = [toy(f"a long name without any end, {i}", metrics={"acc_node": 0.5}) for i in range(count)]
    figure, _ = drawn(draw, [*runs, toy("another", metrics={"acc_node": 0.5})])
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width


def test_partial_labels_have_a_label_aware_panel_where_others_stand_with_the_fused_accuracy(drawn: Any) -> None:
    found = records()
    for record in found:
        record["evaluation"] = {"acc_energy": 0.5, LABEL_AWARE: record["round"] / 10, "sample_passes": record["round"]}
    some = toy("some", records=found, metrics={"acc_energy": 0.5, LABEL_AWARE: 0.7, "bytes_total": 9e9})
    figure, out = drawn(curves.draw_accuracy, [some, toy("whole")])
    (panel,) = [axis for axis in figure.axes if "label-aware" in axis.get_title()]
    way = [t / 10 for t in range(1, ROUNDS + 1)]
    assert lines(panel)["some, partial labels"].get_ydata() == pytest.approx([*way, 0.7])
    assert list(lines(panel)["whole, all labels"].get_ydata()) == [0.95]
    assert "for them it is the fused one" in out.caption
    plain, out = drawn(curves.draw_accuracy, [toy("whole"), toy("other")])
    assert not [axis for axis in plain.axes if "label-aware" in axis.get_title()]
    assert list(lines(plain.axes[0])) == ["whole", "other"]
    assert "label" not in out.caption


def test_own_gaussians_have_a_panel_where_they_were_measured(drawn: Any) -> None:
    figure, _ = drawn(
        curves.draw_accuracy, [toy("with", metrics={"acc_energy": 0.5, "acc_gaussian": 0.7}), toy("without")]
    )
    (above,) = [axis for axis in figure.axes if axis.get_title().endswith("own Gaussians")]
    assert list(lines(above)["with"].get_ydata()) == [0.7]
    assert list(lines(above)) == ["with"]


def test_labels_and_clusters_of_a_replica_stand_beside_the_nodes(drawn: Any) -> None:
    content = graph((0, 0, 1))
    for node, labels, mine in zip(content["nodes"], ([0, 1], [2], [0, 1]), ([0], [0, 1], [1]), strict=True):
        node |= {"labels": labels, "clusters": mine}
    figure, _ = drawn(graph_figures.draw_network, [toy(network=content)])
    words = {text.get_text() for text in figure.axes[0].texts}
    assert {"mlp: 0, 1", "conv4: 2\nin clusters 0 and 1"} <= words


def test_looks_of_many_runs_differ() -> None:
    looks = [tuple(map(str, style.look(i).values())) for i in range(35)]
    assert len(set(looks)) == 35


def test_cosines_are_sorted_by_class_with_boundaries_and_negatives(drawn: Any) -> None:
    run = toy(initial=None)
    figure, out = drawn(matrices.draw_cosine, [run])
    axis = figure.axes[0]
    C = axis.images[0].get_array()
    Z, y = run.features.Z, run.features.y
    rows = [
        i for k in range(K) for node in range(NODES) for i in range(len(y)) if (y[i], run.features.node[i]) == (k, node)
    ]
    assert torch.as_tensor(C).allclose((Z[rows] @ Z[rows].T).clamp(-1, 1), atol=1e-6)
    assert C.min() < -0.5
    assert axis.images[0].get_clim() == (-1, 1)
    assert sorted(line.get_ydata()[0] for line in axis.get_lines()[::2]) == [29.5, 59.5, 89.5]
    assert "below 0" in axis.get_xlabel()
    assert "120 samples of 4 classes" in out.alt


def test_large_sets_are_thinned_and_keep_every_class(drawn: Any) -> None:
    figure, _ = drawn(matrices.draw_cosine, [toy(initial=None, features=features(0, [500] * K))])
    axis = figure.axes[0]
    assert axis.images[0].get_array().shape == (matrices.SAMPLES, matrices.SAMPLES)
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0", "1", "2", "3"]


def test_a_shared_start_is_drawn_once(drawn: Any) -> None:
    same, _ = drawn(matrices.draw_cosine, [toy("a"), toy("b", 1)])
    assert [axis.get_title() for axis in same.axes[:-1]] == ["before training", "a: after", "b: after"]
    other, _ = drawn(matrices.draw_cosine, [toy("a"), toy("b", 1, initial=features(8))])
    assert [axis.get_title() for axis in other.axes[:-1]] == ["a: before", "b: before", "a: after", "b: after"]


def test_singular_values_agree_with_a_decomposition(drawn: Any) -> None:
    run = toy(features=features(0, [30, 1, 5, 40]))
    figure, _ = drawn(matrices.draw_spectra, [run])
    *by_class, overall, _ = figure.axes[0].get_lines()
    Z, y = run.features.Z.double(), run.features.y
    assert overall.get_ydata() == pytest.approx(torch.linalg.svdvals(Z).tolist(), abs=1e-6)
    for k, line in enumerate(by_class):
        assert line.get_ydata() == pytest.approx(torch.linalg.svdvals(Z[y == k]).tolist(), abs=1e-6)
    assert by_class[1].get_marker() == "."  # one sample is one point, which no line would show


def test_consensus_names_the_run_without_edges_and_draws_the_rest(drawn: Any) -> None:
    alone = toy("alone", records=records(disagreement=None))
    for record in alone.records:
        record["nodes"] = [{**node, "disagreement": None} for node in record["nodes"]]
    figure, out = drawn(curves.draw_consensus, [toy("together"), alone])
    left, right = figure.axes
    assert list(lines(left)) == ["together"]
    assert list(lines(right)) == ["together", "alone"]
    assert out.notes == ("alone: no disagreement is recorded; without edges there is none.",)


def test_edges_get_thicker_and_darker_with_disagreement(drawn: Any) -> None:
    figure, _ = drawn(graph_figures.draw_network, [toy()])
    near, far, unknown = sorted(
        figure.axes[0].get_lines(), key=lambda line: (line.get_linestyle(), line.get_linewidth())
    )
    assert far.get_linewidth() > 2 * near.get_linewidth()
    assert sum(far.get_color()[:3]) < sum(near.get_color()[:3])
    assert unknown.get_linestyle() == ":"
    words = {text.get_text() for text in figure.axes[0].texts}
    assert words == {"0", "1", "2", "mlp", "conv4"}


def test_clusters_differ_in_shape_and_have_a_legend(drawn: Any) -> None:
    figure, out = drawn(graph_figures.draw_network, [toy(network=graph((1, 0, None)))])
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["cluster 0", "cluster 1", "no cluster"]
    assert len({str(group.get_paths()[0].vertices) for group in axis.collections[:2]}) == 2
    assert "2 clusters" in out.alt


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({}, "missing"),
        ({"nodes": [], "edges": []}, "does not hold a graph"),
        ({"nodes": graph()["nodes"], "edges": [{"ends": [0, 9]}]}, "does not hold a graph"),
        ({"nodes": graph()["nodes"], "edges": [{"ends": [0, 1, 2]}]}, "does not hold a graph"),
        ({"nodes": [{"index": i, "cluster": None} for i in range(graph_figures.MOST + 1)], "edges": []}, "too many"),
    ],
)
def test_a_network_that_cannot_be_drawn_is_told(content: dict[str, Any], word: str, drawn: Any) -> None:
    _, out = drawn(graph_figures.draw_network, [toy(network=content)])
    assert out.files == ()
    assert word in out.notes[0]


@pytest.mark.parametrize("nodes", [1, 60])
def test_networks_of_any_size_are_drawn(nodes: int, drawn: Any) -> None:
    content = {
        "nodes": [{"index": i, "encoder": "mlp", "cluster": None} for i in range(nodes)],
        "edges": [{"ends": [i, i + 1], "disagreement": 0.2} for i in range(nodes - 1)],
    }
    figure, out = drawn(graph_figures.draw_network, [toy(network=content)])
    assert len(figure.axes[0].get_lines()) == nodes - 1
    assert f"{nodes} nodes" in out.alt


def test_accuracy_is_drawn_against_what_was_sent_so_far() -> None:
    run = toy()
    for record in run.records[1::2]:
        record["evaluation"] = {"acc_average": record["round"] / 10, "sample_passes": 100 * record["round"]}
    found = curves.points(run)
    assert [(point.bytes, point.passes) for point in found[:3]] == [(300, 200), (1000, 400), (2100, 600)]
    assert len(found) == 3  # the end of the run is the last evaluation, not a fourth point
    run.metrics["sample_passes"] = 700
    assert curves.points(run)[-1].accuracy["acc_energy"] == 0.95


def test_without_evaluations_the_end_is_a_single_point(drawn: Any) -> None:
    figure, out = drawn(curves.draw_accuracy, [toy("plain"), toy("other"), toy("nothing", metrics={})])
    line = lines(figure.axes[0])["plain"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([2100], [0.9])
    assert "nothing: no accuracy is recorded." in out.notes
    assert any("evaluate_every" in note for note in out.notes)


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_that_recorded_nothing_is_named_not_drawn(name: str, drawn: Any) -> None:
    empty = Run("empty", Path("nowhere"))
    _, out = drawn(FIGURES[name], [empty])
    assert out.files == ()
    assert any("empty" in note for note in out.notes)
    _, both = drawn(FIGURES[name], [empty, toy("full"), toy("more")])
    assert both.files
    assert "full" in both.alt


@pytest.mark.parametrize("name", FIGURES)
def test_odd_names_and_short_runs_are_drawn_literally(name: str, tmp_path: Path) -> None:
    """Warnings are errors here: a missing glyph or a bad formula would show."""
    odd = toy("_$x_1$ 50% " + "long" * 20, records=records(1), features=features(0, [1, 2]))
    out = FIGURES[name]([odd, toy("γ-ü 学")], tmp_path / name, formats=["svg"])
    assert out.files[0].stat().st_size > 5000


def test_values_that_are_not_numbers_leave_gaps() -> None:
    run = toy(records=[{"round": 1, "total": None, "nodes": [{"total": None}, {"total": 2.0}]}])
    curve = run.curve("total")
    assert math.isnan(curve.mean[0])
    assert (curve.low, curve.high) == ([2.0], [2.0])
    assert not run.curve("unheard of").values
