"""The architecture that can be seen: who imports whom, and how long files may get."""

import ast
from pathlib import Path

import pytest
from benchmarks.house import House

import ratemesh

SRC = Path(ratemesh.__file__).parent
LAYERS = [
    {"devices", "errors", "seeds", "specs", "threads", "_version"},
    {"core"},
    {"graph", "data", "encoders", "metrics"},
    {"messages"},
    {"training"},
    {"methods"},
    {"engines"},
    {"experiment"},
    {"connection"},
    {"report"},
    {"mesh"},
    {"estimators"},
    {"studies"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
CORE_MAY_IMPORT = {"torch", "ratemesh", "collections", "dataclasses", "functools", "operator", "typing"}
FILES = sorted(SRC.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Every module a file imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own(modules: set[str]) -> set[str]:
    parts = {module.split(".")[1] for module in modules if module.startswith("ratemesh.")}
    return parts & set(LEVEL)


def test_every_package_has_a_layer() -> None:
    assert {package_of(path) for path in FILES} - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_downwards_only(path: Path) -> None:
    package = package_of(path)
    if package == "__init__":
        return
    for other in own(imports(path)) - {package}:
        assert LEVEL[other] < LEVEL[package] or LEVEL[package] == 0, f"{package} must not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_no_text_names_a_higher_layer(path: Path) -> None:
    """An import string is an import that no tool sees: a layer above must not be named in one."""
    level = LEVEL.get(package_of(path), len(LAYERS))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.count(" "):
            for other in own({node.value.split(":")[0]}):
                assert LEVEL[other] <= level, f"'{node.value}' in {path} names a higher layer"


def test_there_are_no_import_cycles() -> None:
    assert House(SRC.parents[1]).cycles() == 0


def test_core_is_pure() -> None:
    """The mathematics sees tensors only: no numpy, files, modules, settings or randomness."""
    for path in (SRC / "core").glob("*.py"):
        modules = imports(path)
        assert {module.split(".")[0] for module in modules} <= CORE_MAY_IMPORT, path
        assert not {"torch.nn", "torch.random"} & modules, path
        assert own(modules) <= {"core", "errors"}, path


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_files_stay_short(folder: str) -> None:
    root = SRC.parents[1] / folder
    long = {str(p): n for p in root.rglob("*.py") if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_only_one_training_loop_and_one_logdet() -> None:
    text = {path: path.read_text() for path in FILES}
    assert [p.name for p, t in text.items() if ".backward()" in t] == ["local.py"]
    assert [p.name for p, t in text.items() if "cholesky_ex(" in t or "slogdet(" in t or "logdet(S" in t] == [
        "rates.py"
    ]
