"""A node as an engine hosts it: made from the configuration alone, in whatever process."""

import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratemesh.core.checks import check_resolution
from ratemesh.core.stats import ClassStats, balanced_counts
from ratemesh.core.theory import theorem1_gaps
from ratemesh.data import Dataset, class_counts
from ratemesh.engines.protocol import SiteFactory
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.storage import read_tensors, write_tensors
from ratemesh.graph import Topology
from ratemesh.graph.clusters import memberships
from ratemesh.messages.formats import Payload
from ratemesh.seeds import generator
from ratemesh.training.local import encode
from ratemesh.training.protocol import Node, Round, RoundLog, start_program

BYTES_A_PARAMETER = 16
"""Weight, gradient and Adam's two moments, four bytes each."""


@dataclass(frozen=True)
class Memory:
    """Bytes that networks take with gradients and optimisers, and bytes that are free."""

    networks: int
    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needed <= self.free

    def in_words(self, nodes: int) -> str:
        """Say what is needed and what there is; what to do if it is too little."""
        remedy = "" if self.fits else ". Take narrower encoders, or a partition with fewer replicas"
        need = f"{nodes} nodes with {self.networks} networks need {self.needed / 1e9:.3g} GB"
        return f"{need}, {self.free / 1e9:.1f} GB are free{remedy}"


class Plan:
    """What all nodes of an experiment agree on: data, graph and who holds what."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.data: Dataset = config.data.load(config.seed)
        self.topology: Topology = config.graph.build(config.seed)
        draw = generator(config.seed, "partition")
        self.parts = config.partition.split(self.data.y_train, self.topology.nodes, self.data.num_classes, draw)

    def counts(self) -> Tensor:
        """Return samples per node and class, (N, K)."""
        return class_counts(self.data.y_train, self.parts, self.data.num_classes)

    def labels(self) -> list[tuple[int, ...]]:
        """Return K_i, the labels that node i has samples of."""
        return [tuple(row.nonzero().flatten().tolist()) for row in self.counts()]

    def check(self) -> None:
        """Refuse what cannot work; warn of what the theory does not cover."""
        counts = self.counts()
        total = counts.sum(0)
        if bool((total == 0).any()):
            raise InputError(f"data must have samples of every class; class {int(total.argmin())} has none.")
        if self.data.num_classes < 2:
            raise InputError("data must have at least two classes to tell apart; got 1. Check the labels.")
        check_resolution(torch.float32, self.config.d, self.config.method.eps2)
        if self.config.graph.varies and self.config.method.messages.fixed_graph:
            raise InputError(
                f"graph must stay the same for these settings of method '{self.config.method.name}'; "
                f"'{self.config.graph.name}' changes between rounds. Use method 'alg1' without codec delta, or 'dsgd'."
            )
        local = self.config.local
        local.check_balance(counts)
        for gap_in_words in self.config.method.check(self.topology, counts, local):
            _warn(gap_in_words)
        K, d = self.data.num_classes, self.config.d
        ranks = torch.full((K,), max(1, d // K)) if self.data.ranks is None else self.data.ranks
        weights = balanced_counts(total) if local.balance else total
        for gap_in_words in theorem1_gaps(d, ranks, weights / weights.sum(), self.config.method.eps2):
            _warn(gap_in_words)
        shape = tuple(self.data.X_train.shape[1:])
        local.check(shape)
        self._check_one_model()
        memory = self.memory(self.clusters())  # builds every architecture: one that does not fit is found out now
        if not memory.fits:
            raise InputError(f"encoders must fit into memory: {memory.in_words(self.topology.nodes)}.")

    def _check_one_model(self) -> None:
        """Refuse architectures that one model cannot have."""
        config = self.config
        if config.method.messages.one_model and any(spec != config.encoders[0] for spec in config.encoders):
            raise InputError(
                f"encoders must be one architecture for method '{config.method.name}', whose nodes train one model; "
                f"got {len(config.encoders)}. Keep one, or use method 'alg1' or 'dsgd'."
            )

    def clusters(self) -> list[tuple[int, ...]]:
        """Return the clusters that the method forms of these nodes; empty for methods that know none."""
        return self.config.method.clusters(self.labels(), self.topology, self.data.num_classes)

    def memory(self, clusters: Sequence[Sequence[int]]) -> "Memory":
        """Estimate what the nodes' networks take, a replica for every cluster that a node is in."""
        shape = tuple(self.data.X_train.shape[1:])
        networks = [spec.network(shape, self.config.d) for spec in self.config.encoders]
        parameters = [sum(p.numel() for p in network.parameters()) for network in networks]
        nodes = self.topology.nodes
        S = memberships(clusters, nodes) if clusters else [1] * nodes
        needed = BYTES_A_PARAMETER * sum(count * parameters[i % len(parameters)] for i, count in enumerate(S))
        return Memory(sum(S), needed, available_memory())

    def node(self, index: int) -> Node:
        """Return what node `index` is given."""
        config, data, part = self.config, self.data, self.parts[index]
        which = index % len(config.encoders)
        alike = config.same_init or config.method.messages.one_model
        names = ("architecture", which) if alike else ("node", index)
        shape = tuple(data.X_train.shape[1:])
        return Node(
            index=index,
            neighbours=self.topology.neighbours(index),
            X=data.X_train[part],
            y=data.y_train[part],
            num_classes=data.num_classes,
            share=len(part) / len(data.y_train),
            encoder=config.encoders[which].build(shape, config.d, config.seed, *names),
            local=config.local.over(config.rounds),
            seed=config.seed,
            labels=tuple(self.labels()),
            clusters=tuple(self.clusters()),
            kinds=tuple(f"{config.encoders[i % len(config.encoders)]}" for i in range(self.topology.nodes)),
        )


