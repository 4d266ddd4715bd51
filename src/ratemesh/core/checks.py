"""Checks at the boundary of the mathematics; every message names argument, value and remedy."""

import torch
from torch import Tensor

from ratemesh.errors import InputError, NonFiniteFeaturesError

UNIT_TOLERANCE = 1e-3
"""How far a row's squared length may be from one (float32 rounds it by 1e-6; half precision gets its own 2 ulp)."""

EXACT, RESOLVED = 1e-3, 0.1
"""(d/ε²)·eps up to which a loss is computed in its features' precision, and up to which rates mean anything at all.

A collapsed class has one eigenvalue d/ε² in I + (d/ε²)V beside ones, and rounding moves the ones by about (d/ε²)·eps.
Measured on collapsed classes: at 1e-3 gradients along the sphere are off by 0.1 %; at 0.1 rates by up to 5 %, at 0.2
some are NaN. With ε² = 0.5 and d = 128 it is 3e-5 in float32.
"""


def to_tensor(values: object, name: str) -> Tensor:
    """Return a tensor, or what can become one: an array or a list of numbers."""
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} must be a tensor or an array of numbers; got {type(values).__name__}. "
            f"Convert with torch.as_tensor({name})."
        ) from error


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinity."""
    # The extremes are NaN or infinite if anything is; torch.isfinite of every value takes thirty times as long.
    if values.numel() and not bool(torch.isfinite(torch.stack(values.aminmax())).all()):
        raise InputError(f"{name} must be finite; it holds NaN or infinity. Look for a diverged encoder.")


def check_labels(y: Tensor, rows: int, num_classes: int) -> None:
    """Require integer labels (rows,) in 0..num_classes-1."""
    if num_classes < 1:
        raise InputError(f"num_classes must be at least 1; got {num_classes}. Count the labels.")
    if y.ndim != 1 or y.shape[0] != rows:
        raise InputError(f"y must have shape ({rows},), one label per row of Z; got {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y must hold integers; got {y.dtype}. Convert with y.long().")
    if rows and (int(y.min()) < 0 or int(y.max()) >= num_classes):
        bad = y[(y < 0) | (y >= num_classes)][0]
        raise InputError(
            f"y must lie in 0..{num_classes - 1}; got label {int(bad)}. "
            "Renumber the labels from 0 or raise num_classes."
        )


def check_features(Z: Tensor, y: Tensor, num_classes: int, *, unit: bool = True) -> None:
    """Require features (m, d), finite, rows of unit length if `unit`, with matching labels."""
    if not (isinstance(Z, Tensor) and isinstance(y, Tensor)):
        raise InputError(
            f"Z and y must be tensors; got {type(Z).__name__} and {type(y).__name__}. Convert with torch.as_tensor."
        )
    if Z.ndim != 2 or Z.shape[1] < 1:
        raise InputError(f"Z must have shape (m, d), one sample per row; got {tuple(Z.shape)}.")
    if not Z.is_floating_point():
        raise InputError(f"Z must be floating point; got {Z.dtype}. Convert with Z.float().")
    check_labels(y, Z.shape[0], num_classes)
    with torch.no_grad():
        length2 = Z.detach().to(torch.promote_types(Z.dtype, torch.float32)).square().sum(dim=1)
        worst = (length2 - 1).abs() if unit else length2
        if not bool(torch.isfinite(length2).all()):
            row = int((~torch.isfinite(length2)).nonzero()[0])
            label = int(y[row])
            raise NonFiniteFeaturesError(
                f"Z must be finite; row {row} (label {label}) is not. Look for a diverged encoder or unscaled inputs.",
                label,
            )
        if unit and Z.shape[0] and float(worst.max()) > max(UNIT_TOLERANCE, 2 * torch.finfo(Z.dtype).eps):
            row = int(worst.argmax())
            raise InputError(
                f"Z must have rows of unit length; row {row} has length {float(length2[row]) ** 0.5:.4g}. "
                "Apply torch.nn.functional.normalize(Z, dim=1)."
            )


def deviation(Z: Tensor) -> Tensor:
    """Return the largest |‖z‖² − 1| of rows (m, d), on their device; NaN if one is not finite, 0 of none.

    For who looks at it later: `check_features` has to wait for the device.
    """
    length2 = Z.detach().to(torch.promote_types(Z.dtype, torch.float32)).square().sum(dim=1)
    return (length2 - 1).abs().amax() if len(Z) else Z.new_zeros(())


def is_unit(worst: Tensor, dtype: torch.dtype) -> bool:
    """Whether rows of this dtype with this `deviation` are unit vectors."""
    return bool(worst <= max(UNIT_TOLERANCE, 2 * torch.finfo(dtype).eps))


def check_labelled(Z: Tensor, y: Tensor) -> None:
    """Require features (m, d) and labels (m,) of at least one sample and any number of classes."""
    if not y.numel():
        raise InputError("y must hold labels at every node; it is empty at one. Leave nodes without samples out.")
    check_features(Z, y, max(int(y.max()) + 1, 1), unit=False)


def check_eps2(eps2: float) -> None:
    """Require a positive distortion ε²."""
    if not eps2 > 0:
        raise InputError(f"eps2 must be positive; got {eps2}. It is ε², the paper's default is 0.5.")


def working_precision(dtype: torch.dtype, d: int, eps2: float) -> torch.dtype:
    """Return the precision to compute the loss of features of this dtype in: float64 beyond `EXACT`."""
    least = torch.promote_types(dtype, torch.float32)  # half precision cannot factorise
    return torch.float64 if d / eps2 * torch.finfo(least).eps > EXACT else least


def check_resolution(dtype: torch.dtype, d: int, eps2: float) -> None:
    """Refuse an ε² so small that rounding of second moments in this precision decides the rates, see `RESOLVED`."""
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    if d / eps2 * eps > RESOLVED:
        raise InputError(
            f"eps2 must be at least {d * eps / RESOLVED:.2g} for second moments of {dtype} with d = {d}; got {eps2}. "
            "Their rounding would decide the rates. Raise eps2, lower d, or pass float64."
        )
