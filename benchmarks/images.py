"""A data set plug-in for the benchmarks: grey 28×28 images, the size of MNIST, made up on the spot."""

import torch
from pydantic import Field

from ratemesh.data import Dataset, DatasetSpec
from ratemesh.data.dataset import split
from ratemesh.seeds import generator


class Images(DatasetSpec):
    """One blurred random pattern per class, plus noise; named "benchmarks.images:Images" in a configuration."""

    classes: int = Field(10, ge=1, description="number of classes K")
    train: int = Field(2400, ge=20, description="training images, all classes together")
    side: int = Field(28, ge=8, description="height and width")

    def load(self, seed: int) -> Dataset:
        """Draw patterns, then images; a tenth more are held out."""
        draw = generator(seed, "data", "images")
        coarse = torch.randn(self.classes, 1, 7, 7, generator=draw)
        patterns = torch.nn.functional.interpolate(coarse, size=(self.side, self.side), mode="bilinear")
        total = round(self.train / 0.9)
        y = torch.arange(total) % self.classes
        X = patterns[y] + 0.5 * torch.randn(total, 1, self.side, self.side, generator=draw)
        return split(X, y, 0.1, self.classes, seed)
