"""Who talks to whom, how far neighbours are apart at the end, and which cluster a node is in."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize

from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run, number

MOST = 400
"""Nodes above which a graph is a black disc."""

NAMED = 40
"""Nodes up to which there is room for the encoders' names."""

SMALL = 14
"""Nodes up to which a circle stays readable."""

FILLS = ("#D6E6F2", "#F7DFCF", "#CFEBE2", "#F2E3EC", "#F8EBCB", "#DDF0FA", "#E6E6E6")
SHAPES = ("o", "s", "^", "D", "v", "p", "h")
EDGES = ListedColormap(mpl.colormaps["cividis_r"](np.linspace(0.15, 1, 256)))
"""Darker is further apart: its lightness is monotone, so a grey print reads the same."""

Edge = tuple[int, int]
Places = Mapping[int, tuple[float, float]]


@dataclass(frozen=True)
class Network:
    """network.json, checked.

    Attributes:
        names: encoders by node.
        clusters: the (first) cluster by node.
        titles: what is written beside a node: its encoder, labels where not all hold all, clusters of a replicated one.
        edges: disagreement by edge, NaN where it is not known.
    """

    names: dict[int, str]
    clusters: dict[int, int | None]
    titles: dict[int, str]
    edges: dict[Edge, float]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Network | None":
        """Read what network.json holds; None if it is not what it should be."""
        try:
            names = {int(node["index"]): str(node.get("encoder", "")) for node in content["nodes"]}
            clusters = {int(node["index"]): node.get("cluster") for node in content["nodes"]}
            titles = {int(node["index"]): _title(node) for node in content["nodes"]}
            edges = {_ends(edge["ends"]): number(edge.get("disagreement")) for edge in content["edges"]}
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        whole = names and {node for edge in edges for node in edge} <= names.keys()
        return cls(names, clusters, titles, edges) if whole else None

    @property
    def known(self) -> list[float]:
        """Disagreements that were measured."""
        return [value for value in self.edges.values() if math.isfinite(value)]

    @property
    def cluster_names(self) -> list[int | None]:
        """Clusters in order, those without one last."""
        return sorted(set(self.clusters.values()), key=lambda c: (c is None, c or 0))


def _title(node: Mapping[str, Any]) -> str:
    labels, mine = ", ".join(map(str, node.get("labels") or [])), node.get("clusters") or []
    name = ": ".join(filter(None, [str(node.get("encoder", "")), labels]))
    return name + (f"\nin clusters {style.listed([str(s) for s in mine])}" if len(mine) > 1 else "")


def _ends(pair: Sequence[int]) -> Edge:
    i, j = pair
    return int(i), int(j)


