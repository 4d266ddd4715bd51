"""The picture of a run's structure, from its folder."""

from pathlib import Path

import pytest
from PIL import Image

from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.storage import write_tensors
from ratemesh.report.figures import draw_structure
from toy_runs import features


def test_structure_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(make_config({}).to_toml())
    with pytest.raises(InputError, match=r"must hold features to draw from; run with output\.features above 0"):
        draw_structure(folder, tmp_path / "x.png")
    for name in ("features-initial", "features"):
        f = features()
        write_tensors(folder / f"{name}.safetensors", {"Z_train": f.Z, "y_train": f.y, "node_train": f.node})
    draw_structure(folder, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width > 1000
