"""`ratemesh bench link`: what receivers make of coded and noisy features, on a tiny run and against plain loops."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.errors import InputError
from ratemesh.experiment.experiment import run as run_experiment
from ratemesh.experiment.storage import read_tensors, write_tensors
from ratemesh.messages.features import ClassCode
from ratemesh.studies.link import SNRS, Ends, Heard, halves, open_ends, over_codes, over_noise, pairs_of
from toy_cli import call
from toy_runs import SMOKE, Copy, without
from toy_stats import keep

MEASURES = ("accuracy", "retrieval", "retrieval_fine")


def changed(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    """Return a damage that rewrites the kept features."""

    def edit(folder: Path) -> None:
        path = folder / "features.safetensors"
        write_tensors(path, change(read_tensors(path)))

    return edit


def with_fine(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add fine labels that features can tell: a class by the sign of a direction that varies in it, at node 0."""
    Z, y = tensors["Z_test"][0], tensors["y_test"]
    fine = torch.zeros_like(y)
    for k in y.unique():
        rows = Z[y == k] - Z[y == k].mean(0)
        fine[y == k] = 2 * k + (rows @ torch.linalg.svd(rows).Vh[0] > 0).long()
    return {**tensors, "fine_test": fine}


@pytest.fixture(scope="module")
def ends(smoke: Path) -> Ends:
    return open_ends(smoke)


@pytest.fixture(scope="module")
def codes(ends: Ends) -> list[Heard]:
    return over_codes(ends)


def test_gallery_and_queries_share_no_sample_and_have_every_label() -> None:
    y = torch.arange(40) % 2  # alternating labels must not part
    gallery, queries = halves(y)
    assert sorted(torch.cat([gallery, queries]).tolist()) == list(range(40))
    assert y[gallery].bincount().tolist() == y[queries].bincount().tolist() == [10, 10]


def test_float32_is_what_a_loop_over_pairs_finds(ends: Ends, codes: list[Heard]) -> None:
    Z, y = ends.test.Z.double(), ends.test.y
    gallery, queries = halves(y)
    judged, found = [], []
    for i in range(3):
        for j in range(3):
            if i == j:
                continue
            judged.append(SubspaceJudge(rule=ends.rule).fit_stats(ends.stats[j]).score(Z[i], y))
            apart = torch.cdist(Z[i, queries], Z[j, gallery])
            found.append(float((y[gallery[apart.argmin(1)]] == y[queries]).double().mean()))
    plain = codes[0]
    assert (plain.link, plain.bytes) == ("float32", 64)
    assert plain.accuracy == pytest.approx(sum(judged) / 6)
    assert plain.retrieval == pytest.approx(sum(found) / 6)
    assert plain.distortion < 1e-12
    assert math.isnan(plain.retrieval_fine)


def test_codes_come_longest_first_and_noise_hurts(ends: Ends, codes: list[Heard]) -> None:
    noise = over_noise(ends)
    sizes = [heard.bytes for heard in codes]
    assert sizes == sorted(sizes, reverse=True)
    by_name = {heard.link: heard.distortion for heard in codes}
    assert by_name["float32"] < by_name["int8"] < by_name["int4"]
    assert by_name["product16"] < by_name["product8"]
    assert by_name["class16"] < by_name["class8"] < by_name["class4"] < by_name["class2"]
    assert [heard.snr for heard in noise] == list(SNRS)
    assert [heard.distortion for heard in noise] == sorted(heard.distortion for heard in noise)
    assert (noise[0].accuracy, noise[0].retrieval) == (codes[0].accuracy, codes[0].retrieval)
    assert str(over_noise(ends)) == str(noise)  # as words, because NaN is not equal to itself


def test_pairs_are_judged_on_classes_that_both_hold(ends: Ends) -> None:
    a, b, c = ends.stats
    assert pairs_of([keep(a, {0}), keep(b, {0, 1}), keep(c, {1})]) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    with pytest.raises(InputError, match="hold a class in common"):
        pairs_of([keep(a, {0}), keep(b, {1})])
    stats, Z, y = [keep(a, {0}), keep(b, {0, 1}), keep(c, {1})], ends.test.Z, ends.test.y
    judges = [SubspaceJudge(rule=ends.rule).fit_stats(node) for node in stats]
    common = {(0, 1): 0, (1, 0): 0, (1, 2): 1, (2, 1): 1}
    by_hand = [judges[j].score(Z[i, y == k], y[y == k]) for (i, j), k in common.items()]
    assert over_codes(replace(ends, stats=stats))[0].accuracy == pytest.approx(sum(by_hand) / 4)
    many = [ClassStats(a.V, a.mu, a.m)] * 40
    assert len(set(pairs_of(many))) == 90


