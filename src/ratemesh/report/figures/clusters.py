"""The clusters on the network: a ring of a cluster's colour and hatching around a node, several around a replica."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Patch, Wedge

from ratemesh.graph.topology import Topology
from ratemesh.report.figures import style
from ratemesh.report.figures.network import MOST, NAMED, SMALL, Places, layout, write_names
from ratemesh.report.figures.style import Drawn

FILLS = ("#7FB8D8", "#F2AE84", "#B9E3D4", "#F7D070", "#E3BCD2", "#BFBFBF")
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")
"""Six colours and five hatchings: the first 30 clusters all differ, five of them without any colour."""

LISTED = 12
"""Clusters up to which there is room for a legend."""


def draw(
    clusters: Sequence[Sequence[int]],
    topology: Topology,
    names: Sequence[str],
    out_stem: Path,
    *,
    formats: Sequence[str] = style.FORMATS,
) -> Drawn:
    """Draw the graph with its clusters; `names` are written beside the nodes, e.g. the labels they hold."""
    title = "Clusters"
    if topology.nodes > MOST:
        return Drawn(title, "", "", (), (f"{topology.nodes} nodes are too many to draw; at most {MOST} are.",))
    with style.house_style():
        figure, (axis,) = style.panels(1, 1, (5.4, 4.6))
        places = _places(clusters, topology)
        _edges(axis, clusters, topology, places)
        _nodes(axis, clusters, places)
        if topology.nodes <= NAMED:
            write_names(axis, dict(enumerate(names)), places, 23 if topology.nodes <= SMALL else 12)
        if len(clusters) <= LISTED:
            _legend(axis, clusters)
        axis.set_axis_off()
        axis.set_aspect("equal")
        axis.margins(0.2)
        files = style.save(figure, out_stem, formats)
    caption = (
        "Clusters that hold every label. A node's ring has the colour and hatching of its cluster, a replicated "
        "node's one piece a cluster; solid edges join members of a cluster. Beside a node: its labels."
    )
    return Drawn(title, caption, _in_words(clusters), files)


def _places(clusters: Sequence[Sequence[int]], topology: Topology) -> Places:
    """Return positions, those of a cluster side by side and replicas at the border of theirs."""
    graph: nx.Graph[int] = nx.Graph(topology.edges)
    graph.add_nodes_from(range(topology.nodes))
    mine = {i: [s for s, cluster in enumerate(clusters) if i in cluster] for i in graph}
    return layout(graph, sorted(graph, key=lambda i: (min(mine[i]), max(mine[i]), i)))


def _edges(axis: Axes, clusters: Sequence[Sequence[int]], topology: Topology, places: Places) -> None:
    for i, j in topology.edges:
        inside = any(i in cluster and j in cluster for cluster in clusters)
        look: dict[str, Any] = (
            {"color": "0.25", "lw": 1.4} if inside else {"color": "0.65", "lw": 0.7, "ls": (0, (4, 3))}
        )
        axis.plot(*zip(places[i], places[j], strict=True), zorder=1, **look)


def _nodes(axis: Axes, clusters: Sequence[Sequence[int]], places: Places) -> None:
    """Draw rings, one piece a cluster, and the index in a white middle that no hatching disturbs."""
    named = len(places) <= NAMED
    radius = 0.17 if len(places) <= SMALL else 0.07 if named else 0.03
    for i, place in places.items():
        mine = [s for s, cluster in enumerate(clusters) if i in cluster]
        for n, s in enumerate(mine):
            piece = Wedge(place, radius, 90 + 360 * n / len(mine), 90 + 360 * (n + 1) / len(mine), zorder=2)
            piece.set(**_look(s))
            axis.add_patch(piece)
        if named:
            axis.add_patch(Circle(place, radius * 0.55, fc="white", ec="0.15", lw=0.8, zorder=2.5))


def _look(s: int) -> dict[str, Any]:
    return {"fc": FILLS[s % len(FILLS)], "hatch": HATCHES[s % len(HATCHES)], "ec": "0.15", "lw": 0.8}


def _legend(axis: Axes, clusters: Sequence[Sequence[int]]) -> None:
    keys = [Patch(**_look(s), label=f"cluster {s}: {_members(cluster)}") for s, cluster in enumerate(clusters)]
    axis.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        fontsize=8,
        handlelength=2.6,
        handleheight=1.4,
    )


def _members(cluster: Sequence[int]) -> str:
    return ", ".join(map(str, cluster[:8])) + (", …" if len(cluster) > 8 else "")


def _in_words(clusters: Sequence[Sequence[int]]) -> str:
    return "; ".join(f"cluster {s}: nodes {_members(cluster)}" for s, cluster in enumerate(clusters)) + "."
