"""Figures of a paper, drawn from run folders only."""

from collections.abc import Callable

from ratemesh.report.figures.curves import draw_accuracy, draw_consensus, draw_convergence
from ratemesh.report.figures.graph import draw_clusters, draw_network
from ratemesh.report.figures.language import draw_language
from ratemesh.report.figures.matrices import draw_cosine, draw_grids, draw_spectra, draw_structure
from ratemesh.report.figures.style import Drawn

__all__ = ["FIGURES", "Drawn", "draw_clusters", "draw_grids", "draw_language", "draw_structure"]

FIGURES: dict[str, Callable[..., Drawn]] = {
    "language": draw_language,
    "convergence": draw_convergence,
    "cosine": draw_cosine,
    "singular-values": draw_spectra,
    "consensus": draw_consensus,
    "network": draw_network,
    "accuracy-cost": draw_accuracy,
}
"""Every figure of the report by the name of its file, in order; each is called with runs and a path without suffix."""
