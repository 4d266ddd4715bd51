"""The graph of a run, with how far neighbours are apart at the end; and its clusters before anything is trained."""

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
from matplotlib.patches import Circle, Patch, Wedge

from ratemesh.graph.topology import Topology
from ratemesh.report.figures import style
from ratemesh.report.figures.style import Drawn
from ratemesh.report.runs import Run, number

MOST = 400
"""Nodes above which a graph is a black disc."""

NAMED = 40
"""Nodes up to which there is room for the encoders' names."""

SMALL = 14
"""Nodes up to which a circle stays readable."""

LISTED = 12
"""Clusters up to which there is room for a legend."""

PALE = ("#D6E6F2", "#F7DFCF", "#CFEBE2", "#F2E3EC", "#F8EBCB", "#DDF0FA", "#E6E6E6")
SHAPES = ("o", "s", "^", "D", "v", "p", "h")
"""Colours and shapes of nodes by their cluster."""

FILLS = ("#7FB8D8", "#F2AE84", "#B9E3D4", "#F7D070", "#E3BCD2", "#BFBFBF")
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")
"""Rings of clusters, six colours and five hatchings: the first 30 all differ, five of them without any colour."""

INSIDE: dict[str, Any] = {"color": "0.25", "lw": 1.4}
BETWEEN: dict[str, Any] = {"color": "0.65", "lw": 0.7, "ls": (0, (4, 3))}
"""Edges inside a cluster and between clusters."""

EDGES = ListedColormap(mpl.colormaps["cividis_r"](np.linspace(0.15, 1, 256)))
"""Darker is further apart: its lightness is monotone, so a grey print reads the same."""

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
    edges: dict[tuple[int, int], float]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Network | None":
        """Read what network.json holds; None if it is not what it should be."""
        try:
            nodes = {int(node["index"]): node for node in content["nodes"]}
            names = {i: str(node.get("encoder", "")) for i, node in nodes.items()}
            clusters = {i: node.get("cluster") for i, node in nodes.items()}
            titles = {i: _title(node) for i, node in nodes.items()}
            edges = {(int(i), int(j)): number(e.get("disagreement")) for e in content["edges"] for i, j in [e["ends"]]}
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

    def in_words(self) -> str:
        """Describe the graph."""
        kinds = style.listed(sorted({encoder for encoder in self.names.values() if encoder} or {"unnamed"}))
        clusters = [c for c in self.cluster_names if c is not None]
        parts = [f"{len(self.names)} nodes with encoders {kinds}, {len(self.edges)} edges"]
        if self.known:
            parts.append(f"disagreement over an edge from {min(self.known):.2g} to {max(self.known):.2g}")
        if clusters:
            parts.append(f"{len(clusters)} clusters")
        return ", ".join(parts) + "."


def _title(node: Mapping[str, Any]) -> str:
    labels, mine = ", ".join(map(str, node.get("labels") or [])), node.get("clusters") or []
    name = ": ".join(filter(None, [str(node.get("encoder", "")), labels]))
    return name + (f"\nin clusters {style.listed([str(s) for s in mine])}" if len(mine) > 1 else "")


def draw_network(runs: Sequence[Run], out_stem: Path, *, formats: Sequence[str] = style.FORMATS) -> Drawn:
    """Draw a panel a run that has a network.json."""
    title = "The network"
    networks, notes = _networks(runs)
    if not networks:
        return Drawn(title, notes=tuple(notes))
    values = [value for _, network in networks for value in network.known]
    scale = Normalize(min(values, default=0), max(values, default=1) if len(set(values)) > 1 else None)
    with style.house_style():
        figure, axes = style.panels(len(networks), (3.6, 3.5))
        for axis, (name, network) in zip(axes, networks, strict=True):
            _network_panel(axis, network, scale)
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
    words = " ".join(f"{name}: {network.in_words()}" for name, network in networks)
    return Drawn(title, caption, words, files, tuple(notes))


def _networks(runs: Sequence[Run]) -> tuple[list[tuple[str, Network]], list[str]]:
    """Return the graphs that can be drawn, and what to say of the others."""
    found, notes = [], []
    for run in runs:
        network = Network.of(run.network)
        if network is None:
            why = "does not hold a graph" if run.network else "is missing or cannot be read"
            notes.append(f"{run.name}: the network is not drawn. network.json {why}.")
        elif len(network.names) > MOST:
            notes.append(f"{run.name}: {_too_many(len(network.names))}")
        else:
            found.append((run.sample, network))
    return found, notes


def _too_many(nodes: int) -> str:
    return f"{nodes} nodes are too many to draw; at most {MOST} are."


