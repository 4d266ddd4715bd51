"""What all nodes of an experiment agree on, and a node as an engine hosts it, in whatever process."""

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratemesh.core.checks import check_resolution
from ratemesh.core.stats import balanced_counts
from ratemesh.core.subspace import SubspaceRule
from ratemesh.core.theory import theorem1_gaps
from ratemesh.data import Dataset, class_counts, hold_out
from ratemesh.devices import CPU, all_moved, resolve_device
from ratemesh.encoders import check_width, width_of
from ratemesh.engines.protocol import SiteFactory, Split
from ratemesh.engines.rounds import advance
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.memory import BYTES_A_NUMBER, BYTES_A_PARAMETER, COPIES, Memory, available_memory, make_network
from ratemesh.experiment.storage import read_tensors, write_tensors
from ratemesh.graph import Topology
from ratemesh.graph.clusters import memberships
from ratemesh.messages.formats import Payload
from ratemesh.metrics.geometry import occupied
from ratemesh.metrics.language import thinned
from ratemesh.seeds import generator
from ratemesh.threads import pinned
from ratemesh.training.coupled import CoupledSpec
from ratemesh.training.local import encode
from ratemesh.training.protocol import Exchange, Node, Round, start_program


class Plan(SiteFactory):
    """What all nodes of an experiment agree on: data, graph and who holds what; makes their sites."""

    def __init__(self, config: Config) -> None:
        self.config = config
        with pinned(1):  # data that are computed must not depend on how many threads a process has
            self.data: Dataset = config.data.load(config.seed)
            self.topology: Topology = config.graph.build(config.seed)
            self.parts, self.validation = self.deal()

    def deal(self) -> tuple[list[Tensor], Tensor]:
        """Return the training rows of every node, and the rows that are held out of them all to choose settings by."""
        draw = generator(self.config.seed, "partition")
        y, K = self.data.y_train, self.data.num_classes
        return self.hold_out(self.config.partition.split(y, self.topology.nodes, K, draw, self.data.classes))

    def hold_out(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Take the validation part out of what nodes hold."""
        draw = generator(self.config.seed, "partition", "validation")
        return hold_out(self.data.y_train, parts, self.data.num_classes, self.config.data.validation, draw)

    def site(self, index: int) -> "ExperimentSite":
        """Make the site of node `index`."""
        return ExperimentSite(self, index)

    def to_json(self) -> str:
        """Return the configuration: all else follows from it."""
        return self.config.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Load data and graph again, in another process."""
        return cls(make_config(json.loads(text)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return tuple(self.data.X_train.shape[1:])

    @property
    def rule(self) -> SubspaceRule:
        """How many directions a class's subspace has when features are judged."""
        return self.config.evaluation.rule(self.config.d, self.data.num_classes)

    def counts(self) -> Tensor:
        """Return training samples per node and class, (N, K)."""
        return class_counts(self.data.y_train, self.parts, self.data.num_classes)

    def labels(self) -> list[tuple[int, ...]]:
        """Return K_i, the labels that node i has samples of."""
        return [tuple(row.nonzero().flatten().tolist()) for row in self.counts()]

    def check(self) -> None:
        """Refuse what cannot work; warn of what the theory does not cover."""
        counts = self.counts()
        total = counts.sum(0)
        if bool((total == 0).any()):
            name = self.data.classes[int(total.argmin())]
            raise InputError(f"data must have samples of every class; class {name} has none. Take it out, or add some.")
        if self.data.num_classes < 2:
            raise InputError("data must have at least two classes to tell apart; got 1. Check the labels.")
        output, rounds = self.config.output, self.config.rounds
        self.config.stopping.check(validation=len(self.validation), evaluates=output.evaluates_any(rounds))
        self.check_room(self.topology.nodes)
        check_resolution(torch.float32, self.config.d, self.config.method.eps2)
        if self.config.graph.varies and self.config.method.messages.fixed_graph:
            raise InputError(
                f"graph must stay the same for these settings of method '{self.config.method.name}'; "
                f"'{self.config.graph.name}' changes between rounds. Use method 'alg1' without codec delta, or 'dsgd'."
            )
        self._check_devices()
        local = self.config.local
        local.check_balance(counts)
        gaps_in_words = list(self.config.method.check(self.topology, counts, local))
        K, d = self.data.num_classes, self.config.d
        ranks = torch.full((K,), max(1, d // K)) if self.data.ranks is None else self.data.ranks
        weights = balanced_counts(total) if local.balance else total
        gaps_in_words += theorem1_gaps(d, ranks, weights / weights.sum(), self.config.method.eps2)
        for gap_in_words in gaps_in_words:
            warnings.warn(gap_in_words, RatemeshWarning, stacklevel=2)
        local.check(self.shape)
        self._check_one_model()
        memory = self.memory(self.clusters())  # builds every architecture: one that does not fit is found out now
        if not memory.fits:
            raise InputError(f"encoders must fit into memory: {memory.in_words(self.topology.nodes)}.")

    def check_room(self, nodes: int) -> None:
        """Refuse a d whose statistics, K matrices d × d for every node that is here, no memory can hold."""
        K, d = self.data.num_classes, self.config.d
        copies = COPIES if isinstance(self.config.method, CoupledSpec) else 1
        needed, free = BYTES_A_NUMBER * copies * nodes * K * d**2, available_memory()
        if needed > free:
            raise InputError(
                f"d must leave room for the class statistics of all nodes here; got {d}: {nodes} nodes with {K} "
                f"matrices {d} × {d} need {needed / 1e9:.3g} GB or more, {free / 1e9:.1f} GB are free. Lower d."
            )

    def _check_devices(self) -> None:
        """Refuse devices that are not there; those of other machines are seen when a node is made there."""
        for node in range(0 if self.config.engine.elsewhere else self.topology.nodes):
            self.device(node)

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

    def memory(self, clusters: Sequence[Sequence[int]]) -> Memory:
        """Estimate what the nodes' networks take, a replica for every cluster that a node is in."""
        nodes = self.topology.nodes
        S = memberships(clusters, nodes) if clusters else [1] * nodes
        needed = sum(count * own for count, own in zip(S, self.parameters, strict=True))
        return Memory(sum(S), BYTES_A_PARAMETER * needed, available_memory())

    @cached_property
    def parameters(self) -> list[int]:
        """Numbers of every node's encoder that training changes."""
        counts = []
        for i, spec in enumerate(self.config.encoders[: self.topology.nodes]):
            what = f"encoders[{i}] ({spec.title})"
            network = make_network(spec, self.shape, self.config.d, available_memory(), what)
            check_width(width_of(network, self.data.X_train[:2], what), self.config.d, what)
            counts.append(sum(p.numel() for p in network.parameters()))
        return [counts[i % len(counts)] for i in range(self.topology.nodes)]

    def device(self, index: int) -> torch.device:
        """Return where node `index` computes, if it runs on this machine; refuse a device that is not there."""
        return resolve_device(self.config.device_of(index), index)

    def node(self, index: int) -> Node:
        """Return what node `index` is given."""
        config, data, part = self.config, self.data, self.parts[index]
        alike = config.same_init or config.method.messages.one_model
        names = ("architecture", index % len(config.encoders)) if alike else ("node", index)
        encoder = config.encoder_of(index).build(self.shape, config.d, config.seed, *names)
        return Node(
            index=index,
            neighbours=self.topology.neighbours(index),
            X=data.X_train[part],
            y=data.y_train[part],
            num_classes=data.num_classes,
            share=len(part) / sum(map(len, self.parts)),
            encoder=encoder.placed(self.device(index), config.precision, compiles=config.compile),
            local=config.local.over(config.rounds),
            seed=config.seed,
            **self._known_to_all,
        )

    @cached_property
    def _known_to_all(self) -> dict[str, Any]:
        """What every node knows of all nodes; clusters may take long to find."""
        kinds = tuple(str(self.config.encoder_of(i)) for i in range(self.topology.nodes))
        return {"labels": tuple(self.labels()), "clusters": tuple(self.clusters()), "kinds": kinds}


class ExperimentSite:
    """A node's program, and what a run calls between rounds.

    The program computes on the node's device. All that leaves the site, messages, states and answers, is on the CPU.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.program = start_program(plan.config.method, plan.node(index))
        self.device = self.program.node.device
        self._cpu = 0.0

    def round(self, t: int) -> Round:
        """Play round t with the neighbours of that round, and count the processor's time that it takes in here."""
        program = self._on_changing_graph(t) if self.plan.config.graph.varies else self.program.round(t)
        inbox = None
        while True:
            with self._clock():
                event = advance(program, inbox)
            if not isinstance(event, Exchange):
                return {**event, **occupied(self.program.stats)}
            inbox = yield _outward(event)

    def _on_changing_graph(self, t: int) -> Round:
        """Play round t among the neighbours of that round; the theorem has one graph for all rounds."""
        graph, program = self.plan.config.graph, self.program
        neighbours = graph.at(t, self.plan.config.seed).neighbours(self.index)
        program.node = replace(program.node, neighbours=neighbours)
        log = yield from program.round(t)
        return {**log, "neighbours": float(len(neighbours)), "outside_theorem": 1.0}

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a message as the program reads it; raise RatemeshError if it cannot be used."""
        with self._clock():
            return self.program.read(tag, sender, all_moved(payload, self.device))

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Count the processor's time that passes inside."""
        began = time.process_time()
        try:
            yield
        finally:
            self._cpu += time.process_time() - began

    def save(self, folder: str) -> Payload:
        """Write the program's state into a folder."""
        write_tensors(self._file(folder), self.program.state())
        return {}

    def load(self, folder: str) -> Payload:
        """Go on from the state that `save` wrote into a folder."""
        self.program.load_state(all_moved(read_tensors(self._file(folder)), self.device))
        return {}

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"node-{self.index:04d}.safetensors"

    def features(self, split: Split, most: int | None = None, *, by_class: bool = False) -> Payload:
        """Return `Z` (m, d), `y` (m,) and maybe `fine` (m,) of the node's own training samples, or of held-out ones."""
        data = self.plan.data
        X, y, fine, rows = data.X_test, data.y_test, data.fine_test, torch.arange(len(data.y_test))
        if split != "test":
            X, y, fine = data.X_train, data.y_train, data.fine_train
            rows = self.plan.parts[self.index] if split == "train" else self.plan.validation
        if most is not None:
            rows = rows[thinned(y[rows], most) if by_class else spaced(len(rows), most)]
        labels = {"y": y[rows]} if fine is None else {"y": y[rows], "fine": fine[rows]}
        encoder = self.program.encoder
        return {"Z": encode(encoder, X[rows]) if len(rows) else torch.zeros(0, encoder.d), **labels}

    def stats(self) -> Payload:
        """Return the class statistics, and `sample_passes` so far."""
        stats = all_moved(self.program.stats.tensors(), CPU)
        return {**stats, "sample_passes": torch.tensor(self.program.sample_passes)}

    def weights(self) -> Payload:
        """Return the encoder's weights, buffers and gauge by name, on the CPU."""
        return {name: value.detach().cpu() for name, value in self.program.encoder.state_dict().items()}

    def cpu_seconds(self) -> Payload:
        """Return `seconds`: the processor's time that the rounds have taken in this process."""
        return {"seconds": torch.tensor(self._cpu, dtype=torch.float64)}


def _outward(event: Exchange) -> Exchange:
    """Return an exchange whose payloads are on the CPU; one that goes to many nodes stays one."""
    outside = {id(payload): all_moved(payload, CPU) for payload in event.send.values()}
    return replace(event, send={j: outside[id(payload)] for j, payload in event.send.items()})


def spaced(total: int, most: int) -> Tensor:
    """Return at most `most` positions in 0..total-1, evenly spaced."""
    return torch.linspace(0, total - 1, min(total, most)).round().long()
