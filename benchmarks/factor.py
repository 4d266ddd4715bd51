"""Log-determinant and inverse together: Cholesky against LU and plain inversion."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.tables import Table
from benchmarks.timing import Timing, interleave, milliseconds, ratio
from ratemesh.threads import pinned

SHAPES = ((11, 128), (100, 16))
Route = Callable[[Tensor], tuple[Tensor, Tensor]]


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    with pinned(1):
        return [_table(batch, size, 10 if quick else 150) for batch, size in SHAPES]


def cholesky(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return logdet and inverse from one lower Cholesky factor."""
    L, _ = torch.linalg.cholesky_ex(A)
    return 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1), torch.cholesky_inverse(L)


def cholesky_upper(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return logdet and inverse from one upper Cholesky factor."""
    U, _ = torch.linalg.cholesky_ex(A, upper=True)
    return 2 * U.diagonal(dim1=-2, dim2=-1).log().sum(-1), torch.cholesky_inverse(U, upper=True)


def lu(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return logdet and inverse from one LU factorisation."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    eye = torch.eye(A.shape[-1], dtype=A.dtype).expand_as(A)
    return factors.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1), torch.linalg.lu_solve(factors, pivots, eye)


def slogdet_and_inv(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return logdet and inverse from the two library calls; each factorises."""
    return torch.linalg.slogdet(A).logabsdet, torch.linalg.inv(A)


def logdet_of_inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse, and minus the logdet of the inverse; each factorises."""
    inverse = torch.linalg.inv(A)
    return -torch.logdet(inverse), inverse


ROUTES: dict[str, Route] = {
    "Cholesky, lower": cholesky,
    "Cholesky, upper": cholesky_upper,
    "LU, one factorisation": lu,
    "slogdet + inv": slogdet_and_inv,
    "inv + logdet of the inverse": logdet_of_inverse,
}


def _matrices(batch: int, size: int) -> Tensor:
    """Return I + (d/ε²) V of random unit rows: what the loss factorises."""
    draw = torch.Generator().manual_seed(size)
    Z = torch.nn.functional.normalize(torch.randn(batch, 2 * size, size, generator=draw), dim=-1)
    return torch.eye(size) + 2 * size * (Z.mT @ Z) / (2 * size)


def _table(batch: int, size: int, repeats: int) -> Table:
    A = _matrices(batch, size)
    expected = cholesky(A.double())
    timings = interleave({name: lambda route=route: route(A) for name, route in ROUTES.items()}, repeats)  # type: ignore[misc]
    rows = [_row(name, timings, expected, A) for name in ROUTES]
    return Table(
        f"Log-determinant and inverse of ({batch}, {size}, {size})",
        "What the other routes to the same two results cost, relative to the lower Cholesky factor.",
        ("", "relative to Cholesky, lower", "lower quartile, ms", "median, ms", "error of the inverse"),
        rows,
        "float32, one thread; the error is the largest entry's, relative, against float64.",
    )


def _row(name: str, timings: dict[str, Timing], expected: tuple[Tensor, Tensor], A: Tensor) -> list[str]:
    _, inverse = ROUTES[name](A)
    error = float((inverse - expected[1]).abs().max() / expected[1].abs().max())
    relative = ratio(timings[name], timings["Cholesky, lower"])
    return [name, f"{relative:.2f}×", *milliseconds(timings[name]), f"{error:.1e}"]