def test_the_command_measures_and_leaves_numbers_and_a_figure(copy: Copy, tmp_path: Path) -> None:
    folder, out = copy("mine", changed(with_fine)), tmp_path / "link"
    done = call("bench", "link", folder, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum("%" in line for line in lines) == 9 + len(SNRS)
    assert "fine" in done.stdout
    assert f"Summary: {out / 'link.json'}" in lines
    found = json.loads((out / "link.json").read_text())
    assert (found["run"], found["samples"], found["pairs"]) == ("mine", 30, 6)
    assert {row["link"]: row["bytes"] for row in found["codes"]} == {
        **{"float32": 64, "int8": 16, "int4": 8},
        **{f"class{size}": size for size in (16, 8, 4, 2)},
        **{f"product{size}": size for size in (16, 8)},
    }
    assert all(0 <= row[key] <= 1 for row in found["codes"] + found["noise"] for key in MEASURES)
    assert found["noise"][0]["snr"] is None  # JSON has no infinity
    with Image.open(out / "link.png") as image:
        assert image.width > 1000
    assert (out / "link.pdf").read_bytes().startswith(b"%PDF")


def test_without_fine_labels_there_is_no_such_column_and_the_run_keeps_the_files(copy: Copy) -> None:
    folder = copy("mine")
    done = call("bench", "link", folder)
    assert done.returncode == 0
    assert "fine" not in done.stdout.replace(str(folder), "")
    assert sorted(path.name for path in (folder / "link").iterdir()) == [
        "link.json",
        "link.pdf",
        "link.png",
        "link.svg",
    ]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without("config.toml"), "must be a run folder"),
        (without("metrics.json"), "ratemesh resume"),
        (without("features.safetensors"), "output.features"),
        (without("checkpoints"), "class statistics of every node"),
        (changed(lambda tensors: {**tensors, "Z_test": tensors["Z_test"][:2]}), "must hold Z_test"),
        (changed(lambda tensors: {**tensors, "y_test": tensors["y_test"][1:]}), "must hold Z_test"),
        (changed(lambda tensors: {**tensors, "fine_test": tensors["y_test"][1:].clone()}), "fine_test (n,)"),
        (changed(lambda tensors: {"y_test": tensors["y_test"]}), "must hold Z_test"),
        (lambda folder: (folder / "trials.json").write_text("{}"), "holds trials"),
    ],
)
def test_folders_that_cannot_be_measured_are_told_in_words(
    copy: Copy, damage: Callable[[Path], None], words: str
) -> None:
    done = call("bench", "link", copy("broken", damage))
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_one_node_has_nobody_to_talk_to(tmp_path: Path) -> None:
    one = run_experiment(SMOKE, tmp_path / "one", overrides=['graph={ name = "empty", nodes = 1 }', "rounds=1"]).folder
    done = call("bench", "link", one)
    assert done.returncode == 2
    assert "at least two nodes" in done.stderr


def test_a_folder_that_cannot_be_made_is_told(smoke: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("bench", "link", smoke, "--out", tmp_path / "file" / "link")
    assert done.returncode == 2
    assert "out must be a folder" in done.stderr


def test_bench_shows_its_commands() -> None:
    assert "link" in call("bench", "--help").stdout
    assert "ratemesh bench link" in call("bench", "link", "--help").stdout


def test_what_a_node_says_in_four_bytes_is_still_understood(ends: Ends) -> None:
    """Better than chance by far: the class, of three, as another node judges it."""
    code = ClassCode(ClassStats.sum(ends.stats), 4, ends.rule)
    arrived = code.decode(code.encode(ends.test.Z[0]))
    own = SubspaceJudge(rule=ends.rule).fit_stats(ClassStats.sum(ends.stats))
    assert torch.equal(own.predict(arrived), own.predict(ends.test.Z[0]))
