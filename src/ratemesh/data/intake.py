"""How raw samples become what encoders take: settings that stay with a trained mesh, for new samples.

Everything in an intake is what JSON can hold: a saved mesh has it in its card.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from ratemesh.specs import NamedSpec


@dataclass(frozen=True)
class Incoming:
    """New samples from a file, ready for encoders.

    Attributes:
        X: (m, *shape) samples.
        names: of the samples, e.g. of pictures; empty where rows have none.
        labels: (m,) what the file itself says of their classes, as words; empty where it does not.
    """

    X: Tensor
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class IntakeSpec(NamedSpec):
    """Settings of an intake; `shape` is that of a sample as encoders take it."""

    kind: ClassVar[str] = "intake"
    shape: tuple[int, ...] = Field(description="of a sample, as encoders take it")

    @abstractmethod
    def prepare(self, raw: Any) -> Tensor:
        """Return raw samples (arrays, tensors, frames, texts) as (m, *shape); refuse what does not fit."""

    @abstractmethod
    def read(self, path: Path) -> Incoming:
        """Return the samples of a file."""
