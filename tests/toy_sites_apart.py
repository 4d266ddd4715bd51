"""Sites with encoders of their own: features are known functions of common samples, turned, moved and stretched."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ratemesh.connection.site import SiteStatistics

CLASSES = np.array(["cat", "dog", "elk", "fox"])
PIXELS = 20


class Law:
    """Samples of four classes, and encoders of them that differ by a map only."""

    def __init__(self, seed: int = 0, d: int = 12) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.d = d
        self.centres = 3 * torch.randn(len(CLASSES), PIXELS, generator=self.draw)
        self.common = torch.randn(PIXELS, d, generator=self.draw)

    def samples(self, m: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Tensor, np.ndarray]:
        """Return vectors (m, 20) and the names of their classes."""
        y = torch.tensor(classes)[torch.arange(m) % len(classes)]
        return self.centres[y] + torch.randn(m, PIXELS, generator=self.draw), CLASSES[y.numpy()]

    def encoder(self, number: int, d: int | None = None) -> "Encoder":
        """Return an encoder with a turn, an offset and a scale of its own."""
        draw = torch.Generator().manual_seed(1000 + number)
        wide = d or self.d
        turn = torch.linalg.qr(torch.randn(wide, wide, generator=draw))[0]
        return Encoder(pad(self.common, (0, wide - self.d)) @ turn, 5 * torch.randn(wide, generator=draw), 1.0 + number)


class Encoder:
    """z = s·(xA + b)."""

    def __init__(self, A: Tensor, b: Tensor, s: float) -> None:
        self.A, self.b, self.s = A, b, s

    def __call__(self, X: Tensor) -> Tensor:
        return self.s * (X @ self.A + self.b)


def site(law: Law, number: int, *, d: int | None = None, m: int = 400, classes=(0, 1, 2, 3), **how) -> SiteStatistics:
    """Return what a site with samples of its own says of its encoder."""
    X, y = law.samples(m, classes)
    return SiteStatistics.of(law.encoder(number, d)(X), y, X=X, name=f"site-{number}", **how)


def archive(
    path: Path, law: Law, number: int, *, d: int | None = None, m: int = 400, classes=(0, 1, 2, 3), **more
) -> Path:
    """Write a file of features as the command reads it; `more` replaces arrays, None leaves one out."""
    X, y = law.samples(m, classes)
    X_test, y_test = law.samples(80, classes)
    f = law.encoder(number, d)
    arrays = {"z_train": f(X), "y_train": y, "x_train": X, "z_test": f(X_test), "y_test": y_test, **more}
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items() if value is not None})
    return path
