"""FedSimCLR: contrastive learning of two views (Chen et al. 2020) with federated averaging, a baseline.

Encoder and projector are both averaged, and both replaced by the average: nodes keep nothing of their own but their
optimiser. The rest of the set-up is that of `star`. Choices: τ = 0.07 as the federated code bases have it (0.5 is usual
for contrastive learning of small images alone); the projector has one hidden layer of 4d units and puts out d numbers.
About one in K of the other samples in a batch is of the same class and pushed away all the same: without labels that
cannot be known. Batches below 64 make τ = 0.07 sharp; raise one or the other.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ratemesh.training.protocol import Node
from ratemesh.training.star import StarProgram, StarSpec, nt_xent


class FedSimClr(StarSpec):
    """FedSimCLR: contrastive learning without labels, weights averaged by a server."""

    title: ClassVar[str] = "FedSimCLR"
    local_title: ClassVar[str] = "SimCLR"
    temperature: float = Field(0.07, gt=0, description="τ of the contrastive loss")

    def program(self, node: Node) -> "FedSimClrProgram":
        """Return node i's part."""
        return FedSimClrProgram(self, node)


class FedSimClrProgram(StarProgram):
    """Node i's state and rounds."""

    spec: FedSimClr

    def objective(self, X: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - learns without labels
        """Return the contrastive loss of a batch's two views."""
        return nt_xent(self.model(X), self.spec.temperature)
