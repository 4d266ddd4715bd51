"""Whether the holders of a label can agree on it: only holders send its statistics, so others do not pass them on."""

from collections.abc import Collection, Sequence

from ratemesh.graph.topology import Topology

MOST = 4
"""Labels and edges that a message names."""


def split_holders(topology: Topology, labels: Sequence[Collection[int]]) -> dict[int, list[list[int]]]:
    """Return the labels whose holders are not joined through each other, with the groups that they fall into.

    Args:
        labels: K_i of every node.

    >>> split_holders(Topology(3, ((0, 1), (1, 2))), [{0, 1}, {1}, {0, 1}])
    {0: [[0], [2]]}
    """
    every = sorted(set().union(*labels))
    groups = {k: topology.components([i for i, held in enumerate(labels) if k in held]) for k in every}
    return {k: found for k, found in groups.items() if len(found) > 1}


def split_in_words(topology: Topology, labels: Sequence[Collection[int]]) -> list[str]:
    """Say whose statistics of which label cannot meet, and what edges would mend it; nothing of nodes without edges."""
    split = split_holders(topology, labels) if topology.edges else {}
    if not split:
        return []
    who = [f"label {k} of nodes {' and '.join(_set(group) for group in groups)}" for k, groups in split.items()]
    edges = sorted({(min(a, b), max(a, b)) for first, *others in split.values() for a, b in _between(first, others)})
    return [
        f"Statistics of a label cannot meet where no edges join its holders: {_some(who, '; ')}. Add edges, e.g. "
        f"{_some([f'{i}–{j}' for i, j in edges], ', ')}, or use graph.name = 'complete'."
    ]


def _between(first: Sequence[int], others: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return edges that would join all groups."""
    return [(first[0], group[0]) for group in others]


def _set(group: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, group)) + "}"


def _some(words: Sequence[str], between: str) -> str:
    """Join words, the first few if there are many."""
    rest = len(words) - MOST
    return between.join(words[:MOST]) + (f"{between}and {rest} more" if rest > 0 else "")
