"""The demonstration, run whole as a new user does, and held to what the project promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

KEYS = {
    "method",
    "acc_average",
    "acc_energy",
    "acc_node",
    "disagreement",
    "overlap",
    "rank_min",
    "rank_max",
    "bytes",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "ratemesh.cli.main", "demo", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.mark.timeout(900)
def test_the_demo_keeps_its_promises(demo: tuple[Path, str]) -> None:
    independent, printed, ours = json.loads((demo[0] / "summary.json").read_text())
    assert all(set(row) == KEYS for row in (independent, printed, ours))
    assert "gauge" in ours["method"]
    assert "gauge" not in printed["method"]
    assert independent["method"].startswith("Independent")
    assert independent["bytes"] == 0 < printed["bytes"]
    assert ours["acc_average"] >= 0.95
    assert ours["acc_energy"] >= 0.95
    assert ours["disagreement"] <= 0.3
    assert ours["overlap"] <= 0.01
    assert 9 <= ours["rank_min"] <= ours["rank_max"] <= 16
    assert ours["acc_node"] > max(independent["acc_node"], printed["acc_node"])


@pytest.mark.timeout(900)
def test_the_demo_shows_a_table_and_a_figure(demo: tuple[Path, str]) -> None:
    out, text = demo
    assert f"Figure:  {out / 'structure.png'}" in text
    assert f"Summary: {out / 'summary.json'}" in text
    with Image.open(out / "structure.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").resize((200, 60)).getcolors(12000) or []) > 100  # something was drawn
