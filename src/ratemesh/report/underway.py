"""A run that still goes on: its folder, and what only its last checkpoint tells before the final files are there."""

from collections.abc import Sequence
from pathlib import Path

from ratemesh.core.stats import ClassStats
from ratemesh.errors import RatemeshError
from ratemesh.experiment.outcome import edge_distances
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.storage import read_tensors
from ratemesh.report.runs import Run, open_run


def open_underway(path: Path) -> Run:
    """Open a run folder; the network and the statistics are those of the last checkpoint, if the run has not ended."""
    run = open_run(path)
    if run.ended:
        return run
    parts = _states(RunFolder(path))
    if parts:
        run.stats = ClassStats.sum(parts)
        run.network = _network(path, parts)
    return run


def _states(folder: RunFolder) -> list[ClassStats]:
    """Return every node's statistics; none if the method keeps none."""
    last = sorted(folder.checkpoints.glob("round-*"))[-1:]
    tensors = [read_tensors(file) for states in last for file in sorted(states.glob("node-*.safetensors"))]
    if not all({"V", "mu", "m"} <= state.keys() for state in tensors):
        return []
    return [ClassStats(state["V"], state["mu"], state["m"]) for state in tensors]


def _network(path: Path, parts: Sequence[ClassStats]) -> dict[str, object]:
    """Return what network.json will hold, as far as it is known now."""
    config = RunFolder(path).load_config()
    try:
        topology = config.graph.build(config.seed)
    except RatemeshError:  # the file of edges may be gone
        return {}
    labels = [tuple(part.held.nonzero().flatten().tolist()) for part in parts]
    clusters = config.method.clusters(labels, topology, parts[0].num_classes)
    names = [config.encoders[i % len(config.encoders)].name for i in range(len(parts))]
    first = {i: s for s, cluster in reversed(list(enumerate(clusters))) for i in cluster}
    nodes = [{"index": i, "encoder": name, "cluster": first.get(i)} for i, name in enumerate(names)]
    return {"nodes": nodes, "edges": edge_distances(parts, topology.edges)}
