"""Trained meshes as commands find them: a run on a CSV file with words as labels, own networks beside it."""

from pathlib import Path

import numpy as np

from toy_cli import call
from toy_nodes import WORDS, samples

NETWORK = '''
from torch import nn

from ratemesh.encoders import EncoderSpec


class Narrow(EncoderSpec):
    """A network of a user's own."""

    def network(self, shape, d):
        return nn.Sequential(nn.Linear(shape[0], 12), nn.ReLU(), nn.Linear(12, d))
'''
CONFIG = """
rounds = 3
d = 8
names = ["north", "south"]
data = {{ name = "csv", path = "trees.csv", label = "tree", validation = 0.1 }}
graph = {{ name = "ring", nodes = 2 }}
encoders = [{{ name = "mlp", hidden = [16] }}, {{ name = "{module}:Narrow" }}]
local = {{ epochs = 5, optimizer = "muon", batch_size = 50 }}
engine = {{ name = "inprocess", workers = 1 }}
method = {{ cross_entropy = 10 }}
"""
COLUMNS = ("a", "b", "c", "d", "e", "f")
MEANS, SCALES = np.array([0, 100, -5, 0, 3e4, 1]), np.array([1, 20, 0.1, 1, 1e3, 1])


def rows(seed: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw rows (m, 6), every column in units of its own, and their labels as words."""
    X, y = samples(seed, m)
    return X.astype(np.float64) * SCALES + MEANS, WORDS[y]


def write_csv(path: Path, X: np.ndarray, y: np.ndarray | None = None) -> Path:
    head = ",".join([*COLUMNS, *(["tree"] if y is not None else [])])
    lines = [",".join([*map(repr, map(float, row)), *([y[i]] if y is not None else [])]) for i, row in enumerate(X)]
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def trained(folder: Path, module: str) -> Path:
    """Train two nodes, one with a network of a module in this folder, and return the run's folder."""
    (folder / f"{module}.py").write_text(NETWORK)
    (folder / "mesh.toml").write_text(CONFIG.format(module=module))
    write_csv(folder / "trees.csv", *rows(0, 300))
    done = call("run", folder / "mesh.toml", "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"
