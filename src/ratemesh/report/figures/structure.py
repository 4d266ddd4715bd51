"""One run in one picture: cosines before and after training, and singular values."""

from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.report.figures import cosine, spectra, style
from ratemesh.report.runs import open_run


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
