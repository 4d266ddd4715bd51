"""Paths and own modules are found from the file that names them, wherever a command is started."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ratemesh.errors import InputError
from ratemesh.experiment.config import load_config, make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.site_files import load_site

NETWORK = '''
from torch import nn

from ratemesh.encoders import EncoderSpec


class Wide(EncoderSpec):
    """A network of a user's own, which needs a module beside it only when it is built."""

    def network(self, shape, d):
        from {helper} import WIDTH

        return nn.Sequential(nn.Flatten(), nn.Linear(int(__import__("math").prod(shape)), WIDTH), nn.ReLU(),
                             nn.Linear(WIDTH, d))
'''
CONFIG = """
rounds = 2
d = 8
data = {{ name = "csv", path = "{path}", label = "kind" }}
graph = {{ name = "ring", nodes = 2 }}
encoders = [{{ name = "{module}:Wide" }}]
engine = {{ name = "inprocess", workers = {workers} }}
"""


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another folder, which is the current one; what is put on the path of modules goes with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    return tmp_path / "away"


def table(path: Path, shift: float = 0.0) -> Path:
    draw = np.random.default_rng(0)
    rows = [f"{draw.normal() + 3 * (i % 2) + shift},{draw.normal()},{['no', 'yes'][i % 2]}" for i in range(40)]
    path.write_text("\n".join(["a,b,kind", *rows]) + "\n")
    return path


def project(folder: Path, module: str, workers: int = 1, path: str = "t.csv") -> Path:
    """Write a configuration with data and network beside it; modules of different tests have different names."""
    folder.mkdir(parents=True, exist_ok=True)
    table(folder / "t.csv")
    (folder / f"{module}.py").write_text(NETWORK.format(helper=f"{module}_helper"))
    (folder / f"{module}_helper.py").write_text("WIDTH = 5\n")
    (folder / "run.toml").write_text(CONFIG.format(path=path, module=module, workers=workers))
    return folder / "run.toml"


@pytest.mark.parametrize("workers", [1, 2])
def test_data_and_network_beside_the_file_are_found_from_anywhere(tmp_path: Path, away: Path, workers: int) -> None:
    config = project(tmp_path / "home", f"mynet_{workers}", workers)
    result = run(config, tmp_path / "out")
    assert result.metrics["nodes"] == 2
    kept = load_config(tmp_path / "out" / "config.toml")
    assert kept.folder == tmp_path / "home"
    assert kept.data.model_dump()["path"] == tmp_path / "home" / "t.csv"
    (tmp_path / "out" / "metrics.json").unlink()
    assert resume(tmp_path / "out").metrics == result.metrics


def test_a_path_given_to_a_command_is_where_the_command_is(tmp_path: Path, away: Path) -> None:
    config = project(tmp_path / "home", "mynet_here")
    table(away / "other.csv")
    for override in ("data.path=other.csv", 'data={name="csv", path="other.csv", label="kind"}'):
        assert load_config(config, [override]).data.model_dump()["path"] == away / "other.csv"
    assert make_config({"data": {"name": "csv", "path": "x.csv"}}).data.model_dump()["path"] == away / "x.csv"


def test_home_and_graph_files(tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    (tmp_path / "a.toml").write_text(
        'graph = { name = "edge_file", path = "edges.txt", nodes = 3 }\ndata = { name = "mnist", dir = "~/sets" }\n'
    )
    config = load_config(Path("../a.toml"))
    assert config.graph.build(0).edges == ((0, 1), (1, 2))
    assert config.data.model_dump()["dir"] == tmp_path / "me" / "sets"


def test_where_files_lie_does_not_change_what_a_run_is(tmp_path: Path, away: Path) -> None:
    config = project(tmp_path / "home", "mynet_moved")
    (tmp_path / "plain").mkdir()
    for name, folder in (("one", tmp_path / "plain" / "one"), ("two", tmp_path / "plain" / "two")):
        table_only = config.read_text().replace('encoders = [{ name = "mynet_moved:Wide" }]', "")
        folder.mkdir()
        (folder / f"{name}.toml").write_text(table_only)
    one, two = (load_config(tmp_path / "plain" / name / f"{name}.toml") for name in ("one", "two"))
    assert one.data != two.data
    assert one.digest() == two.digest()
    assert one.folder is None  # nothing was taken from there
    assert load_config(tmp_path / "plain" / "one" / "one.toml", ["data.path=u.csv"]).digest() != one.digest()


def test_a_run_goes_on_where_its_files_were_moved_to(tmp_path: Path, away: Path) -> None:
    config = project(tmp_path / "home", "mynet_again")
    text = config.read_text().replace('encoders = [{ name = "mynet_again:Wide" }]', "")
    config.write_text(text)
    result = run(config, tmp_path / "out")
    shutil.move(tmp_path / "home", tmp_path / "new")
    kept = (tmp_path / "out" / "config.toml").read_text()
    (tmp_path / "out" / "config.toml").write_text(kept.replace(str(tmp_path / "home"), str(tmp_path / "new")))
    (tmp_path / "out" / "metrics.json").unlink()
    assert resume(tmp_path / "out").metrics == result.metrics


def test_a_run_with_networks_beside_its_configuration_can_be_loaded_from_anywhere(tmp_path: Path, away: Path) -> None:
    config = project(tmp_path / "home", "mynet_loaded")
    out = run(config, tmp_path / "out").folder
    code = f"import ratemesh; print(ratemesh.load({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=away, check=False)
    assert "trained" in done.stdout, done.stderr


def test_a_file_in_the_current_folder_is_not_taken_for_one_beside_the_configuration(tmp_path: Path, away: Path) -> None:
    config = project(tmp_path / "home", "mynet_lost", path="lost.csv")
    with pytest.raises(InputError, match=r"data\.path must exist; got '.*home/lost\.csv'.*relative to that file"):
        run(config, tmp_path / "out")
    table(away / "lost.csv")
    message = r"got '.*home/lost\.csv'.*'.*away/lost\.csv', but a path in a file.*--set data\.path=lost\.csv"
    with pytest.raises(InputError, match=message):
        run(config, tmp_path / "out")


def test_own_classes_that_cannot_be_found(tmp_path: Path, away: Path) -> None:
    project(tmp_path / "one", "mynet_twice")
    project(tmp_path / "two", "mynet_twice")
    load_config(tmp_path / "one" / "run.toml")
    with pytest.raises(InputError, match=r"must name one module; 'mynet_twice' is '.*two.*', but '.*one.*Rename"):
        load_config(tmp_path / "two" / "run.toml")
    with pytest.raises(InputError, match=r"known encoder; got 'mynet\.Wide'\. Did you mean 'mynet:Wide'\?"):
        make_config({"encoders": ["mynet.Wide"]})
    with pytest.raises(InputError, match=r"beside the configuration file or on PYTHONPATH"):
        make_config({"encoders": ["mynet_nowhere:Wide"]})


def test_a_site_takes_paths_and_networks_from_beside_its_own_file(tmp_path: Path, away: Path) -> None:
    home = tmp_path / "site"
    project(home, "mynet_site")
    (home / "sub").mkdir()
    (home / "sub" / "shared.toml").write_text(
        'data = { name = "csv", path = "s.csv" }\ngraph = { name = "ring", nodes = 2 }\n'
    )
    (home / "site.toml").write_text(
        'run = "r"\nconfig = "sub/shared.toml"\ninsecure = true\npeers = { one = 0, two = 1 }\n[site]\nname = "one"\n'
        'out = "out"\nlisten = ["127.0.0.1:1"]\ndata = { name = "csv", path = "t.csv", label = "kind" }\n'
        'encoder = { name = "mynet_site:Wide" }\n'
    )
    spec = load_site(Path("../site/site.toml"))
    assert spec.site.out == home / "out"
    assert spec.site.data is not None
    assert spec.site.data["path"] == str(home / "t.csv")
    assert spec.shared().data.model_dump()["path"] == home / "sub" / "s.csv"
