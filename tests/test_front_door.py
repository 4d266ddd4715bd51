"""What a new user meets first: experiments by name, the list of settings, help, and words that say what is so."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ratemesh
from ratemesh.cli import screen
from ratemesh.cli.listing import KINDS
from ratemesh.encoders import ENCODERS
from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, load_config
from ratemesh.experiment.memory import make_network
from ratemesh.experiment.named import experiments, find_experiment
from ratemesh.metrics.table import METRICS
from ratemesh.report.figures.curves import draw_accuracy
from ratemesh.report.figures.matrices import Matrix
from ratemesh.report.progress import in_words
from ratemesh.report.runs import Features, open_run
from ratemesh.specs import Spec
from toy_cli import call

ROOT = Path(ratemesh.__file__).parents[2]


@pytest.mark.parametrize("name", sorted(experiments()))
def test_every_experiment_is_known_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(Path(name)).digest() == load_config(ROOT / "experiments" / f"{name}.toml").digest()


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke").mkdir()  # a folder is no file
    assert find_experiment(Path("smoke")) == ROOT / "experiments" / "smoke.toml"
    (tmp_path / "digits").write_text("rounds = 3\n")
    assert load_config(Path("digits")).rounds == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("digts", "must be a TOML file or a known experiment; got 'digts'. Did you mean 'digits'?"),
        ("elsewhere/digits.toml", "there is no 'elsewhere/digits.toml'. Did you mean the name 'digits'?"),
        ("mine.toml", "config must be a readable TOML file; got 'mine.toml'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(given: str, expected: str) -> None:
    done = call("run", given)
    assert done.returncode == 2
    assert expected in done.stderr


def test_list_settings_shows_every_setting_default_and_meaning() -> None:
    out = call("list", "settings").stdout

    def shown(cls: type[Spec], indent: str) -> None:
        for name, field in cls.model_fields.items():
            assert re.search(rf"^{indent}{name}[ .]", out, flags=re.MULTILINE), name
            inner = field.annotation
            if field.description:
                assert field.description in out
            if isinstance(inner, type) and issubclass(inner, Spec) and "name" not in inner.model_fields:
                shown(inner, indent + "  ")

    shown(Config, "")
    assert "\n  epochs = 1  local epochs a round" in out
    assert "data = digits  what is learned from: samples, labels, and those held out (ratemesh list datasets)" in out
    assert "rank = not set  " in out
    assert "same_init = false  " in out


@pytest.mark.parametrize("what", KINDS)
def test_list_loses_nothing_to_markup(what: str) -> None:
    done = call("list", what)
    assert done.returncode == 0
    assert "\\[" not in done.stdout
    if what == "topologies":
        assert "a TOML file with [[change]] tables" in done.stdout


@pytest.mark.parametrize("words", [(), ("watch",), ("launch",), ("bench", "link"), ("certs",), ("data", "get")])
def test_help_names_no_value_for_flags(words: tuple[str, ...]) -> None:
    out = call(*words, "--help").stdout
    assert "--help" in out
    assert "bool" not in out.lower()


def test_one_node_is_not_nodes() -> None:
    record = {"round": 1, "nodes": [{}], "reduction": 1.0}
    assert in_words(record).startswith("1 node  ΔR")
    assert in_words({**record, "nodes": [{}, {}]}).startswith("2 nodes  ΔR")


def test_a_long_label_takes_one_line_of_a_table_and_is_told_below(capsys: pytest.CaptureFixture[str]) -> None:
    label = "Algorithm 1 + gauge with class means and sketch + late coupling + running statistics"
    screen.table([{**dict.fromkeys(METRICS, 0.5), "method": label}])
    lines = capsys.readouterr().out.splitlines()
    assert sum("Algorithm 1 …" in line for line in lines) == 2  # the row, and what it stands for
    assert len([line for line in lines if "50.0 %" in line]) == 1
    assert label in " ".join(" ".join(lines).split())


def test_too_few_rounds_of_theory_are_told(tmp_path: Path) -> None:
    done = call("theory", "--rounds", 80, "--nodes", 3, "--classes", 2, "--rank", 2, "--out", tmp_path / "t")
    assert "do not hold" in done.stdout
    assert "80 rounds may be too few: by default there are 400. Try --rounds 400." in done.stdout


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("d=20000000", "d must leave room for the class statistics"),
        ("encoders=[{name='mlp', hidden=[3000000, 3000000]}]", "encoders[0] (mlp) must fit into memory"),
        ("encoders=[{name='mlp', hidden=[1000000000000, 1000000000000]}]", "encoders[0] (mlp) must fit into memory"),
    ],
)
def test_what_no_memory_can_hold_is_refused_before_it_is_tried(setting: str, expected: str, tmp_path: Path) -> None:
    done = call("run", "smoke", "--set", setting, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "run").exists()


def test_parameters_are_counted_without_memory_for_them() -> None:
    spec = ENCODERS["mlp"](name="mlp", hidden=(100, 100))
    parameters = sum(p.numel() for p in spec.network((8,), 4).parameters())
    assert parameters > 10_000
    assert make_network(spec, (8,), 4, 16 * parameters, "it")
    with pytest.raises(InputError, match="it must fit into memory"):
        make_network(spec, (8,), 4, 16 * parameters - 1, "it")


def test_memory_that_runs_out_on_the_way_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratemesh.experiment.plan.available_memory", lambda: 10**24)
    done = call("run", "smoke", "--set", "d=500000", "--set", "method.eps2=1", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "error memory ran out" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lone_point_is_no_curve(smoke: Path, tmp_path: Path) -> None:
    run = open_run(smoke)
    for record in run.records:
        record.pop("evaluation", None)
    alone = draw_accuracy([run], tmp_path / "one", formats=("png",))
    assert alone.files == ()
    assert "only the final accuracy is known" in alone.notes[0]


def test_classes_have_their_names_along_the_axes() -> None:
    features = Features(torch.eye(4), torch.tensor([0, 1, 2, 2]), torch.zeros(4, dtype=torch.long))
    shown = Matrix.of(features, "", ("cat", "a very long name"))
    assert [shown.label(k) for k in range(3)] == ["cat", "a very lo…", "2"]


def test_many_classes_are_named_and_not_drowned_in_lines(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from ratemesh.report.figures.matrices import _cosine_panel

    for K, lines in ((10, 18), (26, 0)):
        y = torch.arange(K).repeat_interleave(8)
        axis = Figure().subplots()
        names = tuple(f"word{k}" for k in range(K))
        _cosine_panel(axis, Matrix.of(Features(torch.eye(K)[y], y, torch.zeros_like(y)), "", names))
        assert len(axis.get_lines()) == lines
        assert [label.get_text() for label in axis.get_xticklabels()] == list(names)
        assert np.allclose([label.get_rotation() for label in axis.get_xticklabels()], 90)
