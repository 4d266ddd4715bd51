"""What the README tells people to type works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ratemesh
from toy_cli import call

ROOT = Path(ratemesh.__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
COMMANDS = [line.split("#")[0].strip() for line in SHELL if line.startswith("ratemesh")]


def test_there_is_something_to_check() -> None:
    assert PYTHON
    assert COMMANDS


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for expected in re.findall(r"# prints (\S+)", code):
        assert expected in done.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_their_options_exist(line: str) -> None:
    _, command, *words = shlex.split(line)
    help_ = call(command, "--help")
    assert help_.returncode == 0
    for word in words:
        if word.startswith("--"):
            assert word in help_.stdout
        elif word.startswith("experiments/"):
            assert (ROOT / word).exists()


@pytest.mark.parametrize("target", sorted({line.split()[1] for line in SHELL if line.startswith("make ")}))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
