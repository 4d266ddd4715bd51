"""Where the numbers and figures of a run go beside its folder: TensorBoard, Weights & Biases, MLflow, one interface.

A tracker is made when the run's first round is there, and called after every round. Nothing in a run depends on it.
"""

import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ratemesh.errors import InputError
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.storage import read_json, write_json
from ratemesh.specs import nearest

PROJECT = "ratemesh"
BATCH = 500
"""Numbers that MLflow is given at once."""


class Tracker(Protocol):
    """Takes in a run as it goes."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Write a round's numbers."""

    def figure(self, name: str, path: Path) -> None:
        """Write a figure, a PNG file, as it is after the last round that was written."""

    def finish(self, metrics: Mapping[str, Any] | None) -> None:
        """Write the final numbers and let the run go; None for one that did not come to its end."""


@dataclass(frozen=True)
class Tracked:
    """A run to be tracked.

    Attributes:
        folder: its folder, which is there.
        first: the round that comes first now; one that is resumed may play some again.
        project: what runs are filed under; empty for what the environment says.
    """

    folder: Path
    first: int
    project: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the run's settings by dotted names."""
        return _flat(tomllib.loads(RunFolder(self.folder).config.read_text(encoding="utf-8")))

    def known(self, tracker: str) -> str | None:
        """Return the name under which a tracker knows this run from before it was resumed."""
        file = self.folder / "trackers.json"
        return read_json(file).get(tracker) if file.exists() else None

    def remember(self, tracker: str, name: str) -> None:
        """Keep that name."""
        file = self.folder / "trackers.json"
        write_json(file, {"schema": SCHEMA, **(read_json(file) if file.exists() else {}), tracker: name})


class TensorBoard:
    """Event files in the run folder's `tensorboard`."""

    package: ClassVar[str] = "torch.utils.tensorboard"

    def __init__(self, run: Tracked) -> None:
        open_writer = import_module(self.package).SummaryWriter
        self._writer = open_writer(str(run.folder / "tensorboard"), purge_step=run.first)  # what is played again goes
        self._round = run.first

    def round(self, record: Mapping[str, Any]) -> None:
        """Write a round's numbers."""
        self._round = record["round"]
        for key, value in scalars(record).items():
            self._writer.add_scalar(key, value, self._round)
        self._writer.flush()

    def figure(self, name: str, path: Path) -> None:
        """Write a figure."""
        from matplotlib.image import imread

        self._writer.add_image(f"figures/{name}", imread(path)[..., :3], self._round, dataformats="HWC")

    def finish(self, metrics: Mapping[str, Any] | None) -> None:
        """Write the final numbers below `final/`."""
        for key, value in final(metrics).items():
            self._writer.add_scalar(key, value, self._round)
        self._writer.close()


class WandB:
    """Weights & Biases: below the run folder with WANDB_MODE=offline, `wandb sync` sends it later."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: Tracked) -> None:
        wandb = self._wandb = import_module(self.package)
        try:
            self._run = wandb.init(
                project=run.project or os.environ.get("WANDB_PROJECT", PROJECT),
                name=run.folder.name,
                dir=str(run.folder),
                id=run.known("wandb"),
                resume="allow",
                config=run.settings(),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise InputError(
                f"--track wandb must reach your account ({error}). Log in with `wandb login`, or set "
                "WANDB_MODE=offline and send it later with `wandb sync`; then go on: ratemesh resume "
                f"{run.folder}"
            ) from None
        run.remember("wandb", self._run.id)
        self._round = run.first

    def round(self, record: Mapping[str, Any]) -> None:
        """Write a round's numbers."""
        self._round = record["round"]
        self._run.log(scalars(record), step=self._round)

    def figure(self, name: str, path: Path) -> None:
        """Write a figure."""
        self._run.log({f"figures/{name}": self._wandb.Image(str(path))}, step=self._round)

    def finish(self, metrics: Mapping[str, Any] | None) -> None:
        """Write the final numbers into the summary."""
        self._run.summary.update(final(metrics))
        self._run.finish(exit_code=1 if metrics is None else 0)


class MLflow:
    """MLflow at MLFLOW_TRACKING_URI, or files in `mlruns` where the command was started."""

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: Tracked) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing of a run leaves unless somebody says where
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            uri = (Path.cwd() / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files need no server and no further package
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        self._id = run.known("mlflow") or self._create(run)
        self._round = run.first

    def _create(self, run: Tracked) -> str:
        """File a new run, with its settings, and remember its name."""
        project = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        made: str = self._client.create_run(experiment, run_name=run.folder.name).info.run_id
        for key, value in run.settings().items():
            self._client.log_param(made, key, value)
        run.remember("mlflow", made)
        return made

    def _log(self, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        entries = [self._entities.Metric(key, value, now, self._round) for key, value in numbers.items()]
        for start in range(0, len(entries), BATCH):
            self._client.log_batch(self._id, entries[start : start + BATCH])

    def round(self, record: Mapping[str, Any]) -> None:
        """Write a round's numbers."""
        self._round = record["round"]
        self._log(scalars(record))

    def figure(self, name: str, path: Path) -> None:  # noqa: ARG002 - the file has the name
        """Write a figure among the artifacts."""
        self._client.log_artifact(self._id, str(path), f"figures/round-{self._round:06d}")

    def finish(self, metrics: Mapping[str, Any] | None) -> None:
        """Write the final numbers below `final/`, and say whether the run came to its end."""
        self._log(final(metrics))
        self._client.set_terminated(self._id, "FINISHED" if metrics is not None else "KILLED")


TRACKERS: dict[str, type[TensorBoard | WandB | MLflow]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def check_tracker(name: str) -> None:
    """Refuse a tracker that nobody knows, or whose package is not there, before anything is trained."""
    if name not in TRACKERS:
        raise InputError(f"--track must be a known tracker; got '{name}'. {nearest(name, TRACKERS)}")
    try:
        import_module(TRACKERS[name].package)
    except ImportError:
        raise InputError(
            f"--track {name} must have the package {name}; it is not installed. pip install 'ratemesh[{name}]'"
        ) from None


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's numbers by name: means over nodes, `evaluation/` of held-out samples, `node-i/` of each."""
    tables = {"": record, "evaluation/": record.get("evaluation", {})}
    tables |= {f"node-{i}/": node for i, node in enumerate(record["nodes"])}
    return {prefix + key: value for prefix, table in tables.items() for key, value in _numbers(table).items()}


def final(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the final numbers by name."""
    return {f"final/{key}": value for key, value in _numbers(metrics or {}).items() if key != "schema"}


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a number, and a finite one: not all that take numbers take NaN."""
    known = {key: value for key, value in table.items() if isinstance(value, int | float) and key != "round"}
    return {key: float(value) for key, value in known.items() if abs(value) < float("inf")}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table's settings by dotted names."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out
