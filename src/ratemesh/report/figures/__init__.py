"""Figures of a paper, drawn from run folders only."""

from collections.abc import Callable

from ratemesh.report.figures import budget, consensus, convergence, cosine, network, spectra
from ratemesh.report.figures.structure import draw_grids, draw_structure
from ratemesh.report.figures.style import Drawn

__all__ = ["FIGURES", "Drawn", "draw_grids", "draw_structure"]

FIGURES: dict[str, Callable[..., Drawn]] = {
    "convergence": convergence.draw,
    "cosine": cosine.draw,
    "singular-values": spectra.draw,
    "consensus": consensus.draw,
    "network": network.draw,
    "accuracy-cost": budget.draw,
}
"""Every figure of the report by the name of its file, in order; each is called with runs and a path without suffix."""
