"""A consensus term on sketch moments (ours): what the neighbours' samples say of where one's own belong."""

import torch
from torch import Tensor

from ratemesh.core.sketch import SketchMoments
from ratemesh.core.stats import group_by_class
from ratemesh.data.sketches import Sketch
from ratemesh.devices import moved


class SketchPull:
    """Pulls features to where the neighbours' sketch moments would have them: −λ E⟨z, C̄_k (h − h̄_k)⟩ / s.

    Up to a constant it is −λ Σ_k π_k ⟨C_k, C̄_k⟩ / s, linear in the features. C̄ is a mean over samples that this node
    never saw, and so says of its own samples what they are like among all nodes' samples. s is the root mean square
    length of C̄_k (h − h̄_k) over the node's own samples, so that λ does not depend on the sketch.
    """

    def __init__(self, sketch: Sketch, target: SketchMoments, H: Tensor, y: Tensor, weight: float) -> None:
        self._sketch, self._target = sketch, target
        device = target.C.device
        length = self._places(moved(H, device), moved(y, device)).square().sum(1).mean().sqrt()
        self._weight = weight / float(length) if length > 0 else 0.0

    def _places(self, H: Tensor, y: Tensor) -> Tensor:
        """Return C̄_k (h − h̄_k), (n, d), for samples with sketch (n, p) and labels (n,)."""
        C, h = self._target.C, self._target.h
        groups = group_by_class(y, len(C))  # C gathered row by row would be n·d·p numbers
        return groups.unpad(groups.pad(H - h[y]) @ groups.of_class(C).mT)

    def __call__(self, Z: Tensor, X: Tensor, y: Tensor) -> Tensor:
        """Return the term for features (n, d) of samples X with labels (n,), to be added to the objective."""
        with torch.no_grad():
            places = self._places(self._sketch(X), y)
        return -self._weight * (Z * places).sum(1).mean()
