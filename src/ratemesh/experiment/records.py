"""The run folder: everything a run leaves, and all that figures and reports ever read.

config.toml            resolved configuration, every default written out
environment.json       versions, machine kind, time of start
rounds.jsonl           one record a round; the same bytes for the same configuration, resumed or not
timing.jsonl           seconds a round, and CPU seconds of all nodes: the part that never repeats
metrics.json           final numbers; there only when the run is complete
network.json           what nodes hold and train, classes and sample shape; edges, at the end with their disagreement
features*.safetensors  held-out features before and after training
mesh/                  what was trained, to be used: see `experiment.saved`
checkpoints/           states of the last good round, see `checkpoint.json`; and of the best, where [stopping] keeps it
"""

import fcntl
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import Config, load_config
from ratemesh.experiment.storage import make_new_folder, plain, read_json, refuse_occupied, write_json, write_text
from ratemesh.threads import cores

SCHEMA = 1


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.rounds = path / "rounds.jsonl"
        self.timing = path / "timing.jsonl"
        self.metrics = path / "metrics.json"
        self.network = path / "network.json"
        self.features = path / "features.safetensors"
        self.initial_features = path / "features-initial.safetensors"
        self.mesh = path / "mesh"
        self.checkpoints = path / "checkpoints"
        self.checkpoint = path / "checkpoint.json"

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunFolder":
        """Make a new folder; one that holds anything is left alone."""
        make_new_folder(path, "out", cls._instead(path))
        folder = cls(path)
        write_text(folder.config, config.to_toml())
        write_json(path / "environment.json", environment())
        return folder

    @staticmethod
    def refuse_occupied(path: Path) -> None:
        """Raise if something is there already."""
        refuse_occupied(path, "out", RunFolder._instead(path))

    @staticmethod
    def _instead(path: Path) -> str:
        return f"Choose another, delete it, or go on with it: ratemesh resume {path}"

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Open the folder of an earlier run."""
        folder = cls(path)
        if not folder.config.is_file():
            raise InputError(f"'{path}' must be a run folder; it has no config.toml. Give the --out of a run.")
        return folder

    def load_config(self) -> Config:
        """Read the resolved configuration."""
        return load_config(self.config)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; the lock goes with the process, however it ends."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"'{self.path}' is in use by another process. Wait for it, or end it.") from None
            yield

    def append(self, path: Path, record: Mapping[str, Any]) -> None:
        """Add one line."""
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(record), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RatemeshError(f"cannot write '{path}': {error}. Free some space; the run can be resumed.") from error

    def records(self) -> list[dict[str, Any]]:
        """Read the rounds; a last line that a crash cut short is passed over."""
        if not self.rounds.exists():
            return []
        out = []
        for line in self.rounds.read_text(encoding="utf-8").splitlines():
            try:
                out.append(json.loads(line))
            except ValueError:
                break
        return out

    def keep_rounds(self, last: int) -> None:
        """Drop what was recorded after round `last`: it will be played again. A site may have skipped rounds."""
        for path in (self.rounds, self.timing):
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            lines = text.splitlines(keepends=True)
            write_text(path, "".join(line for line in lines if _round_of(line) <= last))

    def commit(self, t: int, config: Config, data: str = "", *, best: int | None = None, stopped: str = "") -> None:
        """Make `checkpoints/round-t` the one to resume from, and drop older ones.

        Args:
            data: the data's fingerprint.
            best: the round whose states are kept beside it.
            stopped: why no round is to follow, if one asked for that.
        """
        last = {"stopped": stopped} if stopped else {}
        write_json(self.checkpoint, {"schema": SCHEMA, "round": t, "config": config.digest(), "data": data, **last})
        kept = {self.states(t), self.states(t if best is None else best)}
        for other in self.checkpoints.iterdir():
            if other not in kept:
                shutil.rmtree(other, ignore_errors=True)

    def stopped(self) -> str:
        """Return why no round is to follow the checkpoint; empty where the rounds go on."""
        return str(read_json(self.checkpoint).get("stopped", "")) if self.checkpoint.exists() else ""

    def judged_states(self) -> Path:
        """Return the folder of the states that a finished run was judged by; not there if they are not kept."""
        judged = read_json(self.metrics).get("judged_round")
        if judged is not None:
            return self.states(int(judged))
        return max(self.checkpoints.glob("round-*"), default=self.states(0))  # before rounds were chosen: the last

    def states(self, t: int) -> Path:
        """Return the folder of the node states after round t."""
        return self.checkpoints / f"round-{t:06d}"

    def last_good_round(self, config: Config, data: str = "") -> int:
        """Return the round to resume after, 0 to start anew; refuse another configuration or other data.

        Args:
            config: of the run.
            data: the data's fingerprint; empty for a site, whose data may grow while it is away.
        """
        if not self.checkpoint.exists():
            return 0
        saved = read_json(self.checkpoint)
        if saved.get("schema") != SCHEMA:
            raise InputError(f"'{self.checkpoint}' has schema {saved.get('schema')}; this version reads {SCHEMA}.")
        if saved.get("config") != config.digest():
            raise InputError(
                f"'{self.checkpoint}' belongs to another configuration than '{self.config}'. "
                "Restore the configuration, or start a new run with it."
            )
        if data and saved.get("data") != data:
            raise InputError(
                f"'{self.checkpoint}' was trained on other data than the configuration finds now: files of "
                f'[data] name = "{config.data.name}" have changed. Put them back, or start a new run.'
            )
        return int(saved["round"])


def _round_of(line: str) -> float:
    """Return the round of a record; infinity if the line is not whole."""
    try:
        return float(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def round_record(t: int, nodes: Sequence[Mapping[str, float | None]], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of round t: means over the nodes that have a number, what was sent, then every node's own."""
    means = {key: _mean([node[key] for node in nodes]) for key in nodes[0]}
    return {"round": t, **means, **sent, "nodes": [dict(node) for node in nodes]}


def _mean(values: Sequence[float | None]) -> float:
    """Return the mean of what is known: a node without neighbours, say, knows of no disagreement."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge the numbers, and nothing that names the machine."""
    packages = ("ratemesh", "torch", "numpy", "networkx", "scikit-learn", "safetensors")
    return {
        "schema": SCHEMA,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in packages},
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "torch_threads": torch.get_num_threads(),
    }
