"""FedU: a prediction of one view's target from the other (BYOL), whose predictor is averaged only near the others.

Zhuang et al. 2021. A node trains encoder and projector φ and a predictor h so that h(φ(x₁)) points where ξ(x₂) does, ξ
a target that follows φ slowly and stays at the node. The server averages φ and h. A node always takes the averaged φ
over; the averaged h only if its own φ moved little in this round, D < μ; otherwise it keeps its own h, which fits its
data.

Where sources differ: D is the mean over the encoder's convolutions (linear layers if it has none; 1×1 shortcuts left
out) of ‖W_end − W_start‖ over a round's local training, as in the published code; the text, from memory, has the
squared length of the whole difference to the new global model. Such a threshold depends on learning rate, epochs and
width, and the published 0.4 belongs to SGD and a ResNet. By default μ is the median of the nodes' D in the same round,
which costs one number up and one down a round: about half of the nodes take h over. (That of the first round alone
decides nothing after it: D falls with the learning rate, on MNIST from 0.69 to 0.26 in round 2 and 0.04 in round 8.)
The target is a real copy from the start, runs in training mode with normalisation statistics of its own, and follows
after every step. Both views go through a network as one batch.
"""

import copy
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ratemesh.seeds import seeded
from ratemesh.training.averaging import WeightsMessage, load_weights
from ratemesh.training.protocol import Node, RoundLog
from ratemesh.training.star import Projected, StarProgram, StarSpec, follow, head, regression_loss


class Predicting(nn.Module):
    """Encoder and projector φ, and the predictor h on top."""

    def __init__(self, online: Projected, predictor: nn.Module) -> None:
        super().__init__()
        self.online = online
        self.predictor = predictor

    def forward(self, X: Tensor) -> Tensor:
        """Return predictions h(φ(x)), (n, D), of samples (n, ...)."""
        predicted: Tensor = self.predictor(self.online(X))
        return predicted


class FedU(StarSpec):
    """FedU: one view predicts the other's target, without labels; predictors are averaged near the others only."""

    title: ClassVar[str] = "FedU"
    local_title: ClassVar[str] = "BYOL"
    numbers_up: ClassVar[dict[str, Tensor]] = {**StarSpec.numbers_up, "moved": torch.tensor(0.0)}
    numbers_down: ClassVar[dict[str, Tensor]] = {"median": torch.tensor(0.0)}
    keep: float = Field(0.99, ge=0, le=1, description="β, part of the target that stays at every step")
    mu: float | Literal["auto"] = Field(
        "auto", description="μ, movement from which on a node keeps its predictor; auto: median of all"
    )

    def model(self, node: Node) -> Predicting:
        """Return encoder, projector and predictor."""
        online = self.projected(node)
        D = self.projection * node.encoder.d
        with seeded(node.seed, self.title, "predictor"):
            return Predicting(online, head(D, self.hidden * node.encoder.d, D)).to(node.device)

    def program(self, node: Node) -> "FedUProgram":
        """Return node i's part."""
        return FedUProgram(self, node)


class FedUProgram(StarProgram):
    """Node i's state and rounds."""

    spec: FedU
    model: Predicting

    def __init__(self, spec: FedU, node: Node) -> None:
        super().__init__(spec, node)
        self.target = self.kept["target."] = copy.deepcopy(self.model.online)

    def train(self, t: int) -> float:
        """Train, and see how far the encoder moved."""
        watched = watched_weights(self.encoder)
        start = [weight.clone() for weight in watched]
        self.target.train()
        after_step = partial(follow, self.target, self.model.online, self.spec.keep)
        loss = self.trainer.train(self.node.X, self.node.y, self.objective, t, after_step)
        self.moved = float(torch.stack([(a - b).norm() for a, b in zip(watched, start, strict=True)]).mean())
        return loss

    def objective(self, X: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - learns without labels
        """Return how badly each view predicts the other's target."""
        with torch.no_grad():
            target = self.target(X)
        return regression_loss(self.model(X), target)

    def message(self) -> dict[str, Tensor]:
        """Return what all send, and how far the encoder moved."""
        return {**super().message(), "moved": torch.tensor(self.moved)}

    def combine(self, parts: Mapping[int, WeightsMessage]) -> dict[str, Tensor]:
        """Average, and add the median movement."""
        return {**super().combine(parts), "median": torch.tensor(median(p.numbers["moved"] for p in parts.values()))}

    def accept(self, answer: WeightsMessage) -> None:
        """φ ← φ_g; h ← h_g if D < μ."""
        self.threshold = answer.numbers["median"] if self.spec.mu == "auto" else self.spec.mu
        self.took_over = self.moved < self.threshold
        kept = () if self.took_over else ("predictor.",)
        load_weights(self.model, {k: v for k, v in answer.weights.items() if not k.startswith(kept)})

    def own_log(self) -> RoundLog:
        """Return movement, threshold, and whether the averaged predictor was taken over."""
        return {"moved": self.moved, "threshold": self.threshold, "took_over": float(self.took_over)}


def watched_weights(encoder: nn.Module) -> list[Tensor]:
    """Return the weights whose movement counts: of convolutions wider than 1×1, or of linear layers without any."""
    convolutions = [m.weight.detach() for m in encoder.modules() if isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1]
    return convolutions or [m.weight.detach() for m in encoder.modules() if isinstance(m, nn.Linear)]
