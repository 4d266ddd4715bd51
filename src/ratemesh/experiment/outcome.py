"""What a run came to: features gathered from the nodes, judged, and written down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.engines.protocol import Engine, Site, Split
from ratemesh.experiment.health import Health
from ratemesh.experiment.plan import Plan, spaced
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.saved import save_run
from ratemesh.experiment.stopping import Course
from ratemesh.experiment.storage import write_json, write_tensors
from ratemesh.graph.clusters import critical_path
from ratemesh.metrics.evaluate import HeldOut, Learned, evaluate, glimpse
from ratemesh.metrics.geometry import relative_distance
from ratemesh.metrics.table import VALIDATION
from ratemesh.threads import pinned


@dataclass(frozen=True)
class Gathered:
    """Features of all nodes: of their own training samples (m_i, d), and of the test samples."""

    Z_train: Sequence[Tensor]
    y_train: Sequence[Tensor]
    test: HeldOut

    def keep(self, path: Path, most: int) -> None:
        """Write at most `most` samples of each kind, evenly spaced, for figures; nothing if `most` is 0.

        The file holds Z_test (N, n, d) with y_test (n,): every node's view of the same held-out samples; and Z_train
        (n, d) with y_train and node_train (n,): the paper's Z, every node's view of its own training samples. Where
        the data have finer labels, fine_test (n,) has those of the held-out samples.
        """
        if not most:
            return
        kept = spaced(len(self.test.y), most)
        rows = [spaced(len(y), -(-most // len(self.y_train))) for y in self.y_train]
        tensors = {
            "Z_test": self.test.Z[:, kept],
            "y_test": self.test.y[kept],
            "Z_train": torch.cat([Z[r] for Z, r in zip(self.Z_train, rows, strict=True)]),
            "y_train": torch.cat([y[r] for y, r in zip(self.y_train, rows, strict=True)]),
            "node_train": torch.cat([torch.full_like(r, node) for node, r in enumerate(rows)]),
        }
        fine = {} if self.test.fine is None else {"fine_test": self.test.fine[kept]}
        write_tensors(path, {**tensors, **fine})


def keep_initial(engine: Engine, plan: Plan, folder: RunFolder) -> None:
    """Keep features of untrained encoders for figures; only the samples that are kept are encoded."""
    most = plan.config.output.features
    if most:
        gather(engine, -(-most // plan.topology.nodes), most).keep(folder.initial_features, most)


def gather(engine: Engine, train: int | None = None, test: int | None = None) -> Gathered:
    """Return every node's features, of at most this many samples of either kind."""
    own = engine.ask(Site.features, "train", train)
    return Gathered([a["Z"] for a in own], [a["y"] for a in own], _held_out(engine, "test", test))


def _held_out(engine: Engine, split: Split, most: int | None = None, *, by_class: bool = False) -> HeldOut:
    """Return every node's features of the same held-out samples, at most so many, evenly spaced or class by class."""
    answers = engine.ask(Site.features, split, most, by_class=by_class)
    return HeldOut(torch.stack([answer["Z"] for answer in answers]), answers[0]["y"], answers[0].get("fine"))


def _validation(engine: Engine, plan: Plan) -> HeldOut | None:
    """Return every node's features of the validation part; None where nothing is held out."""
    return _held_out(engine, "validation") if len(plan.validation) else None


def glance(engine: Engine, plan: Plan) -> dict[str, float]:
    """Return accuracies by nearest subspace and the samples passed so far: a point of a learning curve.

    Of the validation samples, where there are some: what is looked at all the time is chosen by sooner or later, and
    the test samples are for the end.
    """
    stats, passes = _stats(engine)
    most, validated = plan.config.output.evaluate_samples, len(plan.validation) > 0
    opens_test = not validated or plan.config.output.evaluate == "both"
    parts = {
        "": _held_out(engine, "test", most, by_class=True) if opens_test else None,
        VALIDATION: _held_out(engine, "validation", most, by_class=True) if validated else None,
    }
    with pinned(1):  # this process's own number of threads depends on the workers
        found = glimpse(stats, parts, plan.rule)
    return {**found, "sample_passes": passes}


