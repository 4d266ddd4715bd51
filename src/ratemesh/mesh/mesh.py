"""`Mesh`: own networks and data in, one common space out."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import accuracy
from ratemesh.data import Incoming
from ratemesh.data.files import Array
from ratemesh.data.memory import Given, Memory
from ratemesh.data.objects import coded
from ratemesh.devices import resolve_device
from ratemesh.encoders import Encoder
from ratemesh.errors import InputError
from ratemesh.experiment.card import Fusion
from ratemesh.experiment.config import Config, make_config, merged
from ratemesh.experiment.experiment import Progress, play
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.saved import CARD, SavedMesh, read_saved
from ratemesh.experiment.storage import refuse_occupied
from ratemesh.graph import TOPOLOGIES, TopologySpec
from ratemesh.mesh.judging import Judge, judge_of
from ratemesh.mesh.node import Node, devices_of, gathered, names_of, standardised, width
from ratemesh.report.progress import Board
from ratemesh.specs import resolve
from ratemesh.training.local import ENCODE_BATCH, encode

NOTHING_KEPT = {"checkpoint_every": 10**6, "features": 0}
"""What a run leaves whose folder is gone when it ends: no states to resume from, no features for figures."""


class Mesh:
    """Nodes with their own networks and data, trained into one representation space by class statistics alone.

    Args:
        nodes: what each holds, see `Node`.
        graph: who talks to whom: the name, table or object of a topology, a networkx graph, or a list of edges.
        classes: the labels in the order that is wanted, or names of labels 0..K-1; all that occur unless given.
        d: dimension of the common space; that of the users' networks unless given.
        seed: root of every random draw.
        standardise: whether rows (m, p) are brought to mean 0 and variance 1, by all nodes' training samples; new
            samples then go the same way.
        settings: any other setting of a configuration, e.g. `preset="paper"`, `method={"gamma": 2}`, `local={"epochs":
            5}`; see `ratemesh list settings`.

    >>> mesh = Mesh([Node(net_a, X_a, y_a), Node(net_b, X_b, y_b)], graph="ring")  # doctest: +SKIP
    >>> mesh.fit(rounds=40, validation=0.1).predict(X_new)  # doctest: +SKIP
    array(['A', 'F', 'A'], dtype='<U1')
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        graph: Any = "complete",
        classes: Sequence[Any] | None = None,
        *,
        d: int | None = None,
        seed: int = 0,
        standardise: bool = False,
        **settings: Any,
    ) -> None:
        self.nodes = list(nodes)
        if not self.nodes:
            raise InputError("nodes must hold at least one ratemesh.Node; it is empty.")
        if wrong := [node for node in self.nodes if not isinstance(node, Node)]:
            raise InputError(f"nodes must be ratemesh.Node(network, X, y); got {type(wrong[0]).__name__}.")
        names_of(self.nodes)
        self.metrics: dict[str, Any] = {}
        self._graph = _topology(graph, len(self.nodes))
        self._held = standardised(gathered(self.nodes, classes), standardise)
        self._settings = {"seed": seed, "d": width(self.nodes, self._held.data.X_train[:2], d), **settings}
        self._saved: SavedMesh | None = None

    @classmethod
    def of(cls, saved: SavedMesh) -> "Mesh":
        """Return a mesh that was trained before: it encodes, predicts and saves, and has nothing to train on."""
        mesh = cls.__new__(cls)
        mesh.nodes, mesh._saved, mesh.metrics = [], saved, dict(saved.card.metrics)
        return mesh

    def config(self, rounds: int | None = None, validation: float | None = None, **settings: Any) -> Config:
        """Return the configuration that training follows: the same as a file's, with what nodes hold as objects."""
        if not self.nodes:
            raise InputError("a loaded mesh must be trained where its data are; it has none. Make a Mesh of Nodes.")
        given = merged(self._settings, settings)
        table = {
            "engine": {"name": "inprocess", "workers": 1},  # objects cannot leave the process
            **given,
            "data": Memory.of(self._held.data, validation),
            "partition": Given(sizes=self._held.sizes),
            "graph": self._graph,
            "encoders": [node.encoder for node in self.nodes],
            "device": devices_of(self.nodes, given.get("device", "auto")),
            "names": names_of(self.nodes) if any(node.name for node in self.nodes) else [],
            **({} if rounds is None else {"rounds": rounds}),
        }
        return make_config(table)

    def to(self, device: str) -> "Mesh":
        """Have a trained mesh encode and predict on a device, "auto", "cpu", "cuda", "cuda:1" or "mps"."""
        for i, encoder in enumerate(self.saved.encoders):
            encoder.to(resolve_device(device, i))
        return self

    def fit(
        self,
        rounds: int | None = None,
        *,
        validation: float | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        patience: int = 0,
        progress: bool = True,
        callbacks: Iterable[Progress] = (),
        **settings: Any,
    ) -> "Mesh":
        """Train all nodes; every call begins with the networks as they were given.

        Args:
            rounds: of communication; the preset's unless given.
            validation: part of every node's samples held out, to stop by and to choose how to judge; left out: 0.1
                where a node has at least 50 samples of every class it holds.
            out: run folder to leave everything in, as `ratemesh run` does; nothing is kept unless given.
            resume: whether `out` may be of an earlier start that was interrupted, which then goes on.
            patience: evaluations on validation samples without a better one after which training stops; nodes then end
                as they were in the best round. 0 goes through all rounds.
            progress: whether to show a bar.
            callbacks: called with every round's record; one that raises `ratemesh.StopTraining` ends the training.
            settings: any other setting, as for `Mesh`.
        """
        usual: dict[str, Any] = {"output": NOTHING_KEPT} if out is None else {}
        asked = {"stopping": {"patience": patience}} if patience else {}
        wanted = merged(merged(usual, self._settings), merged(asked, settings))
        config = self.config(rounds, validation, **wanted)
        plan = Plan(config)
        with ExitStack() as stack:
            folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratemesh-"))) / "run"
            bars = [stack.enter_context(Board()).follow("training", config.rounds)] if progress else []
            result = play(plan, folder, [*bars, *callbacks], go_on=resume)
            networks = [config.encoder_of(i).network(plan.shape, config.d) for i in range(len(self.nodes))]
            self._saved = read_saved(RunFolder(result.folder).mesh, networks)
        self.metrics = result.metrics
        return self

    @property
    def saved(self) -> SavedMesh:
        """What was trained."""
        if self._saved is None:
            raise InputError("the mesh must be trained before it is asked. Call fit first, or ratemesh.load.")
        return self._saved

    @property
    def classes(self) -> Array:
        """(K,) the labels, as they were given."""
        card = self.saved.card
        return np.array([int(name) for name in card.classes] if card.numbers else list(card.classes))

    @property
    def encoders(self) -> list[Encoder]:
        """The trained encoders: samples in, unit vectors (m, d) of the common space out."""
        return list(self.saved.encoders)

    @property
    def stats(self) -> list[ClassStats]:
        """The class statistics of every node's training samples: all that was ever exchanged."""
        return list(self.saved.stats)

    def place(self, node: int | str) -> int:
        """Return the number of a node, which may be given by its name."""
        names = [card.name for card in self.saved.card.nodes]
        if isinstance(node, str) and node in names:
            return names.index(node)
        if isinstance(node, int) and -len(names) <= node < len(names):
            return node % len(names)
        raise InputError(f"node must be a number in 0..{len(names) - 1} or a name; got {node!r}. Known: {names}.")

    def read(self, path: str | Path) -> Incoming:
        """Return the samples of a file like those that were trained on, ready to be asked about in place of X."""
        try:
            return self.saved.intake.read(Path(path))
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"data must be a file that can be read; got '{path}' ({why}).") from None

    def features(self, X: Any, node: int | str | None = None, batch: int = ENCODE_BATCH) -> Tensor:
        """Return features (N, m, d) of raw samples as all nodes see them, or (1, m, d) as one does; on the CPU.

        Args:
            batch: samples that are on an encoder's device at a time.
        """
        saved = self.saved
        samples = X.X if isinstance(X, Incoming) else saved.intake.prepare(X)
        seen = saved.encoders if node is None else [saved.encoders[self.place(node)]]
        return torch.stack([encode(encoder, samples, batch) for encoder in seen])

    def encode(self, X: Any, node: int | str | None = None) -> Any:
        """Return features (m, d) in the common space: of one node, or averaged over all; tensors for tensors.

        Args:
            X: raw samples (m, ...), like those that nodes were given; or what `read` has read.
            node: number or name; None averages all nodes' features, as the paper does.
        """
        Z = self.features(X, node).mean(0)
        return Z if isinstance(X, Tensor) else Z.numpy()

    def predict(
        self,
        X: Any,
        node: int | str | None = None,
        *,
        judge: int | str | None = None,
        fusion: Fusion | None = None,
        return_scores: bool = False,
    ) -> Any:
        """Return labels (m,), as they were given for training.

        Args:
            X: raw samples (m, ...).
            node: whose features; None fuses all nodes'.
            judge: whose statistics judge them: with `node`, that node's own unless given, and those of any other show
                what nodes understand of each other; without `node`, all nodes' together.
            fusion: "energy", "average" or "gaussian"; what was best on validation samples unless given.
            return_scores: whether to return scores (m, K) too, higher for likelier classes in the order of `classes`.
        """
        found = self.scores(X, node, judge=judge, fusion=fusion)
        labels = self.classes[found.argmax(-1).numpy()]
        return (labels, found.numpy()) if return_scores else labels

    def scores(
        self, X: Any, node: int | str | None = None, *, judge: int | str | None = None, fusion: Fusion | None = None
    ) -> Tensor:
        """Return how well every class fits, (m, K): minus squared residuals, or log-likelihoods; see `predict`."""
        return self.judge(node, judge=judge, fusion=fusion)(self.features(X, node))

    def judge(
        self, node: int | str | None = None, *, judge: int | str | None = None, fusion: Fusion | None = None
    ) -> Judge:
        """Return what turns `features` into `scores`, the same for any number of batches; see `predict`."""
        saved = self.saved
        judges = saved.stats
        if judge is not None or node is not None:
            judges = [saved.stats[self.place(node if judge is None else judge)]]  # type: ignore[arg-type]
        way = fusion or (saved.card.fusion if node is None and judge is None else saved.card.alone)
        return judge_of(judges, len(saved.encoders) if node is None else 1, saved.card.rule, way)

    def score(self, X: Any, y: Any, node: int | str | None = None, **how: Any) -> float:
        """Return the part of samples whose labels are as `y` says; see `predict`."""
        places = coded(np.asarray(y), self.classes.tolist(), "y")
        return accuracy(self.scores(X, node, **how).argmax(-1), places)

    def save(self, path: str | Path) -> Path:
        """Write what was trained into a folder, without data and optimisers; return it."""
        folder = Path(path)
        if not (folder / CARD).exists():  # a mesh that was saved here before is replaced
            refuse_occupied(folder, "path", "Choose another, or an earlier mesh's.")
        self.saved.write(folder)
        return folder

    def __repr__(self) -> str:
        count = len(self.nodes) or len(self.saved.card.nodes)
        return f"Mesh({count} nodes, {'trained' if self._saved else 'not trained yet'})"


def _topology(graph: Any, nodes: int) -> TopologySpec:
    """Return the graph as a configuration holds it."""
    if hasattr(graph, "edges") and not isinstance(graph, TopologySpec):  # networkx
        graph = list(graph.edges)
    if isinstance(graph, str):
        graph = {"name": graph}
    elif not isinstance(graph, Mapping | TopologySpec):
        graph = {"name": "edges", "edges": [tuple(edge) for edge in graph]}
    if nodes == 1:
        graph = {"name": "empty"}
    if isinstance(graph, Mapping):
        graph = {"nodes": nodes, **graph}
    found = resolve(graph, TOPOLOGIES, TopologySpec, "graph")  # type: ignore[type-abstract]
    if found.nodes != nodes:
        raise InputError(f"graph must have as many nodes as the mesh, {nodes}; got {found.nodes}.")
    return found
