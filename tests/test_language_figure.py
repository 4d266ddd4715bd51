# ruff: noqa: F811  tests name the fixture that they take
"""The matrix of who understands whom: rows speak, columns judge, and what is no matrix is told."""

from typing import Any

import pytest

from ratemesh.report.figures import language
from test_figures import drawn  # noqa: F401  a fixture
from toy_runs import NODES, toy


def test_who_speaks_is_a_row_and_who_judges_a_column_with_architectures(drawn: Any) -> None:
    run = toy("mesh")
    run.metrics |= {"retrieval_matrix_fine": [[0.1] * NODES] * NODES, "acc_own": 0.8, "acc_cross": 0.4}
    figure, out = drawn(language.draw_language, [run])
    first, second, _ = figure.axes
    assert first.get_title() == "mesh\naccuracy by own statistics"
    assert second.get_title().endswith("fine labels")
    assert first.images[0].get_array()[1].tolist() == [0.4, 0.8, 0.5]
    assert first.images[0].get_clim() == (0, 1)
    names = ["0 mlp", "1 conv4", "2 mlp"]
    assert [tick.get_text() for tick in first.get_yticklabels()] == names
    assert [tick.get_text() for tick in first.get_xticklabels()] == names
    assert (first.get_ylabel(), first.get_xlabel()) == ("who speaks", "who judges")
    cells = {text.get_position(): text.get_text() for text in first.texts}
    assert (cells[1, 0], cells[0, 1], cells[1, 2]) == ("20.0", "40.0", "–")
    assert "80.0 % of their own features right and 40.0 % of another node's" in out.alt
    assert "by construction" not in out.caption


def test_one_model_is_told_and_many_nodes_have_no_numbers(drawn: Any) -> None:
    many = toy("star", config={"method": {"name": "fedu"}}, network={})
    many.metrics = {"cross_matrix": [[0.5] * 20] * 20}
    figure, out = drawn(language.draw_language, [many])
    assert not figure.axes[0].texts
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [str(i) for i in range(0, 20, 2)]
    assert "In star nodes share weights of one model: they agree by construction." in out.caption


@pytest.mark.parametrize("content", [None, [], [[0.5], [0.5]], [0.5], "differs by trial"])
def test_what_is_no_matrix_over_pairs_is_told(content: Any, drawn: Any) -> None:
    _, out = drawn(language.draw_language, [toy("odd", metrics={"cross_matrix": content})])
    assert out.files == ()
    assert out.notes == ("odd: no accuracy by pairs of nodes is recorded.",)