def draw(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run that has a network.json."""
    title = "The network"
    networks, notes = _networks(runs)
    if not networks:
        return Drawn(title, "", "", (), tuple(notes))
    values = [value for _, network in networks for value in network.known]
    scale = Normalize(min(values, default=0), max(values, default=1) if len(set(values)) > 1 else None)
    with style.house_style():
        figure, axes = style.panels(len(networks), style.columns(len(networks)), (3.6, 3.5))
        for axis, (name, network) in zip(axes, networks, strict=True):
            _panel(axis, network, scale)
            axis.set_title(style.label(name))
        if values:
            bar = ScalarMappable(scale, EDGES)
            figure.colorbar(bar, ax=axes, shrink=0.6, pad=0.01, label="disagreement over the edge")
        files = style.save(figure, out_stem, formats)
    caption = (
        "Nodes with their encoders; an edge is thicker and darker the further its two ends are apart at the end "
        "(‖V_i − V_j‖ / ‖V_i‖). Shape and colour of a node stand for its (first) cluster, where there are clusters; "
        "where nodes hold different labels, theirs are beside them." + style.sampled(runs)
    )
    return Drawn(title, caption, " ".join(_in_words(*entry) for entry in networks), files, tuple(notes))


def _networks(runs: Sequence[Run]) -> tuple[list[tuple[str, Network]], list[str]]:
    """Return the graphs that can be drawn, and what to say of the others."""
    found, notes = [], []
    for run in runs:
        network = Network.of(run.network)
        if network is None:
            why = "does not hold a graph" if run.network else "is missing: only a finished run of this version has it"
            notes.append(f"{run.name}: the network is not drawn. network.json {why}.")
        elif len(network.names) > MOST:
            notes.append(f"{run.name}: {len(network.names)} nodes are too many to draw; at most {MOST} are.")
        else:
            found.append((run.sample, network))
    return found, notes


def _panel(axis: Axes, network: Network, scale: Normalize) -> None:
    graph: nx.Graph[int] = nx.Graph(list(network.edges))
    graph.add_nodes_from(sorted(network.names))
    places = layout(graph, sorted(graph, key=lambda node: (str(network.clusters[node]), node)))
    for (i, j), value in sorted(network.edges.items(), key=lambda edge: edge[1]):
        far = float(scale(value)) if math.isfinite(value) else 0
        look = {"color": EDGES(far), "lw": 0.8 + 2.2 * far} if math.isfinite(value) else {"color": "0.6", "ls": ":"}
        axis.plot(*zip(places[i], places[j], strict=True), zorder=1, solid_capstyle="round", **look)
    for order, cluster in enumerate(network.cluster_names):
        members = [node for node in sorted(network.names) if network.clusters[node] == cluster]
        _nodes(axis, members, places, order if cluster is not None else -1, cluster)
    if not network.edges:
        axis.text(0, 0, "no edges", ha="center", va="center", color="0.4")
    if len(network.names) <= NAMED:
        write_names(axis, network.titles, places)
    axis.set_axis_off()
    axis.margins(0.16 if network.titles == network.names else 0.3)
    axis.set_aspect("equal")
    if len(network.cluster_names) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=8)


def layout(graph: "nx.Graph[int]", order: Sequence[int]) -> Places:
    """Return positions: on a circle in this order while that stays readable, by distance in the graph beyond."""
    small = len(order) <= SMALL or not nx.is_connected(graph)
    place = nx.circular_layout(order) if small else nx.kamada_kawai_layout(graph)
    return {node: (float(x), float(y)) for node, (x, y) in place.items()}


def _nodes(axis: Axes, members: Sequence[int], places: Places, order: int, cluster: int | None) -> None:
    xs, ys = zip(*(places[node] for node in members), strict=True)
    fill, shape = ("white", "o") if order < 0 else (FILLS[order % len(FILLS)], SHAPES[order % len(SHAPES)])
    name = "no cluster" if cluster is None else f"cluster {cluster}"
    size = 260 if len(places) <= NAMED else 40
    axis.scatter(xs, ys, s=size, c=fill, marker=shape, edgecolors="0.15", linewidths=1, zorder=2, label=name)


def write_names(axis: Axes, names: Mapping[int, str], places: Places, away: float = 12) -> None:
    """Write the index into a node, and its name `away` points from its middle on the side away from the centre."""
    for node, (x, y) in places.items():
        axis.text(x, y, str(node), ha="center", va="center", fontsize=8, zorder=3)
        length = math.hypot(x, y) or 1
        side = "center" if abs(x) < 0.4 * length else "left" if x > 0 else "right"
        several = "\n" in names[node] and side == "center"  # they must grow away from the node
        axis.annotate(
            "\n".join(style.label(line) for line in names[node].splitlines()),
            (x, y),
            xytext=(away * x / length, (away + 2) * y / length),
            textcoords="offset points",
            ha=side,
            va=("bottom" if y > 0 else "top") if several else "center",
            fontsize=7.5,
            zorder=3,
        )


def _in_words(name: str, network: Network) -> str:
    kinds = style.listed(sorted({encoder for encoder in network.names.values() if encoder} or {"unnamed"}))
    clusters = [c for c in network.cluster_names if c is not None]
    parts = [f"{name}: {len(network.names)} nodes with encoders {kinds}, {len(network.edges)} edges"]
    if network.known:
        parts.append(f"disagreement over an edge from {min(network.known):.2g} to {max(network.known):.2g}")
    if clusters:
        parts.append(f"{len(clusters)} clusters")
    return ", ".join(parts) + "."
