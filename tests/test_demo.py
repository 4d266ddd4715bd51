"""The demonstration as a new user runs it, held to what is promised; a shorter one unless slow tests are asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ratemesh.studies.demo import ROWS
from toy_cli import call

FIRST = ["row", "method", "acc_own", "acc_cross", "acc_cross_worst", "retrieval_cross", "retrieval_own"]
KEYS = {
    *FIRST,
    *("retrieval_own_fine", "retrieval_cross_fine", "retrieval_map_own", "retrieval_map_cross", "pair_cosine"),
    *("acc_average", "acc_energy", "acc_node", "acc_gaussian", "acc_knn", "acc_linear"),
    *("disagreement", "overlap", "rank_min", "rank_max", "reduction", "bytes"),
}

PROMISES = {6: {"cross": 0.92, "fine": 0.86, "lead": 0.3}, 20: {"cross": 0.94, "fine": 0.89, "lead": 0.35}}
"""After so many rounds: least accuracies across nodes, and by how much fine labels are ahead of FedProto's."""

Rows = dict[str, dict[str, Any]]


def show(out: Path, *words: object) -> str:
    done = call("demo", "--out", out, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(out: Path) -> Rows:
    rows = json.loads((out / "summary.json").read_text())
    assert [row["row"] for row in rows] == list(ROWS.values())
    return dict(zip(ROWS, rows, strict=True))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, show(out, "--rounds", 6)


@pytest.mark.timeout(900)
def test_a_short_demo_is_on_its_way(short: tuple[Path, str]) -> None:
    check(rows_of(short[0]), 6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_keeps_its_promises(tmp_path: Path) -> None:
    show(tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    check(rows, 20)
    assert rows["ratemesh"]["acc_own"] >= rows["site"]["acc_own"]
    assert rows["ratemesh"]["acc_own"] >= rows["independent"]["acc_own"] - 0.01  # nobody pays for being understood


def check(rows: Rows, rounds: int) -> None:
    ours, fedproto, alone = rows["ratemesh"], rows["fedproto"], rows["independent"]
    assert all(set(row) >= KEYS and list(row)[:7] == FIRST for row in (ours, fedproto, alone))
    assert ("gauge" in ours["method"], fedproto["method"]) == (True, "FedProto")
    assert alone["method"].startswith("Independent")
    assert alone["bytes"] == 0 < fedproto["bytes"] < ours["bytes"]
    promised = PROMISES[rounds]
    assert ours["acc_cross"] >= max(promised["cross"], ours["acc_own"] - 0.01)
    assert ours["retrieval_cross_fine"] >= promised["fine"]
    assert ours["retrieval_cross_fine"] >= fedproto["retrieval_cross_fine"] + promised["lead"]
    assert alone["acc_cross"] < 0.3  # five classes, and no common frame


@pytest.mark.timeout(900)
def test_no_row_is_there_to_look_bad(short: tuple[Path, str]) -> None:
    """What needs no mesh is as good as it is elsewhere: 144 images a site, 1,437 in one place."""
    rows = rows_of(short[0])
    assert rows["site"]["acc_own"] > 0.92
    assert rows["site"]["acc_average"] > rows["site"]["acc_own"]
    assert min(rows["pooled"]["acc_own"], rows["one-place"]["acc_own"]) > 0.97
    assert {"acc_cross", "bytes"}.isdisjoint(rows["pooled"])
    assert rows["independent"]["acc_own"] > 0.92
    assert rows["fedproto"]["acc_own"] > 0.9


@pytest.mark.timeout(900)
def test_the_demo_shows_a_table_and_figures(short: tuple[Path, str]) -> None:
    out, text = short
    assert f"Summary: {out / 'summary.json'}" in text
    lines = text.splitlines()
    for words in ROWS.values():
        assert sum(line.strip().startswith(words) for line in lines) >= 1
    for name in ("understanding.png", "structure.png"):
        assert f"Figure:  {out / name}" in text
        with Image.open(out / name) as picture:
            assert picture.width > 600
            assert len(picture.convert("RGB").resize((200, 60)).getcolors(12000) or []) > 100  # something was drawn