class ExperimentSite:
    """A node's program, and the errands between rounds."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.program = start_program(plan.config.method, plan.node(index))
        self.cpu_seconds = 0.0

    def round(self, t: int) -> Round:
        """Play round t with the neighbours of that round, and count the processor's time that it takes in here."""
        changes = self.plan.config.graph.varies
        program, inbox = self._on_changing_graph(t) if changes else self.program.round(t), None
        while True:
            began = time.process_time()
            try:
                event = next(program) if inbox is None else program.send(inbox)
            except StopIteration as end:
                log: RoundLog = end.value
                return log
            finally:
                self.cpu_seconds += time.process_time() - began
            inbox = yield event

    def _on_changing_graph(self, t: int) -> Round:
        """Play round t among the neighbours of that round; the theorem has one graph for all rounds."""
        graph, program = self.plan.config.graph, self.program
        neighbours = graph.at(t, self.plan.config.seed).neighbours(self.index)
        program.node = replace(program.node, neighbours=neighbours)
        log = yield from program.round(t)
        return {**log, "neighbours": float(len(neighbours)), "outside_theorem": 1.0}

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a message as the program reads it; raise RatemeshError if it cannot be used."""
        began = time.process_time()
        try:
            return self.program.read(tag, sender, payload)
        finally:
            self.cpu_seconds += time.process_time() - began

    def do(self, what: str, argument: str) -> Payload:
        """Carry out an errand: save to or load from a folder, or answer with features, statistics or CPU time."""
        if what == "save":
            write_tensors(self._file(argument), self.program.state())
        elif what == "load":
            self.program.load_state(read_tensors(self._file(argument)))
        elif what == "cpu":
            return {"seconds": torch.tensor(self.cpu_seconds, dtype=torch.float64)}
        elif what == "features":
            return self._features(argument)
        elif what == "stats":
            stats: ClassStats = self.program.stats
            passes = torch.tensor(self.program.sample_passes)
            return {"V": stats.V, "mu": stats.mu, "m": stats.m, "sample_passes": passes}
        else:
            raise ValueError(f"no errand '{what}'")
        return {}

    def _features(self, wanted: str) -> Payload:
        """Return this node's features of its own training samples, or of the held-out ones, with labels.

        Args:
            wanted: "train" or "test", and perhaps how many samples at most, evenly spaced: "test 2000".
        """
        split, _, most = wanted.partition(" ")
        data = self.plan.data
        X, y, rows = data.X_test, data.y_test, torch.arange(len(data.y_test))
        if split == "train":
            X, y, rows = data.X_train, data.y_train, self.plan.parts[self.index]
        if most:
            rows = rows[spaced(len(rows), int(most))]
        return {"Z": encode(self.program.encoder, X[rows]), "y": y[rows]}

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"node-{self.index:04d}.safetensors"


def spaced(total: int, most: int) -> Tensor:
    """Return at most `most` positions in 0..total-1, evenly spaced."""
    return torch.linspace(0, total - 1, min(total, most)).round().long()


@lru_cache(maxsize=1)
def _plan(config_json: str) -> Plan:
    """Load data and graph once a process, however many nodes it hosts."""
    return Plan(make_config(json.loads(config_json)))


def make_site(config_json: str, index: int) -> ExperimentSite:
    """Make the site of node `index`: the function that engines import by name."""
    return ExperimentSite(_plan(config_json), index)


def factory(config: Config) -> SiteFactory:
    """Return the recipe of this experiment's sites."""
    return SiteFactory("ratemesh.experiment.plan:make_site", config.model_dump_json(exclude_none=True))


def available_memory() -> int:
    """Return the bytes that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _warn(message: str) -> None:
    warnings.warn(message, RatemeshWarning, stacklevel=3)
