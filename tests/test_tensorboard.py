"""What --tensorboard writes and when, with a writer that only takes notes; test_live.py reads real event files."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.storage import read_json
from ratemesh.experiment.trials import run_trials
from ratemesh.report import live
from ratemesh.report.figures.graph import Network
from ratemesh.report.figures.style import Drawn
from ratemesh.report.live import open_underway
from ratemesh.report.runs import Run, open_run
from test_resume import stop_at
from toy_runs import SMOKE


class Writer:
    """Stands in for SummaryWriter, which is slow to import."""

    made: list["Writer"]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = Path(folder), purge_step, False
        self.scalars: list[tuple[str, int]] = []
        self.images: list[tuple[str, int]] = []
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, step))

    def add_image(self, name: str, image: Any, step: int, dataformats: str) -> None:
        assert (image.ndim, image.shape[2], dataformats) == (3, 3, "HWC")
        self.images.append((name.removeprefix("figures/"), step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Writer]]:
    """The writers that were opened; two figures are drawn, as a single white point."""
    Writer.made = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(live, "FIGURES", dict.fromkeys(("network", "accuracy-cost"), dot))
    return Writer.made


def dot(runs: Sequence[Run], stem: Path, *, formats: Sequence[str]) -> Drawn:
    assert formats == ["png"]
    Image.new("RGB", (1, 1), "white").save(stem.with_suffix(".png"))
    return Drawn("", "", "", (stem.with_suffix(".png"),))


def quiet(record: object) -> None:
    pass


BOARD = ["tensorboard"]
CONFIG = load_config(SMOKE, ["rounds=4"])


@pytest.mark.parametrize(("every", "along"), [(None, [1, 2, 4]), (2, [2, 4]), (0, [])])
def test_figures_come_as_often_as_asked_and_at_the_end(
    every: int | None, along: list[int], made: list[Writer], tmp_path: Path
) -> None:
    seen: list[int] = []
    with live.Live(BOARD, every) as board:
        track = board.track(tmp_path / "run", 4, lambda record: seen.append(record["round"]))
        run(CONFIG, tmp_path / "run", progress=track)
    (writer,) = made
    assert seen == [1, 2, 3, 4]
    assert [step for name, step in writer.images if name == "network"] == along
    assert [step for name, step in writer.images if name == "accuracy-cost"] == along[-1:]  # scalars tell it before
    assert [step for name, step in writer.scalars if name == "node-2/total"] == [1, 2, 3, 4]
    assert writer.folder == tmp_path / "run" / "tensorboard"
    assert writer.closed


def test_every_trial_gets_its_own_events_up_to_its_end(made: list[Writer], tmp_path: Path) -> None:
    config = load_config(SMOKE, ["rounds=1"])
    with live.Live(BOARD) as board:
        run_trials(config, tmp_path / "t", 2, lambda name, rounds: board.track(tmp_path / "t" / name, rounds, quiet))
    assert [writer.folder.parent.name for writer in made] == ["trial-1", "trial-2"]
    assert all(writer.closed and writer.images == [("network", 1), ("accuracy-cost", 1)] for writer in made)


def test_a_resumed_run_replaces_what_it_plays_again(made: list[Writer], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt), live.Live(BOARD) as board:
        run(CONFIG, folder, progress=board.track(folder, 4, stop_at(2)))
    with live.Live(BOARD) as board:
        resume(folder, progress=board.track(folder, 4, quiet))
    first, second = made
    assert first.closed
    assert first.images[-1] == ("network", 2)  # no end, so no last figures
    assert second.purge_step == 3
    assert {step for _, step in second.scalars} == {3, 4}


def test_the_network_is_known_while_the_run_goes_on(tmp_path: Path) -> None:
    found: list[Any] = []
    folder = run(CONFIG, tmp_path / "run", progress=lambda record: found.append(open_underway(tmp_path / "run"))).folder
    last, final = Network.of(found[-1].network), Network.of(open_run(folder).network)
    assert last is not None
    assert last == final  # after the last round it is what network.json will say
    assert Network.of(found[0].network) != final
    assert found[0].stats.m.tolist() == [40, 40, 40]
    assert open_underway(folder).stats is None  # features are there now


def test_without_a_checkpoint_the_network_is_what_the_run_wrote_first(tmp_path: Path) -> None:
    folder = RunFolder(run(CONFIG, tmp_path / "run").folder)
    folder.metrics.unlink()
    shutil.rmtree(folder.checkpoints)
    found = open_underway(folder.path)
    assert found.network == read_json(folder.network)
    assert found.stats is None


def test_a_figure_that_fails_does_not_end_the_run(
    made: list[Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise InputError("disk full")

    monkeypatch.setattr(live, "open_underway", broken)
    with pytest.warns(RatemeshWarning, match="no figures after round 4: disk full"), live.Live(BOARD, 9) as board:
        run(CONFIG, tmp_path / "run", progress=board.track(tmp_path / "run", 4, quiet))
    assert ("total", 4) in made[0].scalars


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'ratemesh\[tensorboard\]'"):
        live.Live(BOARD)
