"""Cosines and singular values together: one run before and after training, and several runs side by side."""

from collections.abc import Mapping
from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.report.figures import cosine, spectra, style
from ratemesh.report.runs import Run, open_run


def draw_structure(folder: Path, out: Path) -> None:
    """Draw the run in `folder` to the file `out`, PNG, SVG or PDF by its suffix."""
    run = open_run(folder)
    if run.features is None or run.initial is None:
        raise InputError(f"'{folder}' must hold features to draw from; run with output.features above 0.")
    with style.house_style():
        figure, axes = style.panels(3, 3, (4.3, 4.2), width_ratios=(1, 1, 1.15))
        for axis, features, title in zip(axes, (run.initial, run.features), ("before", "after"), strict=False):
            image = cosine.panel(axis, cosine.matrix(features, f"{title} training"))
        figure.colorbar(image, ax=axes[:2], shrink=0.8, label="cosine similarity")
        spectra.panel(axes[2], run.features)
        axes[2].set_title("singular values, after training")
        axes[2].legend()
        style.save(figure, out.with_suffix(""), [out.suffix.removeprefix(".")])


def draw_grids(runs: Mapping[str, Run], stem: Path) -> tuple[Path, ...]:
    """Draw several runs after training side by side: STEM-cosine as the paper's Fig. 2, STEM-spectra as its Fig. 3.

    Args:
        runs: by the title of their panel; those that kept no features are left out.
    """
    kept = [(title, run.features) for title, run in runs.items() if run.features is not None]
    if not kept:
        return ()
    across = 4 if len(kept) > 3 else 3
    matrices = [cosine.matrix(features, title) for title, features in kept]
    return (
        *cosine.save_panels(matrices, across, stem.with_name(f"{stem.name}-cosine")),
        *spectra.save_panels(kept, across, stem.with_name(f"{stem.name}-spectra")),
    )
