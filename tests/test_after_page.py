"""What docs/after.md tells people to do with exported files works, where ratemesh is not needed without it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ratemesh
from toy_cli import call

PAGE = (Path(ratemesh.__file__).parents[2] / "docs" / "after.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
ALONE = "\nimport sys\nassert 'ratemesh' not in sys.modules\n"
CLASSES = (
    "\nassert len(label) == 69 and set(label.tolist()) == {0, 1} and about['classes'] == ['benign', 'malignant']\n"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of `ratemesh new`, trained for a round, and its first node exported in every form."""
    before, folder = [*sys.path], tmp_path_factory.mktemp("page") / "my-mesh"
    assert call("new", folder).returncode == 0
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    done = call("run", folder / "mesh.toml", "--out", folder / "run", "--set", "rounds=1", "--workers", 1)
    assert done.returncode == 0, done.stderr
    for form, end in (("onnx", "onnx"), ("torch", "pt2"), ("safetensors", "safetensors")):
        done = call("export", folder / "run", "--format", form, "--classifier", "-o", folder / f"node-0.{end}")
        assert done.returncode == 0, done.stderr
    sys.path[:] = before
    return folder


@pytest.mark.parametrize(
    ("place", "then"),
    [(0, CLASSES + ALONE), (1, CLASSES + ALONE), (2, "\nassert features.shape == (69, 32)\n")],
    ids=["onnx", "torch", "safetensors"],
)
def test_snippets_run(project: Path, place: int, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SNIPPETS[place] + then], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(SNIPPETS) == 3