def _network_panel(axis: Axes, network: Network, scale: Normalize) -> None:
    graph: nx.Graph[int] = nx.Graph(list(network.edges))
    graph.add_nodes_from(sorted(network.names))
    places = _layout(graph, sorted(graph, key=lambda node: (str(network.clusters[node]), node)))
    for (i, j), value in sorted(network.edges.items(), key=lambda edge: edge[1]):
        far = float(scale(value)) if math.isfinite(value) else 0
        look = {"color": EDGES(far), "lw": 0.8 + 2.2 * far} if math.isfinite(value) else {"color": "0.6", "ls": ":"}
        axis.plot(*zip(places[i], places[j], strict=True), zorder=1, solid_capstyle="round", **look)
    for order, cluster in enumerate(network.cluster_names):
        xs, ys = zip(*(places[node] for node in sorted(places) if network.clusters[node] == cluster), strict=True)
        fill, shape, name = PALE[order % len(PALE)], SHAPES[order % len(SHAPES)], f"cluster {cluster}"
        if cluster is None:
            fill, shape, name = "white", "o", "no cluster"
        size = 260 if len(places) <= NAMED else 40
        axis.scatter(xs, ys, s=size, c=fill, marker=shape, edgecolors="0.15", linewidths=1, zorder=2, label=name)
    if not network.edges:
        axis.text(0, 0, "no edges", ha="center", va="center", color="0.4")
    if len(network.names) <= NAMED:
        _write_names(axis, network.titles, places)
    axis.set_axis_off()
    axis.margins(0.16 if network.titles == network.names else 0.3)
    axis.set_aspect("equal")
    if len(network.cluster_names) > 1:
        axis.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=8)


def _layout(graph: "nx.Graph[int]", order: Sequence[int]) -> Places:
    """Return positions: on a circle in this order while that stays readable, by distance in the graph beyond."""
    small = len(order) <= SMALL or not nx.is_connected(graph)
    place = nx.circular_layout(order) if small else nx.kamada_kawai_layout(graph)
    return {node: (float(x), float(y)) for node, (x, y) in place.items()}


def _write_names(axis: Axes, names: Mapping[int, str], places: Places, away: float = 12) -> None:
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


def draw_clusters(
    clusters: Sequence[Sequence[int]],
    topology: Topology,
    names: Sequence[str],
    out_stem: Path,
    *,
    formats: Sequence[str] = style.FORMATS,
) -> Drawn:
    """Draw a graph with a ring of a cluster's colour and hatching around a node, several around a replica.

    Args:
        names: written beside the nodes, e.g. the labels they hold.
    """
    title = "Clusters"
    if topology.nodes > MOST:
        return Drawn(title, notes=(_too_many(topology.nodes),))
    graph: nx.Graph[int] = nx.Graph(topology.edges)
    graph.add_nodes_from(range(topology.nodes))
    mine = {i: [s for s, cluster in enumerate(clusters) if i in cluster] for i in graph}
    # those of a cluster stand side by side, replicas at the border of theirs
    places = _layout(graph, sorted(graph, key=lambda i: (min(mine[i]), max(mine[i]), i)))
    members = [", ".join(map(str, c[:8])) + (", …" if len(c) > 8 else "") for c in clusters]
    with style.house_style():
        figure, (axis,) = style.panels(1, (5.4, 4.6))
        for i, j in topology.edges:
            look = INSIDE if set(mine[i]) & set(mine[j]) else BETWEEN
            axis.plot(*zip(places[i], places[j], strict=True), zorder=1, **look)
        _rings(axis, mine, places)
        if topology.nodes <= NAMED:
            _write_names(axis, dict(enumerate(names)), places, 23 if topology.nodes <= SMALL else 12)
        if len(clusters) <= LISTED:
            keys = [Patch(**_ring(s), label=f"cluster {s}: {words}") for s, words in enumerate(members)]
            where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0)}
            axis.legend(handles=keys, ncols=2, fontsize=8, handlelength=2.6, handleheight=1.4, **where)
        axis.set_axis_off()
        axis.set_aspect("equal")
        axis.margins(0.2)
        files = style.save(figure, out_stem, formats)
    caption = (
        "Clusters that hold every label. A node's ring has the colour and hatching of its cluster, a replicated "
        "node's one piece a cluster; solid edges join members of a cluster. Beside a node: its labels."
    )
    alt = "; ".join(f"cluster {s}: nodes {words}" for s, words in enumerate(members)) + "."
    return Drawn(title, caption, alt, files)


def _rings(axis: Axes, clusters: Mapping[int, Sequence[int]], places: Places) -> None:
    """Draw rings, one piece a cluster of the node, and a white middle for its index that no hatching disturbs."""
    named = len(places) <= NAMED
    radius = 0.17 if len(places) <= SMALL else 0.07 if named else 0.03
    for i, place in places.items():
        mine = clusters[i]
        for n, s in enumerate(mine):
            piece = Wedge(place, radius, 90 + 360 * n / len(mine), 90 + 360 * (n + 1) / len(mine), zorder=2)
            piece.set(**_ring(s))
            axis.add_patch(piece)
        if named:
            axis.add_patch(Circle(place, radius * 0.55, fc="white", ec="0.15", lw=0.8, zorder=2.5))


def _ring(s: int) -> dict[str, Any]:
    return {"fc": FILLS[s % len(FILLS)], "hatch": HATCHES[s % len(HATCHES)], "ec": "0.15", "lw": 0.8}
