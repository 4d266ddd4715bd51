"""What augmentation costs a batch, beside the training step that it feeds."""

import torch

from benchmarks.tables import Table, aim
from benchmarks.timing import interleave, milliseconds
from ratemesh.data.augment import AugmentSpec
from ratemesh.threads import pinned

ROWS = 256
COLOUR = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2, "jitter": 0.8, "grey": 0.2}
CROP = {"crop_scale": (0.2, 1.0), "flip": 0.5}
SETS = {
    "nothing (bytes to floats)": {},
    "shift and flip, whole pixels": {"shift": 4, "flip": 0.5},
    "crop and flip": CROP,
    "rotate and translate": {"rotate": 15.0, "translate": 0.1},
    "colours": COLOUR,
    "blur": {"blur": 0.5},
    "crop, flip, colours": {**CROP, **COLOUR},
    "everything": {**CROP, **COLOUR, "shift": 4, "rotate": 15.0, "blur": 0.5, "solarize": 0.2},
}


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    X = torch.randint(0, 256, (ROWS, 3, 32, 32), dtype=torch.uint8)
    draw = torch.Generator().manual_seed(0)
    specs = {name: AugmentSpec.model_validate(settings) for name, settings in SETS.items()}
    with pinned(1):
        timings = interleave(
            {name: lambda spec=spec: spec.apply(X, draw) for name, spec in specs.items()},  # type: ignore[misc]
            5 if quick else 60,
        )
    aims = {"crop, flip, colours": 20.0}
    rows = [
        [name, *milliseconds(timing), aim(1e3 * timing.quartile, at_most=aims[name]) if name in aims else ""]
        for name, timing in timings.items()
    ]
    return [
        Table(
            "Augmentation",
            f"Milliseconds for {ROWS} colour images of 32×32, every one with draws of its own; shifts and flips copy "
            "pixels and need no sampling.",
            ("", "lower quartile, ms", "median, ms", "aim, ms"),
            rows,
            "uint8 in, float32 out, one thread.",
        )
    ]
