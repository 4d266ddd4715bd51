"""The report of whole run folders: what it shows, what it says, and that it needs nothing else."""

import json
import math
import re
from itertools import zip_longest
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratemesh.cli.main import app
from ratemesh.metrics.table import METRICS
from ratemesh.report import page as page_module
from ratemesh.report.cited import TABLE
from ratemesh.report.figures import FIGURES
from ratemesh.report.folders import open_runs
from ratemesh.report.page import render, symbols
from ratemesh.report.wording import in_bytes, in_count, in_digits, written
from toy_runs import Copy, Page, edited, on, page


def test_the_whole_report_is_one_self_contained_file(smoke: Path, copy: Copy, tmp_path: Path) -> None:
    second = copy("second", edited("metrics.json", acc_average=0.123))
    out = tmp_path / "new" / "r.html"
    done = CliRunner().invoke(app, ["report", str(smoke), str(second), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("Report: ")
    html = out.read_text()
    found = Page(html)
    assert found.all("h1")
    links = [str(v) for _, given in found.tags for key, v in given.items() if key in {"src", "href", "action", "data"}]
    assert all(link.startswith(("data:", "#")) for link in links)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<iframe", html)
    ids = [str(given["id"]) for _, given in found.tags if "id" in given]
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    pictures = [picture for picture in found.all("img") if picture.get("src")]
    assert len(pictures) == len(FIGURES)
    assert all(len(picture["alt"] or "") > 40 for picture in pictures)
    assert len(found.all("button", **{"class": "zoom", "type": "button"})) == len(FIGURES)


def test_figures_are_kept_when_asked_for(smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "FIGURES", {name: FIGURES[name] for name in ("consensus", "cosine")})
    done = CliRunner().invoke(
        app, ["report", str(smoke), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path / "f")]
    )
    assert done.exit_code == 0, done.output
    names = {file.name for file in (tmp_path / "f").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("consensus", "cosine") for kind in ("png", "svg", "pdf")}


def test_the_summary_says_what_came_out(smoke: Path, copy: Copy) -> None:
    worse = copy("worse", edited("metrics.json", acc_average=0.123, disagreement=9.0, rank_max=1.2, overlap=0.99))
    words = page(smoke, worse).text
    best = json.loads((smoke / "metrics.json").read_text())["acc_average"]
    assert "Two runs on subspaces" in words
    assert "All runs have 3 nodes, graph “ring”, 4 rounds, 2 local epochs a round" in words
    assert f"smoke classifies {100 * best:.1f} % of 30 held-out samples, the most of all; worse 12.3 %." in words
    assert "worse has collapsed" in words
    assert "In smoke, neighbours end 0." in words
    close = copy("close", edited("metrics.json", disagreement=0.001, overlap=0.9))
    words = page(smoke, worse, close).text
    assert "Neighbours agree best in close: they end 0.001 apart" in words
    assert "Classes overlap least in smoke: by 0." in words
    assert "A round of smoke sends 19 kB in all; D-SGD with these encoders would send" in words


def test_what_nodes_understand_has_a_section_with_its_numbers(smoke: Path, copy: Copy) -> None:
    metrics = json.loads((smoke / "metrics.json").read_text())
    words = page(smoke).text
    section = words[words.index("What one node says, the others understand") : words.index("Figures ", 2000)]
    for key in ("acc_own", "acc_cross", "acc_cross_worst", "retrieval_own", "retrieval_cross"):
        assert f"{METRICS[key].label} {METRICS[key].meaning} {100 * metrics[key]:.1f} %" in section
    assert "cross_matrix" not in words
    assert "by construction" not in words

    def star(folder: Path) -> None:
        config = folder / "config.toml"
        config.write_text(config.read_text().replace('name = "alg1"', 'name = "fedu"'))

    assert "Nodes of star share the weights of one model" in page(copy("star", star)).text
    bare = copy("bare", lambda folder: (folder / "metrics.json").write_text("{}"))
    assert "No run has numbers on how well nodes understand each other." in page(bare).text


def test_runs_on_different_data_are_not_ranked(smoke: Path, copy: Copy) -> None:
    other = copy("other", on("mnist"), edited("metrics.json", acc_average=0.5))
    found = page(smoke, other)
    assert "the most of all" not in found.text
    assert "On mnist: By its own statistics alone, a node of other judges" in found.text
    assert "right, and" in found.text
    runs, _ = open_runs([smoke, other])
    numbers = render(runs, [], {}).partition('id="metrics"')[2].partition('id="paper"')[0]
    assert "50.0 %" in numbers
    assert "<strong>" not in numbers


def test_every_metric_is_shown_known_ones_first(copy: Copy) -> None:
    folder = copy(
        "run", edited("metrics.json", zeta_new=0.125, acc_linear=None, undefined=["acc_linear: too few <rows>"])
    )
    metrics = json.loads((folder / "metrics.json").read_text())
    words = page(folder).text
    names = [METRICS[key].label for key in METRICS if key in metrics and "^" not in METRICS[key].label]
    places = [words.index(f" {name} ", words.index("Final numbers")) for name in names]
    assert len(names) > 20
    assert places == sorted(places)
    assert words.index("zeta_new 0.125") > places[-1]
    assert f"without structure {metrics['wccr_floor']:.3f}; n = 120" in words
    assert "wccr_floor" not in words
    assert "acc_linear: too few <rows>" in words


def test_best_numbers_are_bold(smoke: Path, copy: Copy) -> None:
    better, worse = edited("metrics.json", acc_node=1.0, overlap=0.0), edited("metrics.json", acc_node=0.25)
    runs, _ = open_runs([copy("better", better), copy("worse", worse)])
    html = render(runs, [], {})
    assert "<td><strong>100.0 %</strong></td><td>25.0 %</td>" in html
    assert "<td><strong>0</strong></td>" in html


@pytest.mark.parametrize(("data", "doubtful"), [("mnist", 0), ("cifar10", 0), ("cifar100", 4), ("CIFAR-100", 4)])
def test_ours_stand_beside_the_papers_cells(data: str, doubtful: int, smoke: Path, copy: Copy) -> None:
    found = page(smoke, copy("ours", on(data)))
    cited = [cell for cell in found.all("td") if "cited" in (cell.get("class") or "")]
    assert len(cited) == 7 * 5
    marks = found.all("a", href="#cited")
    assert len(marks) == 7 * 5 - 1  # all but the CKA that the paper leaves open
    assert len(found.all("td", **{"class": "cited doubtful"})) == len(found.all("a", href="#doubt")) == doubtful
    metrics = json.loads((smoke / "metrics.json").read_text())
    assert f"{100 * metrics['acc_average']:.2f} %" in found.text
    assert f"{metrics['cka_unpaired']:.4f}" in found.text
    assert "Not in the paper's table: smoke." in found.text


def test_other_data_are_not_set_beside_the_paper(smoke: Path) -> None:
    found = page(smoke)
    assert (
        "Table I is on mnist, cifar10, cifar100. The runs here are on subspaces, so nothing is set beside it."
        in found.text
    )
    assert not found.all("a", href="#cited")


@pytest.mark.parametrize(
    ("setting", "words"),
    [('path = "mine.npz"', "a file in place of cifar100"), ("coarse = true", "superclasses of cifar100")],
)
def test_other_samples_under_a_known_name_are_not_set_beside_the_paper(setting: str, words: str, copy: Copy) -> None:
    def swap(folder: Path) -> None:
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("[data]", f"[data]\n{setting}"))

    found = page(copy("ours", on("cifar100"), swap))
    assert f"The runs here are on {words}, so nothing is set beside it." in found.text
    assert not found.all("a", href="#cited")


