"""An encoder with a linear classifier on top: warm starts, cross-entropy beside −ΔR, and supervised baselines."""

from torch import Tensor, nn

from ratemesh.encoders import Encoder
from ratemesh.training.local import encode


class Classifier(nn.Module):
    """Logits √d·(W n + b) of the encoder's unit vectors n before the gauge: no turn of the gauge changes them.

    Features of unit length need a temperature before a softmax can be sure of anything. The head starts at zero: all
    classes equally likely, and nothing random.
    """

    def __init__(self, encoder: Encoder, num_classes: int) -> None:
        super().__init__()
        d = encoder.d
        self.encoder = encoder
        self.head = nn.Linear(d, num_classes, dtype=encoder.gauge.dtype, device=encoder.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.temperature = d**0.5

    def forward(self, X: Tensor) -> Tensor:
        """Return logits (m, K) of samples (m, ...)."""
        return self.logits(self.encoder(X))

    def logits(self, Z: Tensor) -> Tensor:
        """Return logits (m, K) of the encoder's features (m, d)."""
        logits: Tensor = self.temperature * self.head(Z @ self.encoder.gauge)
        return logits

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of a batch."""
        return nn.functional.cross_entropy(self(X), y)

    def fit(self, X: Tensor, y: Tensor) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy on samples (m, ...), in eval mode."""
        logits = encode(self, X)
        loss = nn.functional.cross_entropy(logits, y)  # on the CPU, as `encode` returns them
        return float(loss), float((logits.argmax(1) == y).double().mean())


def supervised(encoder: Encoder, num_classes: int, weight: float) -> nn.Module:
    """Return what is trained where cross-entropy has this weight: a classifier, or the encoder alone."""
    return Classifier(encoder, num_classes) if weight else encoder
