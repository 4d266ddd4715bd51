"""Python examples of the documents run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ratemesh

DOCS = Path(ratemesh.__file__).parents[2] / "docs"
EXAMPLES = {
    f"{page.stem}-{i}": code
    for page in (DOCS / "mesh.md",)
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[name]], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
