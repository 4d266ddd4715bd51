"""A run as it goes: TensorBoard scalars and figures, for who has it installed."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ratemesh.errors import InputError
from ratemesh.experiment.experiment import Progress


def tensorboard(folder: Path, also: Progress) -> Progress:
    """Return a round callback that writes every number of a record to folder/tensorboard, then calls `also`.

    Means over nodes are scalars named after the record's keys; every node's own are below "node-i/".
    """
    try:
        from torch.utils.tensorboard import SummaryWriter  # an optional extra, and slow to import
    except ImportError:
        raise InputError(
            "--tensorboard must have the package tensorboard; it is not installed. pip install 'ratemesh[tensorboard]'"
        ) from None
    open_writer = cache(lambda: SummaryWriter(str(folder / "tensorboard")))  # not before the run has made the folder

    def on_round(record: Mapping[str, Any]) -> None:
        t, writer = record["round"], open_writer()
        _scalars(writer, "", record, t)
        _scalars(writer, "evaluation/", record.get("evaluation", {}), t)
        for i, node in enumerate(record["nodes"]):
            _scalars(writer, f"node-{i}/", node, t)
        writer.flush()
        also(record)

    return on_round


def _scalars(writer: Any, prefix: str, numbers: Mapping[str, Any], t: int) -> None:
    for key, value in numbers.items():
        if isinstance(value, int | float) and key != "round":
            writer.add_scalar(prefix + key, value, t)