def finish(
    engine: Engine, plan: Plan, folder: RunFolder, course: Course | None = None, health: Health | None = None
) -> dict[str, Any]:
    """Judge what was learned, and write metrics, network and features.

    Args:
        course: how the rounds went; the nodes are given the states of the best one, if it says so. None reads it off
            the records.
        health: whether they collapsed; None reads that too.
    """
    config = plan.config
    course = course or Course(config.stopping, folder.records())
    collapse = [finding.words for finding in (health or Health(folder.records())).found]
    stats, passes = _stats(engine)
    if course.restored is not None:  # passes stay those of all rounds, as bytes do: they were spent
        engine.ask(Site.load, str(folder.states(course.restored)))
        stats, _ = _stats(engine)
    gathered = gather(engine)
    gathered.keep(folder.features, config.output.features)
    validation = _validation(engine, plan)
    learned = Learned(stats=stats, edges=plan.topology.edges, validation=validation, **vars(gathered))
    with pinned(1):
        numbers = evaluate(learned, eps2=config.method.eps2, rule=plan.rule)
    metrics = {
        "schema": SCHEMA,
        "method": config.method.label(plan.topology),
        **numbers,
        "bytes_total": sum(record["bytes"] for record in folder.records()),
        "sample_passes": passes,
        "rounds": config.rounds,
        **course.numbers(config.rounds),
        **({"collapse": collapse} if collapse else {}),
        "nodes": plan.topology.nodes,
        "test_samples": len(plan.data.y_test),
        "val_samples": len(plan.validation),
        **_turns(plan),
    }
    write_json(folder.network, network(plan, stats))
    save_run(folder.mesh, plan, stats, engine.ask(Site.weights), metrics)
    write_json(folder.metrics, metrics)
    return metrics


def _turns(plan: Plan) -> dict[str, int]:
    """Return how many clusters there are, if any, and the critical path of a round, in turns."""
    clusters = plan.clusters()
    if not clusters:
        return {}
    return {"clusters": len(clusters), "critical_path": critical_path(clusters)}


def _stats(engine: Engine) -> tuple[list[ClassStats], int]:
    """Return every node's statistics, and the samples that all of them passed."""
    answers = engine.ask(Site.stats)
    return [ClassStats.from_tensors(a) for a in answers], sum(int(a["sample_passes"]) for a in answers)


def network(plan: Plan, stats: Sequence[ClassStats] = ()) -> dict[str, Any]:
    """Return what figures and costs need to know of a run: network.json.

    A replicated node is in several clusters, and drawn in its first. Until there are statistics, what neighbours
    disagree by is not known.
    """
    config, data, counts = plan.config, plan.data, plan.counts()
    clusters, labels = plan.clusters(), plan.labels()
    partial = len(set(labels)) > 1
    nodes = []
    for i, part in enumerate(plan.parts):
        mine = [s for s, cluster in enumerate(clusters) if i in cluster]
        spec = config.encoder_of(i)
        node = {
            "index": i,
            **({"name": config.names[i]} if config.names else {}),
            "encoder": spec.title,
            "architecture": str(spec),
            "parameters": plan.parameters[i],
            "samples": len(part),
            "counts": counts[i].int().tolist(),
        }
        held = {"labels": list(labels[i])} if partial else {}
        nodes.append({**node, **held, "cluster": mine[0] if mine else None, "clusters": mine})
    edges = plan.topology.edges
    return {
        "schema": SCHEMA,
        "d": config.d,
        "num_classes": data.num_classes,
        "classes": list(data.classes),
        **({"fine_classes": list(data.fine_classes)} if data.fine_classes else {}),
        "shape": list(plan.shape),
        "nodes": nodes,
        "edges": edge_distances(stats, edges) if stats else [{"ends": e, "disagreement": None} for e in edges],
    }


def edge_distances(stats: Sequence[ClassStats], edges: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return every edge with the disagreement of its two ends, as seen from either on average."""
    return [
        {
            "ends": [i, j],
            "disagreement": (relative_distance(stats[i], stats[j]) + relative_distance(stats[j], stats[i])) / 2,
        }
        for i, j in edges
    ]