def test_a_warm_start_counts_in_the_budget_beside_the_paper(copy: Copy) -> None:
    def warm(folder: Path) -> None:
        config = folder / "config.toml"
        text = config.read_text()
        config.write_text(text.replace("[method.warm_start]\nepochs = 0", "[method.warm_start]\nepochs = 3"))

    assert "ours: 4 rounds of 2 local epochs " in page(copy("cold", on("mnist"))).text
    assert "ours: 4 rounds of 2 local epochs after 3 of cross-entropy" in page(copy("warm", on("mnist"), warm)).text


def test_cited_cells_agree_with_each_other_but_for_the_doubtful() -> None:
    """WCCR fixes IIDR for balanced classes, to within heavy tails; the four cells that the report flags are off."""
    off = []
    for data, rows in TABLE.items():
        K = 100 if data == "cifar100" else 10
        for method, cells in rows.items():
            W, found = (float(cells[key].text) for key in ("wccr", "iidr"))
            ratio = found / math.sqrt(2 * K / (K - 1) * (1 - W) / W)
            if not 0.97 < ratio < 1.06:
                off.append((data, method))
            assert cells["iidr"].doubtful == (not 0.97 < ratio < 1.06)
            assert not any(cells[key].doubtful for key in ("accuracy", "cosine", "wccr", "cka"))
    assert off == [("cifar100", method) for method in ("Algorithm 1", "CenMCR", "D-SGD", "Orchestra")]
    assert [len(rows) for rows in TABLE.values()] == [7, 7, 7]


