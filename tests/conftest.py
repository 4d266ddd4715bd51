"""What all tests share: hypothesis profiles, the slow marker, one thread, and seeded draws."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from ratemesh.core.stats import ClassStats

settings.register_profile("local", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

torch.set_num_threads(1)

UnitRows = Callable[..., Tensor]
Orthogonal = Callable[[int, int], Tensor]
LabelsOf = Callable[..., Tensor]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", default=False, help="also run tests that take minutes")
    parser.addoption("--runpackage", action="store_true", default=False, help="also build and install the package")
    parser.addoption("--runfaults", action="store_true", default=False, help="also break real processes and networks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in ("slow", "faults", "package"):
        if config.getoption(f"--run{marker}"):
            continue
        skip = pytest.mark.skip(reason=f"run with --run{marker}")
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(skip)


# Session scope, because hypothesis refuses fixtures that are made anew for every test function.


@pytest.fixture(scope="session")
def unit_rows() -> UnitRows:
    """Return a function that draws m unit vectors of length d, float64, from a seed."""

    def draw(m: int, d: int, seed: int = 0) -> Tensor:
        Z = torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return Z / Z.norm(dim=1, keepdim=True)

    return draw


@pytest.fixture(scope="session")
def orthogonal() -> Orthogonal:
    """Return a function that draws an orthogonal d×d matrix, float64, from a seed."""

    def draw(d: int, seed: int = 0) -> Tensor:
        A = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return torch.linalg.qr(A)[0]

    return draw


@pytest.fixture(scope="session")
def labels_of() -> LabelsOf:
    """Return a function that gives shuffled labels with the wanted number of rows per class."""

    def draw(counts: Sequence[int], seed: int = 0) -> Tensor:
        y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]

    return draw


@pytest.fixture(scope="session")
def stats_of(unit_rows: UnitRows, labels_of: LabelsOf) -> Callable[..., ClassStats]:
    """Return a function that draws statistics of unit vectors, by default of classes 0 and 2 of three."""

    def draw(
        counts: Sequence[int] = (5, 0, 8), d: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> ClassStats:
        return ClassStats.of(unit_rows(sum(counts), d, seed).to(dtype), labels_of(counts, seed), len(counts))

    return draw


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real run, seconds long; tests that change it take a `copy`."""
    from toy_runs import smoke_run  # figures are slow to import, and most tests need none

    return smoke_run(tmp_path_factory.mktemp("smoke"))


@pytest.fixture
def copy(smoke: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the smoke run and damages the copy, see `toy_runs.copier`."""
    from toy_runs import copier

    return copier(smoke, tmp_path)