def test_what_differs_between_runs_is_listed(smoke: Path, copy: Copy) -> None:
    def change(folder: Path) -> None:
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("gamma = 1.0", "gamma = 2.5"))

    assert "What differs smoke changed method.gamma 1.0 2.5 " in page(smoke, copy("changed", change)).text
    assert "All settings are equal." in page(smoke, copy("equal")).text


def test_symbols_are_set_and_all_else_is_escaped() -> None:
    assert (
        symbols("R^c of V_i & V_j, not V_m or R^d")
        == "R<sup>c</sup> of V<sub>i</sub> &amp; V<sub>j</sub>, not V_m or R^d"
    )
    assert symbols("<b>'\"") == "&lt;b&gt;&#39;&#34;"


@pytest.mark.parametrize(
    ("data", "sums"),
    [
        ("mnist", [683.4, 0.87, 2.69, 0.72, 4.7801, 7.8718, 0.0388]),
        ("cifar10", [433.41, 1.19, 2.69, 0.68, 5.9546, 4.1611, 0.0354]),
        ("cifar100", [206.86, 1.22, 2.6, 0.82, 5.472, 4.049, 0.0571]),
    ],
)
def test_cited_cells_add_up_to_the_papers(data: str, sums: list[float]) -> None:
    """Columns of the paper's LaTeX table, added up there: accuracy, ±, cosine mean and std, WCCR, IIDR, CKA."""
    texts = [" ".join(cell.text for cell in cells.values()).replace("−", "-") for cells in TABLE[data].values()]
    rows = [[float(found) for found in re.findall(r"-?\d+\.\d+", line)] for line in texts]
    columns = zip_longest(*rows, fillvalue=0)  # one row has no CKA
    assert [sum(column) for column in columns] == pytest.approx(sums)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (in_bytes(0), "0 B"),
        (in_bytes(999), "999 B"),
        (in_bytes(999.4), "999 B"),
        (in_bytes(999.5), "1 kB"),
        (in_bytes(1000), "1 kB"),
        (in_bytes(999_499), "999 kB"),
        (in_bytes(999_500), "1 MB"),
        (in_bytes(999_999), "1 MB"),
        (in_bytes(999_999_999), "1 GB"),
        (in_bytes(1e15), "1e+03 TB"),  # there is no larger unit here
        (in_bytes(math.nan), "–"),
        (in_count(1), "1"),
        (in_digits(0.00012), "0.00012"),
        (in_digits(12.34567), "12.346"),
        (written("acc_node", 0.5), "50.0 %"),
        (written("class_mean_noise", []), "none"),
        (written("class_mean_noise", [1, 2]), "1, 2"),
        (written("unknown", [7] * 100), "7 each"),
        (written("unknown", list(range(100))), "0 to 99"),
        (written("unknown", None), "–"),
        (written("unknown", "word"), "word"),
    ],
)
def test_numbers_are_written_for_people(shown: str, expected: str) -> None:
    assert shown == expected
